"""What the caller hands over: parameters, named parameters or groups, read into one list and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gasam.groups import check_names
from gasam.perturbation import Perturbation
from gasam.sharded import check_sharding, is_sharded
from gasam.weights import Weights

Parameters = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[Mapping[str, Any]] | Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    name: str | None
    tensor: Tensor
    perturb: bool

    def describe(self, position: int) -> str:
        return f"parameter {position}" if self.name is None else f"parameter {self.name!r}"


def read(parameters: Parameters) -> list[Entry]:
    """The entries in order, each tensor once; groups are mappings with `params` and, if not moved, `perturb: False`."""
    if isinstance(parameters, Tensor | torch.nn.Module) or not isinstance(parameters, Iterable):
        raise TypeError(
            "parameters must be model.parameters(), model.named_parameters() or a list of groups, "
            f"got {type(parameters).__name__}"
        )
    if isinstance(parameters, Mapping):  # a single group, or a dictionary of names
        parameters = [parameters] if "params" in parameters else parameters.items()
    entries: dict[int, Entry] = {}
    for item in parameters:
        group: Mapping[str, Any] = item if isinstance(item, Mapping) else {"params": [item]}
        perturb = bool(group.get("perturb", True))
        for name, tensor in _named(group):
            entries.setdefault(id(tensor), Entry(name, tensor, perturb))
    if not entries:
        raise ValueError("parameters is empty: a generator such as model.parameters() can be read only once")
    for i, entry in enumerate(entries.values()):
        _check(entry, entry.describe(i))
    return list(entries.values())


def weights_of(entries: list[Entry], perturbation: Perturbation) -> Weights:
    """The tensors that the walk may move."""
    moving = [entry for entry in entries if entry.perturb]
    names = [entry.name for entry in moving if entry.name is not None]
    weights = Weights([entry.tensor for entry in moving], names if len(names) == len(moving) else None)
    check_names(perturbation.granularity, weights.names)
    return weights


def _named(group: Mapping[str, Any]) -> list[tuple[str | None, Tensor]]:
    if "params" not in group:
        raise ValueError(f"a group of parameters must have the key 'params', got {sorted(map(str, group))}")
    params = group["params"]
    items = [params] if isinstance(params, Tensor) else list(params)
    names: list[str | None] = group.get("param_names") or [None] * len(items)
    return [item if isinstance(item, tuple) else (name, item) for name, item in zip(names, items, strict=True)]


def _check(entry: Entry, who: str) -> None:
    if not isinstance(entry.tensor, Tensor):
        raise TypeError(f"{who} must be a tensor, got {type(entry.tensor).__name__}")
    if entry.perturb and not entry.tensor.is_floating_point():
        raise TypeError(
            f"{who} has type {entry.tensor.dtype}, and only real floating-point weights can be moved: "
            "leave it out, or put it into a group with 'perturb': False"
        )
    if entry.perturb and is_sharded(entry.tensor):
        check_sharding(entry.tensor, who)
