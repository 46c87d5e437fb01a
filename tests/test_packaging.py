"""pyproject.toml, the Makefile, the workflow, the hooks and the citation agree with each other and with the docs."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pre_commit.clientlib import load_config

import gasam

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
MATRIX = WORKFLOW["jobs"]["versions"]["strategy"]["matrix"]
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()


def made(target, folder):
    """The commands that `make` would run in a fresh checkout."""
    command = ["make", "--dry-run", "--no-print-directory", target, f"VENV={folder / 'none'}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_workflow_tests_every_supported_python():
    named = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c) for c in PROJECT["project"]["classifiers"]]
    assert MATRIX["python"] == [found[1] for found in named if found]
    supported = SpecifierSet(PROJECT["project"]["requires-python"])
    minors = [Version(f"3.{minor}") for minor in range(20)]
    assert Version(MATRIX["python"][0]) == next(version for version in minors if version in supported)


def test_the_workflow_tests_the_lowest_and_the_highest_supported_torch():
    [torch] = map(Requirement, PROJECT["project"]["dependencies"])
    bounds = {bound.operator: bound.version for bound in torch.specifier}
    lowest, highest = MATRIX["torch"]
    assert lowest == bounds[">="]
    major, minor = map(int, highest.split("."))
    assert bounds["<"] == f"{major}.{minor + 1}"
    assert re.search(rf"^torch=={re.escape(highest)}\.\d+$", CONSTRAINTS, flags=re.MULTILINE)
    assert f"{lowest} to {highest}" in (ROOT / "README.md").read_text()


def test_the_pinned_job_has_the_python_of_the_constraints():
    [setup] = [s for s in WORKFLOW["jobs"]["pinned"]["steps"] if "setup-python" in s.get("uses", "")]
    assert f"Python {setup['with']['python-version']}," in CONSTRAINTS
    assert MATRIX["exclude"] == [{"python": setup["with"]["python-version"], "torch": MATRIX["torch"][1]}]


def test_the_workflow_runs_what_there_is(tmp_path):
    commands = "\n".join(step.get("run", "") for step in STEPS)
    targets = re.findall(r"^make (\S+)$", commands, flags=re.MULTILINE)
    assert targets == ["test", "dist"]
    assert all(made(target, tmp_path) for target in targets)
    ignored = re.findall(r"--ignore=(\S+)", commands)
    assert ignored
    assert all((ROOT / folder).is_dir() for folder in ignored)
    assert all("timeout-minutes" in job for job in WORKFLOW["jobs"].values())


def test_the_demo_installs_the_command_alone_and_the_tests_complete_the_environment(tmp_path):
    demo, test = made("demo", tmp_path), made("test", tmp_path)
    assert "'.[lab]'" in demo
    assert "dev" not in demo
    assert "'.[dev,docs]'" in test
    assert "'.[lab]'" not in test


def extras_in(text):
    for names in re.findall(r"(?:gasam|[\s'\"]\.)\[([a-z_,]+)\]", text):
        yield from names.split(",")


@pytest.mark.parametrize(
    "file",
    [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "Makefile", ROOT / "pyproject.toml"],
    ids=lambda file: file.name,
)
def test_extras_that_are_named_exist(file):
    assert set(extras_in(file.read_text())) <= EXTRAS.keys()


def test_extras_that_the_code_names_exist():
    named = {name for file in (ROOT / "src").rglob("*.py") for name in extras_in(file.read_text())}
    assert {"lab", "download"} <= named <= EXTRAS.keys()


def test_the_source_archive_has_all_of_the_checkout():
    listed = {path.strip("/") for path in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    here = {path.name for path in ROOT.iterdir()} - {"pyproject.toml", ".gitignore", ".ci", ".git", "PKG-INFO"}
    generated = {".coverage", "build"}
    assert {name for name in here - ignored - generated if not name.endswith(".egg-info")} == listed


def test_the_hooks_find_trailing_whitespace_and_run_offline(tmp_path):
    """The others call the linters that `make lint` runs."""
    config = ROOT / ".pre-commit-config.yaml"
    hooks = {hook["id"] for repo in load_config(config)["repos"] for hook in repo["hooks"]}
    assert {"ruff-check", "ruff-format", "mypy", "trailing-whitespace"} <= hooks
    (tmp_path / "notes.txt").write_text("fine\nnot fine \n")
    git = ["git", "-c", "init.defaultBranch=main", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run([*git, "add", "."], cwd=tmp_path, check=True)
    environment = os.environ | {"PRE_COMMIT_HOME": str(tmp_path / "cache"), "https_proxy": "http://127.0.0.1:9"}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pre_commit", "run", "--config", str(config), "--files", "notes.txt"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "notes.txt:2:not fine" in ended.stdout
    (tmp_path / "notes.txt").write_text("fine\n")
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)


def test_the_citation_is_of_this_version_and_of_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation.keys() >= {"message", "title", "authors"}
    assert citation["version"] == gasam.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    [paper] = citation["references"]
    authors = ", ".join(author["family-names"] for author in paper["authors"][:-1])
    cited = " ".join((ROOT / "docs" / "math.md").read_text().split())
    assert f'{authors} and {paper["authors"][-1]["family-names"]}, "{paper["title"]}"' in cited
    assert (paper["conference"]["name"], paper["year"]) == ("EMNLP 2022", 2022)
