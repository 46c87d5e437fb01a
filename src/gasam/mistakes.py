"""Mistakes in a loss function that would otherwise go unnoticed, found in its code and in the graph of its loss."""

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

_INSIDE = "compute everything from the inputs inside the function, as in sharp(lambda: loss_function(model(x), y))"
_LARGE_SCALE = 256


def look_at_function(function: Callable[[], Any]) -> None:
    """Warn if the function takes its batch from an iterator, or overwrites a variable that it reads first."""
    uses = _uses(function)
    for name, value in _variables(function).items():
        if isinstance(value, Iterator) and not isinstance(value, IOBase):
            _warn(
                f"the loss function uses the iterator {name!r}, so each of the K+1 passes would take another batch: "
                "call next() before the loss function, and use the batch inside"
            )
        # A recurrent state, for example. Counters and what begins as None are no mistake.
        elif uses[name][0] == "LOAD" and "STORE" in uses[name] and not isinstance(value, int | None):
            _warn(
                f"the loss function reads and overwrites {name!r}, so each of the K+1 passes would start from the "
                f"result of the previous one: return it, as in (loss, {name}), and assign it after the call"
            )


def checked_once(function: Callable[[], Any], gradient_scale: object) -> Callable[[], Any]:
    """The same function, with a check of the graph of its loss in the first pass."""
    earlier = {tensor.grad_fn for tensor in _tensors(function)} - {None}
    passes = 0

    def checked() -> Any:
        nonlocal passes
        result, passes = function(), passes + 1
        loss = loss_in(result)
        if passes > 1 or not isinstance(loss, Tensor):
            return result
        for node in _nodes(loss) if earlier else ():
            if node in earlier:
                raise RuntimeError(
                    f"the loss function uses a result ({node.name()}) that was computed before it was called, and that "
                    f"can't be computed again with other weights: {_INSIDE}"
                )
        if gradient_scale == 1.0:
            _look_at_scale(loss)
        return result

    return checked if callable(function) else function


@contextmanager
def explained() -> Iterator[None]:
    """Replace torch's message about a freed graph by one that names the cause and the cure."""
    try:
        yield
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise RuntimeError(
            f"the loss depends on a result of an earlier pass, or on one that was computed before the call: {_INSIDE}"
        ) from error


def warn_of_statistics(loss: object) -> None:
    """Warn if a displaced pass updated running statistics of batch norm, judged by the graph of its loss."""
    if isinstance(loss, Tensor) and any(map(updates_running_statistics, _nodes(loss))):
        _warn(
            "passes at displaced weights count in the running statistics of batch norm, which can harm evaluation: "
            "pass the model instead of its parameters, as in SharpBackward(model), so that only clean passes count"
        )


def _look_at_scale(loss: Tensor) -> None:
    """Warn if the last operation multiplies by a tensor with a large power of two, as a gradient scaler does."""
    node: Any = loss.grad_fn
    for factor in factors_of_product(node) if node is not None and node.name() == "MulBackward0" else ():
        is_number = factor.numel() == 1 and factor.dtype == torch.float32 and not factor.requires_grad
        if is_number and factor >= _LARGE_SCALE and factor.log2().frac() == 0:
            _warn(
                f"the loss function multiplies its loss by {float(factor):g}, as GradScaler.scale does, and this "
                "changes the walk: return the unscaled loss, and give "
                "backward=lambda loss: scaler.scale(loss).backward()"
            )


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


def _uses(function: object) -> dict[str, list[str]]:
    """For each outer variable of the function, "LOAD" and "STORE" in the order of its code."""
    uses: dict[str, list[str]] = {}
    for instruction in dis.get_instructions(function) if isinstance(function, FunctionType) else ():
        if instruction.opname in ("LOAD_DEREF", "LOAD_GLOBAL", "STORE_DEREF", "STORE_GLOBAL"):
            uses.setdefault(str(instruction.argval), []).append(instruction.opname.partition("_")[0])
    return uses


def _variables(function: object) -> dict[str, Any]:
    """The outer variables that the function uses, with their values."""
    if not isinstance(function, FunctionType):
        return {}
    known = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return {name: known[name] for name in _uses(function) if name in known}


def _tensors(function: object) -> list[Tensor]:
    """The outer tensors that the function uses, including those in lists, tuples and dictionaries."""
    if isinstance(function, partial):
        values = [*function.args, *function.keywords.values()]
    else:
        values = list(_variables(function).values())
    for value in list(values):
        if isinstance(value, list | tuple | dict):
            values += value.values() if isinstance(value, dict) else value
    return [value for value in values if isinstance(value, Tensor)]


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=4)
