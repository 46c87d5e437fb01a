"""Reads and checks the parameters that a user gives: a model, parameters, named parameters or parameter groups."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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


class Entry(NamedTuple):
    """A parameter, and whether the walk may move it."""

    name: str | None
    tensor: Tensor
    moves: bool


def read(parameters: Parameters) -> list[Entry]:
    """The entries in order, each tensor once. A group is a mapping with `params` and optionally `perturb`."""
    kind = type(parameters).__name__
    if isinstance(parameters, torch.nn.Module):
        if any(map(is_lazy, parameters.parameters())):
            raise ValueError(f"{kind} has lazy modules without weights yet: run one forward pass first")
        names = names_in(parameters)
        # Without those that can't have a gradient, such as quantised weights under LoRA. Frozen ones may thaw later.
        parameters = [(names[id(p)], p) for p in parameters.parameters() if p.requires_grad or _can_move(p)]
    elif isinstance(parameters, Tensor) or not isinstance(parameters, Iterable):
        raise TypeError(f"parameters must be a model, its (named) parameters or a list of parameter groups, got {kind}")
    if isinstance(parameters, Mapping):  # a single group, or a dictionary of names
        parameters = [parameters] if "params" in parameters else parameters.items()
    entries: dict[int, Entry] = {}
    for item in parameters:
        group: Mapping[str, Any] = item if isinstance(item, Mapping) else {"params": [item]}
        _check_group(group)
        moves: bool = group.get("perturb", True)
        items = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        for given, known in zip(items, group.get("param_names") or [None] * len(items), strict=True):
            name, tensor = given if isinstance(given, tuple) else (known, given)
            if id(tensor) not in entries:
                _check(tensor, moves, f"parameter {len(entries) if name is None else repr(name)}")
                entries[id(tensor)] = Entry(name, tensor, moves)
    if not entries:
        raise ValueError("parameters is empty: give a model with weights; a generator can be read only once")
    return list(entries.values())


def names_in(model: torch.nn.Module) -> dict[int, str]:
    """The name of each parameter by its id, without the prefixes of DistributedDataParallel and torch.compile."""
    front = "module." if isinstance(model, DistributedDataParallel | torch.nn.DataParallel) else ""
    return {id(p): name.removeprefix(front).replace("_orig_mod.", "") for name, p in model.named_parameters()}


def _can_move(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.itemsize >= 2


def weights_of(
    entries: list[Entry], perturbation: Perturbation, model: torch.nn.Module | None = None, *, in_place: bool = False
) -> Weights:
    """The weights that the walk may move, with their names in the model. `perturb` needs the model."""
    moving = [entry for entry in entries if entry.moves]
    if perturbation.perturb is not None:
        chosen = _chosen(model, perturbation.perturb)
        moving = [entry for entry in moving if chosen.get(id(entry.tensor), False)]
        if not moving:
            raise ValueError(f"no parameter of {type(model).__name__} moves: the option `perturb` leaves out all")
    known = {} if model is None else names_in(model)
    found = [known.get(id(entry.tensor), entry.name) for entry in moving]
    names = None if None in found else [str(name) for name in found]
    if perturbation.granularity == "module" and names is None:
        raise ValueError("granularity 'module' needs names: give model.named_parameters() or the model itself")
    return Weights([entry.tensor for entry in moving], names, in_place=in_place)


def _chosen(model: torch.nn.Module | None, perturb: PerturbModule) -> dict[int, bool]:
    """Whether `perturb` chooses the module of a parameter, by the parameter's id."""
    if model is None:
        raise ValueError("`perturb` needs the model, as in SharpBackward(model) or SharpnessAware(base, model=model)")
    chosen: dict[int, bool] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            chosen.setdefault(id(parameter), perturb(module))  # the first module of a shared parameter decides
    return chosen


def _check_group(group: Mapping[str, Any]) -> None:
    if "params" not in group:
        raise ValueError(f"a parameter group must have the key 'params', got {sorted(map(str, group))}")
    if sizes := group.keys() & {"epsilon", "rho", "budget", "cap"}:
        raise ValueError(
            f"a parameter group has the key {min(sizes)!r}, but the walk has one size: give it to the perturbation, "
            "and write 'perturb': False in a group that must not move"
        )
    if group.get("perturb", True) not in (True, False):
        raise ValueError(f"the key 'perturb' of a parameter group must be True or False, got {group['perturb']!r}")
    if group.get("maximize"):
        raise ValueError("a parameter group has maximize=True: minimise the negative loss instead")


def _check(tensor: object, moves: bool, who: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{who} must be a tensor, got {type(tensor).__name__}")
    if not moves:
        return
    if not _can_move(tensor):
        raise TypeError(
            f"{who} has type {tensor.dtype}, but only real floating-point weights of 16 bits or more can be "
            "moved: leave it out, or put it into a group with 'perturb': False"
        )
    if is_expanded(tensor):
        raise TypeError(f"{who} is an expanded view: train the tensor that it was expanded from")
    if is_sharded(tensor):
        check_sharding(tensor, who)
