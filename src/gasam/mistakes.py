"""Mistakes in a loss function that would otherwise go unnoticed, found in its code and in the graph of its loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dis import get_instructions
from functools import partial
from inspect import getclosurevars
from io import IOBase
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from gasam.passes import loss_in
from gasam.torch_private import factors_of_product, updates_running_statistics

_warn = partial(warnings.warn, stacklevel=3)


def look_at_function(function: Callable[[], Any]) -> None:
    """Warn if the function takes its batch from an iterator, or overwrites a variable that it reads first."""
    for name, (value, uses) in _outer_variables(function).items():
        if isinstance(value, Iterator) and not isinstance(value, IOBase):
            _warn(
                f"the loss function uses the iterator {name!r}, so each pass would take another batch: call next() "
                "before the function, and use the batch inside"
            )
        elif uses[0] == "LOAD" and "STORE" in uses and not isinstance(value, int | None):  # not a counter or a cache
            _warn(
                f"the loss function reads and overwrites {name!r}, so each pass would start from the result of the "
                f"previous one: return it, as in (loss, {name}), and assign it after the call"
            )


def checked_once(function: Callable[[], Any], gradient_scale: object) -> Callable[[], Any]:
    """The same function, with a check of the graph of its loss in the first pass."""
    values = [value for value, _ in _outer_variables(function).values()]
    values += [each for value in values if isinstance(value, list | tuple) for each in value]
    earlier: set[Any] = {value.grad_fn for value in values if isinstance(value, Tensor)} - {None}
    passes = count()

    def checked() -> Any:
        result = function()
        loss = loss_in(result)
        if next(passes) == 0 and isinstance(loss, Tensor):
            if earlier and (found := earlier.intersection(_nodes(loss))):
                raise RuntimeError(
                    f"the loss function uses a result ({found.pop().name()}) that was computed before it was called: "
                    "compute everything inside the function, as in sharp(lambda: loss_function(model(x), y))"
                )
            if gradient_scale == 1.0:
                _look_at_scale(loss.grad_fn)
        return result

    return checked if callable(function) else function


def warn_of_statistics(loss: object) -> None:
    """Warn if a displaced pass updated running statistics of batch norm, judged by the graph of its loss."""
    if isinstance(loss, Tensor) and any(map(updates_running_statistics, _nodes(loss))):
        _warn(
            "passes at displaced weights count in the running statistics of batch norm, which can harm evaluation: "
            "pass the model instead of its parameters, as in SharpBackward(model), so that only clean passes count"
        )


def warn_of_gradients(parameters: Iterable[Tensor]) -> None:
    """Warn if there are gradients before the first micro-batch of a step from whose gradient a method learns."""
    if any(parameter.grad is not None for parameter in parameters):
        _warn(
            "a moving average learns from the gradient of a step, and `.grad` is not empty before it: call zero_grad "
            "after each step, and give `accumulation` or begin_step(step, last=False) if several calls make a step"
        )


def _look_at_scale(node: Any) -> None:
    """Warn if the last operation multiplies by a tensor with a large power of two, as a gradient scaler does."""
    for factor in factors_of_product(node) if node is not None and node.name() == "MulBackward0" else ():
        is_number = factor.numel() == 1 and factor.dtype == torch.float32 and not factor.requires_grad
        if is_number and factor >= 256 and factor.log2().frac() == 0:
            _warn(
                f"the loss function multiplies its loss by {float(factor):g}, as GradScaler.scale does: return the "
                "unscaled loss, and give backward=lambda loss: scaler.scale(loss).backward()"
            )


def _nodes(loss: Tensor) -> set[Any]:
    """All nodes of the loss's graph."""
    found: set[Any] = set()
    ahead: set[Any] = {loss.grad_fn}
    while ahead := ahead - found - {None}:
        found |= ahead
        ahead = {function for node in ahead for function, _ in node.next_functions}
    return found


def _outer_variables(function: object) -> dict[str, tuple[Any, list[str]]]:
    """Each outer variable that the function uses: its value, and its "LOAD" and "STORE" in the order of the code."""
    if not isinstance(function, FunctionType):
        return {}
    try:
        known = function.__globals__ | dict(getclosurevars(function).nonlocals)
    except ValueError:  # a variable is not assigned yet
        return {}
    found = dict[str, tuple[Any, list[str]]]()
    for instruction in get_instructions(function):
        how, _, where = instruction.opname.partition("_")
        if how in ("LOAD", "STORE") and where in ("DEREF", "GLOBAL") and instruction.argval in known:
            found.setdefault(instruction.argval, (known[instruction.argval], []))[1].append(how)
    return found
