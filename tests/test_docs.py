"""Every code block of the docs is part of an example, every example runs, every table is made from its data."""

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


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(BLOCKS)])
def test_code_block_is_part_of_an_example(page, block):
    assert any(block in example.read_text() for example in EXAMPLES), f"{page} has code that no example has:\n{block}"


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
