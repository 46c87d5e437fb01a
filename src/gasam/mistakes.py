"""Mistakes that would stay silent, found in the first call from the loss function's code and its loss's graph."""

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
    """Warn if it takes its batch from an iterator, or overwrites a variable that it also reads."""
    if not isinstance(function, FunctionType):
        return
    for name, value in _variables(function).items():
        if isinstance(value, Iterator) and not isinstance(value, IOBase):
            _warn(
                f"the loss function uses the iterator {name!r}: each of the K+1 passes would take another batch: call "
                "next() before, and use the batch inside"
            )
    for name in _overwritten(function):
        _warn(
            f"the loss function reads and overwrites {name!r}: each of the K+1 passes would start from what the "
            f"previous one left: return it, as in (loss, {name}), and assign it after the call"
        )


def checked_once(function: Callable[[], Any], gradient_scale: object) -> Callable[[], Any]:
    """The same function, with a look at the graph of its loss in the first pass."""
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
    """Tensors from outside that the function uses, also in lists, tuples and dictionaries."""
    if isinstance(function, partial):
        values = [*function.args, *function.keywords.values()]
    else:
        values = list(_variables(function).values()) if isinstance(function, FunctionType) else []
    inside = [list(value.values()) if isinstance(value, dict) else value for value in values]
    inner = [each for value in inside if isinstance(value, list | tuple) for each in value]
    return [value for value in [*values, *inner] if isinstance(value, Tensor)]


def _check_graph(loss: Tensor, before: set[Any]) -> None:
    """`before` has nodes from before the call: the loss must not come from them."""
    older = [node for node in _nodes(loss) if node in before] if before else []
    if older:
        raise RuntimeError(
            "the loss function uses a result that was computed before it was called, which can't be computed again "
            f"with other weights ({older[0].name()}): compute everything from the inputs inside the function, as in "
            "sharp(lambda: loss_function(model(x), y))"
        )


def _look_at_scale(loss: Tensor) -> None:
    """Warn if its last operation looks like a gradient scaler's: a product with a large power of two in a tensor."""
    node: Any = loss.grad_fn
    if node is None or node.name() != "MulBackward0":
        return
    for factor in factors_of_product(node):
        is_number = factor.numel() == 1 and factor.dtype == torch.float32 and not factor.requires_grad
        if is_number and _is_loss_scale(float(factor)):
            _warn(
                f"the loss function multiplies its loss by {float(factor):g}, as GradScaler.scale does, and so the "
                "walk changes with it: return the loss as it is, and give "
                "backward=lambda loss: scaler.scale(loss).backward()"
            )


def warn_of_statistics(loss: object) -> None:
    """Warn if the graph of a displaced pass's loss has batch norm with running statistics, in training."""
    if isinstance(loss, Tensor) and any(map(updates_running_statistics, _nodes(loss))):
        warnings.warn(
            "passes at displaced weights count in the running statistics of batch norm, and may spoil them for "
            "evaluation: pass the model instead of its parameters, as in SharpBackward(model), and only the clean "
            "passes count",
            UserWarning,
            stacklevel=2,
        )


@contextmanager
def explained() -> Iterator[None]:
    """Around a later pass: torch's message about a graph that is gone gets its reason."""
    try:
        yield
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise RuntimeError(
            "the loss was computed from a result of an earlier pass, or from one that was computed before the call: "
            "compute everything from the inputs inside the function"
        ) from error


def _nodes(loss: Tensor) -> Iterator[Any]:
    """Every node of its graph once."""
    ahead: list[Any] = [loss.grad_fn]
    seen: set[Any] = {None}
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += [function for function, _ in node.next_functions]
            yield node


def _uses(function: FunctionType) -> dict[str, list[str]]:
    """For each variable from outside, whether the function loads or stores it, in the order of its code."""
    uses: dict[str, list[str]] = {}
    for instruction in dis.get_instructions(function):
        if instruction.opname in ("LOAD_DEREF", "LOAD_GLOBAL", "STORE_DEREF", "STORE_GLOBAL"):
            uses.setdefault(str(instruction.argval), []).append(instruction.opname.partition("_")[0])
    return uses


def _variables(function: FunctionType) -> dict[str, Any]:
    """The variables from outside that the function uses, with their values."""
    known = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return {name: known[name] for name in _uses(function) if name in known}


def _overwritten(function: FunctionType) -> list[str]:
    """Variables from outside that are read and then assigned, such as a recurrent state; not counters and caches."""
    values = _variables(function)
    both = [name for name, order in _uses(function).items() if order[0] == "LOAD" and "STORE" in order]
    return [name for name in both if name in values and not isinstance(values[name], int | None)]


def _is_loss_scale(factor: float) -> bool:
    return factor >= _LARGE_SCALE and factor == 2 ** round(torch.tensor(factor).log2().item())


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=4)
