"""Checks of the loss function's code and of its loss's graph for mistakes that would otherwise go unnoticed."""

from __future__ import annotations

import dis
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import IOBase
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from gasam.passes import loss_in
from gasam.torch_private import factors_of_product, updates_running_statistics

_LARGE_SCALE = 256


def look_at_function(function: Callable[[], Any]) -> None:
    """Warn if the function takes its batch from an iterator, or overwrites a variable that it reads first."""
    if not isinstance(function, FunctionType):
        return
    for name, value in _variables(function).items():
        if isinstance(value, Iterator) and not isinstance(value, IOBase):
            _warn(
                f"the loss function uses the iterator {name!r}, so each of the K+1 passes would take another batch: "
                "call next() before the loss function, and use the batch inside"
            )
    for name in _overwritten(function):
        _warn(
            f"the loss function reads and overwrites {name!r}, so each of the K+1 passes would start from the result "
            f"of the previous one: return it, as in (loss, {name}), and assign it after the call"
        )


def checked_once(function: Callable[[], Any], gradient_scale: object) -> Callable[[], Any]:
    """The same function, with a check of the graph of its loss in the first pass."""
    if not callable(function):
        return function
    before = {tensor.grad_fn for tensor in _tensors(function) if tensor.grad_fn is not None}
    is_first_pass = True

    def checked() -> Any:
        nonlocal is_first_pass
        result = function()
        loss = loss_in(result)
        if is_first_pass and isinstance(loss, Tensor):
            is_first_pass = False
            _check_graph(loss, before)
            if gradient_scale == 1.0:
                _look_at_scale(loss)
        return result

    return checked


def _tensors(function: Callable[[], Any]) -> list[Tensor]:
    """The outer tensors that the function uses, including those in lists, tuples and dictionaries."""
    if isinstance(function, partial):
        values = [*function.args, *function.keywords.values()]
    else:
        values = list(_variables(function).values()) if isinstance(function, FunctionType) else []
    inside = [list(value.values()) if isinstance(value, dict) else value for value in values]
    inner = [each for value in inside if isinstance(value, list | tuple) for each in value]
    return [value for value in [*values, *inner] if isinstance(value, Tensor)]


def _check_graph(loss: Tensor, before: set[Any]) -> None:
    """Raise if the loss depends on a node of `before`, the nodes that existed before the call."""
    older = [node for node in _nodes(loss) if node in before] if before else []
    if older:
        raise RuntimeError(
            f"the loss function uses a result ({older[0].name()}) that was computed before it was called, and that "
            "can't be computed again with other weights: compute everything from the inputs inside the function, as in "
            "sharp(lambda: loss_function(model(x), y))"
        )


def _look_at_scale(loss: Tensor) -> None:
    """Warn if its last operation multiplies by a tensor with a large power of two, as a gradient scaler does."""
    node: Any = loss.grad_fn
    if node is None or node.name() != "MulBackward0":
        return
    for factor in factors_of_product(node):
        is_number = factor.numel() == 1 and factor.dtype == torch.float32 and not factor.requires_grad
        if is_number and _is_loss_scale(float(factor)):
            _warn(
                f"the loss function multiplies its loss by {float(factor):g}, as GradScaler.scale does, and this "
                "changes the walk: return the unscaled loss, and give "
                "backward=lambda loss: scaler.scale(loss).backward()"
            )


def warn_of_statistics(loss: object) -> None:
    """Warn if a displaced pass updated running statistics of batch norm, judged by the graph of its loss."""
    if isinstance(loss, Tensor) and any(map(updates_running_statistics, _nodes(loss))):
        warnings.warn(
            "passes at displaced weights count in the running statistics of batch norm, which can harm evaluation: "
            "pass the model instead of its parameters, as in SharpBackward(model), so that only clean passes count",
            UserWarning,
            stacklevel=2,
        )


@contextmanager
def explained() -> Iterator[None]:
    """Replace torch's message about a freed graph by one that names the cause and the cure."""
    try:
        yield
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise RuntimeError(
            "the loss depends on a result of an earlier pass, or on one that was computed before the call: "
            "compute everything from the inputs inside the function"
        ) from error


def _nodes(loss: Tensor) -> Iterator[Any]:
    """Every node of the loss's graph, once."""
    ahead: list[Any] = [loss.grad_fn]
    seen: set[Any] = {None}
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += [function for function, _ in node.next_functions]
            yield node


def _uses(function: FunctionType) -> dict[str, list[str]]:
    """For each outer variable, the loads and stores in the order of the function's code."""
    uses: dict[str, list[str]] = {}
    for instruction in dis.get_instructions(function):
        if instruction.opname in ("LOAD_DEREF", "LOAD_GLOBAL", "STORE_DEREF", "STORE_GLOBAL"):
            uses.setdefault(str(instruction.argval), []).append(instruction.opname.partition("_")[0])
    return uses


def _variables(function: FunctionType) -> dict[str, Any]:
    """The outer variables that the function uses, with their values."""
    known = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return {name: known[name] for name in _uses(function) if name in known}


def _overwritten(function: FunctionType) -> list[str]:
    """Outer variables that are read and then assigned, such as a recurrent state. Ints and None are ignored."""
    values = _variables(function)
    both = [name for name, order in _uses(function).items() if order[0] == "LOAD" and "STORE" in order]
    return [name for name in both if name in values and not isinstance(values[name], int | None)]


def _is_loss_scale(factor: float) -> bool:
    return factor >= _LARGE_SCALE and factor == 2 ** round(torch.tensor(factor).log2().item())


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=4)
