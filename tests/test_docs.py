"""Every code block of the docs is part of an example, every example runs, every table is made from its data."""

import ast
import importlib
import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer
from benchmarks import report

from gasam.lab.cli.commands import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TASK_FILES = sorted((ROOT / "examples" / "tasks").glob("*.py"))  # tests/lab/test_own_model.py trains them
PUBLIC = ["gasam", "gasam.analysis", "gasam.lab", "gasam.lab.prediction", "gasam.lab.theory"]
IMPORTS_SHOWN = {"README.md", "index.md", "guide.md", "frameworks.md", "coming-from.md", "own-model.md", "size.md"}
BLOCKS = [
    (page.name, block)
    for page in PAGES
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)
]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning calls what torch 2.13 deprecates
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.stem != "digits"], ids=lambda path: path.stem)
def test_example_runs_and_verifies_itself(example):
    assert "\nassert " in example.read_text()
    runpy.run_path(str(example), run_name="__main__")


def test_demo_prints_a_row_for_each_method(capsys, monkeypatch):
    from examples import digits

    short = {name: (perturbation, 6) for name, (perturbation, _) in digits.METHODS.items()}
    monkeypatch.setattr(digits, "METHODS", short)
    digits.main(seeds=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:30].strip() for line in lines] == ["method", *digits.METHODS]
    for line in lines[1:]:
        accuracy, sharpness = re.search(r"([\d.]+) ± [\d.]+ +([\d.]+)", line).groups()
        assert 50 < float(accuracy) <= 100
        assert float(sharpness) > 0


def imports(nodes):
    """The names that import statements bring in, each with the module it comes from."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {(None, alias.name, alias.asname) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module, alias.name, alias.asname) for alias in node.names}
    return found


def split(block):
    """The imports that a block begins with, and the code after them."""
    body = ast.parse(block).body
    count = sum(isinstance(node, ast.Import | ast.ImportFrom) for node in body)
    code = "".join(block.splitlines(keepends=True)[body[count - 1].end_lineno :]) if count else block
    return imports(body[:count]), code.lstrip("\n")


def is_part_of(block, example):
    names, code = split(block)
    return code in example and names <= imports(ast.walk(ast.parse(example)))


BLOCK_IDS = [f"{page}-{i}" for i, (page, _) in enumerate(BLOCKS)]


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=BLOCK_IDS)
def test_code_block_is_part_of_an_example(page, block):
    """The block may leave out imports that it does not need. All its other lines stand together in one example."""
    files = [*EXAMPLES, *TASK_FILES]
    assert any(is_part_of(block, file.read_text()) for file in files), f"{page}: no example has\n{block}"


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=BLOCK_IDS)
def test_code_block_imports_what_it_uses_of_gasam(page, block):
    public = {name for module in PUBLIC for name in importlib.import_module(module).__all__}
    nodes = list(ast.walk(ast.parse(block)))
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)} & public
    missing = used - {name for _, name, _ in imports(nodes)}
    assert page not in IMPORTS_SHOWN or not missing, f"{page}: add the imports of {missing} to\n{block}"


def test_pages_have_code_blocks():
    assert {page for page, _ in BLOCKS} >= {"README.md", "guide.md"}


def test_performance_page_is_made_from_the_results():
    results = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    assert report.PAGE.read_text() == report.page(results)
    assert set(results) == set(report.SECTIONS)


COMMANDS = [
    (page.name, command)
    for page in PAGES
    for command in re.findall(r"(?:^|`)gasam ([a-z][^`#\n]*)", page.read_text(), flags=re.MULTILINE)
]


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(COMMANDS)])
def test_command_in_the_docs_is_one(page, command):
    """Parsed as the shell would, not run."""
    name, *words = shlex.split(command)
    commands = typer.main.get_command(app).commands
    assert name in commands, f"{page}: gasam {command}"
    words = [name.lower() if name.isupper() else name for name in words]
    found = commands[name]
    if words and words[0] in getattr(found, "commands", {}):
        found, words = found.commands[words[0]], words[1:]
    found.make_context(name, words or ["--json"] * (name == "data"))


def test_docs_name_every_command():
    assert {command.split()[0] for _, command in COMMANDS} == set(typer.main.get_command(app).commands)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_navigation_once():
    navigation = re.findall(r'= "(.+\.md)"', (ROOT / "zensical.toml").read_text())
    docs = ROOT / "docs"
    assert sorted(navigation) == sorted(file.relative_to(docs).as_posix() for file in docs.rglob("*.md"))


def without_generated_parts(text):
    return re.sub(r"<!-- ([a-z ]+) -->.*?<!-- /\1 -->", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "results.md"], ids=lambda page: page.name)
def test_page_can_be_read_in_one_sitting(page):
    text = page.read_text()
    assert len(text.split()) <= 5_000
    assert max(len(line) for line in without_generated_parts(text).splitlines()) <= 400


def test_reference_lists_the_public_names_and_no_others():
    """A name may be listed with its file, `gasam.analysis.attack.attack`, where the module has both."""
    listed = re.findall(r"^::: (.+)$", (ROOT / "docs" / "reference.md").read_text(), flags=re.MULTILINE)
    found = {(name.rpartition(".")[2]) for name in listed if not name.startswith("gasam.integrations.")}
    assert found == {name for module in PUBLIC for name in importlib.import_module(module).__all__} | {"reference"}
    assert len(listed) == len(set(listed))
