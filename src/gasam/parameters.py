"""Reads and checks the parameters that a user gives: a model, parameters, named parameters or parameter groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from gasam.distributed import check_sharding, is_expanded, is_sharded
from gasam.perturbation import Perturbation, PerturbModule
from gasam.weights import Weights

Parameters = (
    torch.nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[Mapping[str, Any]] | Mapping[str, Any]
)


@dataclass(frozen=True)
class Entry:
    """A parameter, and whether the walk may move it."""

    name: str | None
    tensor: Tensor
    moves: bool


def read(parameters: Parameters) -> list[Entry]:
    """The entries in order, each tensor once. A group is a mapping with `params` and optionally `perturb`."""
    if isinstance(parameters, torch.nn.Module):
        parameters = _movable(parameters)
    elif isinstance(parameters, Tensor) or not isinstance(parameters, Iterable):
        raise TypeError(
            "parameters must be the model, model.named_parameters(), model.parameters() or a list of parameter groups, "
            f"got {type(parameters).__name__}"
        )
    if isinstance(parameters, Mapping):  # a single group, or a dictionary of names
        parameters = [parameters] if "params" in parameters else parameters.items()
    entries: dict[int, Entry] = {}
    for item in parameters:
        group: Mapping[str, Any] = item if isinstance(item, Mapping) else {"params": [item]}
        _check_group(group)
        moves = _checked(group.get("perturb", True), "the key 'perturb' of a parameter group")
        items = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        for given, known in zip(items, group.get("param_names") or [None] * len(items), strict=True):
            name, tensor = given if isinstance(given, tuple) else (known, given)
            if id(tensor) not in entries:
                _check(tensor, moves, f"parameter {len(entries) if name is None else repr(name)}")
                entries[id(tensor)] = Entry(name, tensor, moves)
    if not entries:
        raise ValueError("parameters is empty: a generator can be read only once, so call model.parameters() again")
    return list(entries.values())


def names_in(model: torch.nn.Module) -> dict[int, str]:
    """The name of each parameter by its id, without the prefixes of DistributedDataParallel and torch.compile."""
    wrapped = isinstance(model, DistributedDataParallel | torch.nn.DataParallel)
    front = "module." if wrapped else ""
    return {id(p): name.removeprefix(front).replace("_orig_mod.", "") for name, p in model.named_parameters()}


def _movable(model: torch.nn.Module) -> list[tuple[str, Tensor]]:
    """All parameters except those that can't have a gradient, such as quantised weights under LoRA.

    Frozen parameters stay in the list, because they may be unfrozen later.
    """
    if any(map(is_lazy, model.parameters())):
        raise ValueError(f"{type(model).__name__} has lazy modules without weights yet: run one forward pass first")
    names = names_in(model)
    movable = [p for p in model.parameters() if p.requires_grad or (p.is_floating_point() and p.itemsize >= 2)]
    if not movable:
        raise ValueError(f"{type(model).__name__} has no floating-point parameters: give a model that can be trained")
    return [(names[id(p)], p) for p in movable]


def weights_of(
    entries: list[Entry], perturbation: Perturbation, model: torch.nn.Module | None = None, *, in_place: bool = False
) -> Weights:
    """The weights that the walk may move. The perturbation's `perturb` needs the model."""
    if perturbation.perturb is not None:
        entries = _by_module(entries, perturbation.perturb, model)
    moving = [entry for entry in entries if entry.moves]
    names = None if any(entry.name is None for entry in moving) else [str(entry.name) for entry in moving]
    check_names(perturbation, names)
    return Weights([entry.tensor for entry in moving], names, in_place=in_place)


def _by_module(entries: list[Entry], perturb: PerturbModule, model: torch.nn.Module | None) -> list[Entry]:
    """The entries, of which those move whose module `perturb` chooses."""
    if model is None:
        raise ValueError(
            "the perturbation chooses what moves by module: give the model, as in SharpBackward(model, perturbation) "
            "or SharpnessAware(optimizer, perturbation, model=model)"
        )
    chosen: dict[int, bool] = {}
    for module in model.modules():
        if own := list(module.parameters(recurse=False)):
            moves = _checked(perturb(module), f"perturb of {type(module).__name__}")
            chosen = dict.fromkeys(map(id, own), moves) | chosen  # the first module of a shared parameter decides
    found = [replace(entry, moves=entry.moves and chosen.get(id(entry.tensor), False)) for entry in entries]
    if not any(entry.moves for entry in found):
        name = getattr(perturb, "__name__", repr(perturb))
        raise ValueError(f"no parameter of {type(model).__name__} moves, because perturb={name} leaves out all modules")
    return found


def _checked(value: object, who: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{who} must be True or False, got {value!r}")
    return value


def check_names(perturbation: Perturbation, names: Sequence[str] | None) -> None:
    """Raise if the walk needs the names of modules, and they are missing or not unique."""
    if perturbation.granularity != "module":
        return
    if names is None:
        raise ValueError(
            "granularity 'module' needs the parameters' names: give model.named_parameters() instead of "
            "model.parameters(), to the base optimizer if you use SharpnessAware"
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"granularity 'module' needs each parameter's name once, got {twice!r} twice, as from two models: "
            "give model.named_parameters(prefix=...) with another prefix for each"
        )


def _check_group(group: Mapping[str, Any]) -> None:
    if "params" not in group:
        raise ValueError(f"a parameter group must have the key 'params', got {sorted(map(str, group))}")
    if sizes := group.keys() & {"epsilon", "rho", "budget", "cap"}:
        raise ValueError(
            f"a parameter group has the key {min(sizes)!r}, but the walk has one size: give it to the perturbation, "
            "and write 'perturb': False in a group that must not move"
        )
    if group.get("maximize"):
        raise ValueError("a parameter group has maximize=True: minimise the negative loss instead")


def _check(tensor: object, moves: bool, who: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{who} must be a tensor, got {type(tensor).__name__}")
    if not moves:
        return
    if not tensor.is_floating_point() or tensor.itemsize < 2:
        raise TypeError(
            f"{who} has type {tensor.dtype}, but only real floating-point weights of 16 bits or more can be "
            "moved: leave it out, or put it into a group with 'perturb': False"
        )
    if is_expanded(tensor):
        raise TypeError(f"{who} is an expanded view: train the tensor that it was expanded from")
    if is_sharded(tensor):
        check_sharding(tensor, who)
