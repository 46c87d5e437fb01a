"""The project as a whole: what it requires and imports, in which order, and that its files agree with each other."""

import ast
import importlib
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from torch import nn

import gasam

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
MATRIX = WORKFLOW["jobs"]["versions"]["strategy"]["matrix"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()


class TestFiles:
    def test_the_workflow_tests_every_supported_python_and_the_lowest_and_highest_torch(self):
        versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
        assert MATRIX["python"] == versions
        supported = SpecifierSet(PROJECT["project"]["requires-python"])
        assert Version(MATRIX["python"][0]) == next(
            v for minor in range(20) if (v := Version(f"3.{minor}")) in supported
        )
        [torch_] = map(Requirement, PROJECT["project"]["dependencies"])
        bounds = {bound.operator: bound.version for bound in torch_.specifier}
        lowest, highest = MATRIX["torch"]
        major, minor = map(int, highest.split("."))
        assert (lowest, f"{major}.{minor + 1}") == (bounds[">="], bounds["<"])
        assert re.search(rf"^torch=={re.escape(highest)}\.\d+$", CONSTRAINTS, flags=re.MULTILINE)
        assert f"{lowest} to {highest}" in (ROOT / "README.md").read_text()
        [setup] = [step for step in WORKFLOW["jobs"]["pinned"]["steps"] if "setup-python" in step.get("uses", "")]
        pinned = setup["with"]["python-version"]
        assert f"Python {pinned}," in CONSTRAINTS
        assert MATRIX["exclude"] == [{"python": pinned, "torch": highest}]

    def test_the_workflow_runs_what_there_is(self, tmp_path):
        commands = "\n".join(step.get("run", "") for job in WORKFLOW["jobs"].values() for step in job["steps"])
        targets = re.findall(r"^make (\S+)$", commands, flags=re.MULTILINE)
        assert targets == ["test", "test-all", "dist"]
        for target in targets:  # as in a fresh checkout
            command = ["make", "--dry-run", target, f"VENV={tmp_path}"]
            assert subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
        folders = re.findall(r"tests/\w+", commands)
        assert folders
        assert all((ROOT / folder).is_dir() for folder in folders)
        assert all("timeout-minutes" in job for job in WORKFLOW["jobs"].values())

    def test_the_source_archive_has_all_of_the_checkout(self):
        listed = {path.strip("/") for path in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
        ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
        here = {path.name for path in ROOT.iterdir()} - {"pyproject.toml", ".gitignore", ".ci", ".git", "PKG-INFO"}
        generated = {".coverage", "build"}
        assert {name for name in here - ignored - generated if not name.endswith(".egg-info")} == listed

    def test_the_citation_is_of_this_version(self):
        citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
        assert citation["version"] == gasam.__version__
        assert citation["license"] == PROJECT["project"]["license"]


FORBIDDEN = re.compile(r"^(torchvision|torchaudio|triton|pytorch-triton|nvidia-.*|cuda-.*)$")


class TestEnvironment:
    def test_no_cuda_packages_and_no_torchvision_slipped_in(self):
        """Here, they break the import of torch's companions."""
        installed = {d.metadata["Name"].lower().replace("_", "-") for d in importlib.metadata.distributions()}
        assert "torch" in installed
        assert not list(filter(FORBIDDEN.match, installed))

    def test_core_requires_torch_alone(self):
        required = [r for r in importlib.metadata.requires("gasam") if "extra ==" not in r]
        assert [re.match(r"[\w-]+", r).group() for r in required] == ["torch"]

    def test_core_imports_torch_alone_and_the_lab_not_what_it_needs_later(self):
        """In a fresh process: importing gasam brings in nothing that importing torch does not."""
        script = (
            "import sys, torch, json; before = set(sys.modules); import gasam, gasam.integrations;"
            "core = set(sys.modules) - before; import gasam.lab; print(json.dumps([sorted(core), sorted(sys.modules)]))"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        core, lab = json.loads(done.stdout)
        others = {name.partition(".")[0] for name in core} - {"gasam", "torch"}
        assert not others - sys.stdlib_module_names
        assert "gasam.walk" in core
        assert not [name for name in core if name.startswith(("gasam.lab", "gasam.analysis"))]
        assert not {"transformers", "gasam.lab.training.finished"} & set(lab)

    @pytest.mark.parametrize(("module", "missing", "packages"), [
        ("lightning", ["lightning", "pytorch_lightning"], "lightning"),
        ("transformers", ["transformers", "accelerate"], "transformers and accelerate"),
        ("transformers", ["accelerate"], "accelerate"),
    ])  # fmt: skip
    def test_missing_extra_is_named_in_one_sentence(self, module, missing, packages, monkeypatch):
        found = importlib.util.find_spec
        for place in ("importlib.util.find_spec", "gasam.integrations.find_spec"):
            monkeypatch.setattr(place, lambda name, *rest: None if name in missing else found(name, *rest))
        monkeypatch.delitem(sys.modules, f"gasam.integrations.{module}", raising=False)
        with pytest.raises(ImportError) as raised:
            importlib.import_module(f"gasam.integrations.{module}")
        assert str(raised.value) == f"this integration needs {packages}: run `pip install 'gasam[{module}]'`"


def modules():
    """Every module with its syntax tree."""
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(file.read_text(encoding="utf-8"))


TREES = dict(modules())

# From the lowest to the highest. Those in one line may import each other's modules.
LAYERS = [
    ["gasam"],
    ["gasam.integrations", "gasam.analysis"],
    ["theory"],
    *(["errors"], ["storage"], ["record"], ["output"], ["data"], ["families"], ["methods"], ["tasks"], ["training"]),
    *(["engines"], ["display"], ["search", "analyses"], ["report"], ["paper"], ["api"], ["cli"]),
]
HEIGHT = {
    name if name.startswith("gasam") else f"gasam.lab.{name}": height
    for height, names in enumerate(LAYERS)
    for name in names
}
ENTRY = {"gasam.__main__": {"gasam.lab.cli"}, "gasam.lab": {"gasam.lab.api", "gasam.lab.training"}}
"""`python -m gasam` starts the command, and `gasam.lab.load` loads a run when it is first used."""


def imported(tree):
    """The modules of gasam that a tree imports anywhere, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.partition(".")[0] == "gasam")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "gasam":
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in TREES else node.module


def layer(module):
    """The longest name of a layer that a module's name begins with."""
    return max((name for name in HEIGHT if module == name or module.startswith(f"{name}.")), key=len)


def test_imports_go_down():
    unknown = {m for m in TREES if m.startswith("gasam.lab.") and layer(m) == "gasam"}
    assert not unknown, "give these modules a place in LAYERS"
    wrong = [
        f"{module} imports {other}"
        for module, tree in TREES.items()
        for other in imported(tree)
        if HEIGHT[layer(other)] > HEIGHT[layer(module)] and layer(other) not in ENTRY.get(module, ())
    ]
    assert not wrong


# Private names of other libraries, and named tuples' methods, which have an underscore but are public.
OF_OTHERS = {
    *("_make", "_replace", "_asdict"),
    *("_trainer", "_logger_connector", "_forward_cache"),  # Lightning and torchmetrics
    *("_get_num_items_in_batch", "_prepare_inputs"),  # Trainer
    "_trial_id",  # Optuna
    "_ci",  # sacrebleu
}
# gasam may have attributes of these names, but only on `self`: elsewhere they can be torch's.
OF_TORCH = {*dir(torch), *dir(torch.Tensor), *dir(torch.UntypedStorage), *vars(nn.Module())}


def defined_names(tree: ast.AST) -> set[str]:
    """Functions, classes, variables and attributes that are assigned."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored = [node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store)]
    return names | {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in stored}


def private_names(tree: ast.AST, own: set[str]) -> set[str]:
    """Private names that are read or imported, and not among gasam's `own`."""
    found, own_here = set(), defined_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self")):
                found |= {node.attr} - (own - OF_TORCH) - own_here
            case ast.Attribute():
                found |= {node.attr} - (own - OF_TORCH)
            case ast.Import(names=names):
                found |= {part for name in names if name.name.startswith("torch") for part in name.name.split(".")}
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("torch"):
                found |= {*module.split("."), *(name.name for name in names)}
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]):
                found |= {name} - own
    return {name for name in found if name.startswith("_") and not name.startswith("__")} - OF_OTHERS


def test_private_names_of_torch_are_in_one_file():
    """They may change between two releases."""
    own = set().union(*map(defined_names, TREES.values()))
    found = {module: names for module, tree in TREES.items() if (names := private_names(tree, own))}
    assert found.keys() == {"gasam.torch_private"}, found
