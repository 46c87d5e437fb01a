"""The layers of docs/design.md: a package imports only from those below it, and no two modules import each other."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

LAYERS = (
    "gasam",
    "gasam.integrations",
    "gasam.analysis",
    "gasam.lab.errors",
    "gasam.lab.command_text",
    "gasam.lab.storage",
    "gasam.lab.statistics",
    "gasam.lab.tables",
    "gasam.lab.provenance",
    "gasam.lab.records",
    "gasam.lab.theory",
    "gasam.lab.data",
    "gasam.lab.families",
    "gasam.lab.tasks",
    "gasam.lab.methods",
    "gasam.lab.walks",
    "gasam.lab.training",
    "gasam.lab.prediction",
    "gasam.lab.engines",
    "gasam.lab.search",
    "gasam.lab.comparisons",
    "gasam.lab.analyses",
    "gasam.lab.paper",
    "gasam.lab.report",
    "gasam.lab.cli",
    "gasam.lab.api",
)
"""From the lowest to the highest."""
ENTRY = {"gasam.__main__": {"gasam.lab.cli"}, "gasam.lab": {"gasam.lab.api", "gasam.lab.prediction"}}
"""`python -m gasam` starts the command, and `gasam.lab.load` loads a run when it is first used."""


def modules():
    """Every module with its syntax tree."""
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(file.read_text(encoding="utf-8"))


TREES = dict(modules())


def imported(tree):
    """The modules that a tree imports anywhere, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.partition(".")[0] == "gasam")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "gasam":
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in TREES else node.module


def layer(module):
    """The longest name of a layer that a module's name begins with."""
    names = [name for name in LAYERS if module == name or module.startswith(f"{name}.")]
    return max(names, key=len)


@pytest.mark.parametrize("module", TREES)
def test_imports_go_down(module):
    if module in ENTRY:
        assert {layer(other) for other in imported(TREES[module])} == ENTRY[module]
        return
    for other in imported(TREES[module]):
        assert LAYERS.index(layer(other)) <= LAYERS.index(layer(module)), f"{module} imports {other}"


def test_every_layer_is_a_part_of_the_tree_and_every_part_is_a_layer():
    parts = {module for module in TREES if module.startswith("gasam.lab.") and module.count(".") == 2}
    assert parts | {"gasam", "gasam.integrations", "gasam.analysis"} == set(LAYERS)


def test_no_two_modules_import_each_other():
    """An import for type checking does not count: it is never run."""
    graph = {}
    for module, tree in TREES.items():
        checked = [
            node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        ]
        only_checked = {other for node in checked for other in imported(node)}
        graph[module] = set(imported(tree)) - only_checked - {module}
        packages = {other for other in graph[module] if module.startswith(f"{other}.")}
        graph[module] -= packages  # a package's own names, which it imports before its modules
    assert list(TopologicalSorter(graph).static_order())


def test_the_page_of_the_design_names_every_layer():
    page = (SOURCE.parent / "docs" / "design.md").read_text(encoding="utf-8")
    for name in LAYERS:
        short = name.removeprefix("gasam.lab.").removeprefix("gasam.")
        assert short in page, name
