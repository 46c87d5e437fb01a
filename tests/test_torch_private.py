"""Private names of torch are used in one file alone, because they may change between two releases."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

SOURCE = Path(__file__).parent.parent / "src" / "gasam"
ALLOWED = "torch_private.py"
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


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def defined_names(tree: ast.AST) -> set[str]:
    """Functions, classes, variables and attributes that are assigned."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored = [node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store)]
    names |= {node.attr for node in stored if isinstance(node, ast.Attribute)}
    return names | {node.id for node in stored if isinstance(node, ast.Name)}


def imported_parts(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The parts of the dotted names that are imported."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{name}" for name in names]
    return [part for name in names for part in name.split(".")]


def private_names(tree: ast.AST, own: set[str]) -> set[str]:
    """Private names that are read or imported, and not among gasam's `own`."""
    found = set()
    own_here = defined_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            mine = own - OF_TORCH
            found |= {node.attr} - (mine | own_here if is_of_self(node) else mine)
        elif isinstance(node, ast.Import | ast.ImportFrom) and "torch" in imported_parts(node)[:1]:
            found |= set(imported_parts(node))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            found |= {str(getattr(argument, "value", "")) for argument in node.args[1:2]} - own
    return set(filter(is_private, found)) - OF_OTHERS


@pytest.fixture(scope="module")
def trees():
    return {str(file.relative_to(SOURCE)): ast.parse(file.read_text()) for file in sorted(SOURCE.rglob("*.py"))}


def test_private_names_of_torch_are_in_one_file(trees):
    own = set().union(*map(defined_names, trees.values()))
    found = {file: private_names(tree, own) for file, tree in trees.items()}
    assert {file: names for file, names in found.items() if names and file != ALLOWED} == {}
    assert found[ALLOWED]


@pytest.mark.parametrize(
    "code",
    [
        "torch._foreach_copy_(a, b)",
        "from torch._utils import _unflatten_dense_tensors",
        "from torch.distributed.tensor._utils import anything",
        "import torch._dynamo",
        "module._buffers",
        "self._parameters",
        'getattr(tensor, "_local_tensor", tensor)',
    ],
)
def test_the_search_finds_a_private_name(code):
    assert private_names(ast.parse(code), own={"_mine", "_buffers"})


def test_the_search_ignores_what_is_defined_here():
    assert not private_names(ast.parse("self._stack = other._mine + pair._asdict()[self._stack]"), own={"_mine"})
