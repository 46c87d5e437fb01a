"""Gradient norms during training, by tensor and by layer, as in Figures 4 and 5 of the paper."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gasam.pieces import sum_of_squares, wide

Layers = Mapping[str, str] | Callable[[str], str]
NamedTensors = nn.Module | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]


@dataclass(frozen=True)
class Norms:
    """|g_i|_2 at one step or, if `step` is None, the mean over the steps of an epoch that had a gradient.

    The norm of a layer is the root of the sum of its tensors' squared norms; `whole` is that of all tensors. A norm is
    None if there was no gradient (which differs from a gradient of zero) or if it is not finite.
    """

    epoch: int
    step: int | None
    tensors: dict[str, float | None]
    layers: dict[str, float | None]
    whole: float | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class _Step(NamedTuple):
    epoch: int
    step: int
    norms: Tensor  # of the tensors, the layers and all tensors together
    present: tuple[bool, ...]  # which tensors had a gradient


class _Epoch(NamedTuple):
    total: Tensor  # sum of the norms of its steps
    counts: list[int]  # for each norm, the steps that had it; known without synchronising
    last_step: int


class GradientNorms:
    """Records the norms of the gradients in `.grad` in any training loop, without synchronising with the device.

        norms = GradientNorms(model)
        ...
        loss.backward()
        norms.record(epoch=epoch, step=step)  # before clipping and zero_grad; with a GradScaler after unscale_

    After SharpBackward this is the combined gradient of all passes, which the optimizer uses. Only sparse gradients
    make a GPU synchronise, because they are coalesced first.

    Args:
        model: A module, or its tensors by name.
        layers: Maps the name of a tensor to the name of its layer; by default the module that owns the tensor.
        every_step: False keeps only the sums of each epoch, so that memory does not grow with the number of steps.
    """

    def __init__(self, model: NamedTensors, layers: Layers | None = None, *, every_step: bool = True) -> None:
        weights = _checked_tensors(model)
        self.names, self._weights = list(weights), list(weights.values())
        self.labels = [_label(name, layers) for name in self.names]
        self.layers = list(dict.fromkeys(self.labels))
        self.every_step = every_step
        of_layer = [[label == layer for label in self.labels] for layer in self.layers]
        own, every = torch.eye(len(weights), dtype=torch.bool), torch.ones(1, len(weights), dtype=torch.bool)
        self._members = torch.cat([own, torch.tensor(of_layer), every])  # one row per norm: the tensors it includes
        self._steps: list[_Step] = []
        self._epochs: dict[int, _Epoch] = {}

    @torch.no_grad()
    def record(self, *, epoch: int, step: int) -> None:
        """Record the gradients of one step. Steps must grow within an epoch; otherwise number both as you like."""
        gradients = [weight.grad for weight in self._weights]
        present = tuple(gradient is not None for gradient in gradients)
        norms, found = self._norms(gradients), self._found(present)
        before = self._epochs.get(epoch)
        if before is None:
            self._epochs[epoch] = _Epoch(norms, [int(there) for there in found], step)
        elif step <= before.last_step:
            raise ValueError(
                f"step must grow within an epoch, got {step} after {before.last_step} in epoch {epoch}: "
                "if you resume from a checkpoint, load the state of the recorder as well"
            )
        else:
            counts = [count + there for count, there in zip(before.counts, found, strict=True)]
            self._epochs[epoch] = _Epoch(before.total + norms, counts, step)
        if self.every_step:
            self._steps.append(_Step(epoch, step, norms, present))

    def by_step(self) -> list[Norms]:
        if not self.every_step:
            raise ValueError("every_step=False keeps no single steps: use by_epoch, or record with every_step=True")
        if not self._steps:
            return []
        norms = torch.stack([kept.norms for kept in self._steps]).tolist()
        return [
            self._read(kept.epoch, kept.step, numbers, self._found(kept.present))
            for kept, numbers in zip(self._steps, norms, strict=True)
        ]

    def by_epoch(self) -> list[Norms]:
        return [self.mean(epoch) for epoch in self._epochs]

    def mean(self, epoch: int) -> Norms:
        """The mean over the steps of one epoch."""
        if epoch not in self._epochs:
            raise ValueError(f"epoch must be one that was recorded, one of {sorted(self._epochs)}, got {epoch}")
        kept = self._epochs[epoch]
        means = [total / max(count, 1) for total, count in zip(kept.total.tolist(), kept.counts, strict=True)]
        return self._read(epoch, None, means, kept.counts)

    def as_json(self) -> dict[str, Any]:
        steps = [norms.as_json() for norms in self.by_step()] if self.every_step else None
        return {"steps": steps, "epochs": [mean.as_json() for mean in self.by_epoch()]}

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and plain values, for `torch.load(weights_only=True)`. It does not change later."""
        steps = self._steps
        return {
            "names": list(self.names),
            "labels": list(self.labels),
            "every_step": self.every_step,
            "epochs": {epoch: tuple(kept) for epoch, kept in self._epochs.items()},
            "steps": [(kept.epoch, kept.step) for kept in steps],
            "norms": torch.stack([kept.norms for kept in steps]) if steps else None,
            "present": torch.tensor([kept.present for kept in steps]) if steps else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        ours = {"names": self.names, "labels": self.labels, "every_step": self.every_step}
        for key, value in ours.items():
            if key not in state or state[key] != value:
                raise ValueError(
                    f"state must come from a recorder with the same tensors, layers and every_step, but its {key!r} "
                    "differs: create the recorder with the same arguments"
                )
        device = self._weights[0].device
        self._epochs = {
            epoch: _Epoch(total.to(device), list(counts), last_step)
            for epoch, (total, counts, last_step) in state["epochs"].items()
        }
        self._steps = []
        if state["steps"]:
            saved = zip(state["steps"], state["norms"].to(device), state["present"].tolist(), strict=True)
            self._steps = [_Step(epoch, step, norms, tuple(present)) for (epoch, step), norms, present in saved]

    def _norms(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """The norms of the tensors, the layers and all tensors together, in double precision; 0 without a gradient."""
        device = self._weights[0].device
        self._members = self._members.to(device)
        none = torch.zeros((), device=device)
        squares = torch.stack([none if g is None else squared_norm(g).to(device) for g in gradients]).double()
        # Not a matrix product, because one infinite square would then make every norm NaN.
        return torch.where(self._members, squares, 0.0).sum(1).sqrt_()

    def _found(self, present: Sequence[bool]) -> list[bool]:
        """Which norms exist, given which tensors have a gradient."""
        layers = {label for label, there in zip(self.labels, present, strict=True) if there}
        return [*present, *(layer in layers for layer in self.layers), any(present)]

    def _read(self, epoch: int, step: int | None, norms: Sequence[float], found: Sequence[int]) -> Norms:
        values = [norm if there and math.isfinite(norm) else None for norm, there in zip(norms, found, strict=True)]
        tensors = dict(zip(self.names, values[: len(self.names)], strict=True))
        layers = dict(zip(self.layers, values[len(self.names) : -1], strict=True))
        return Norms(epoch, step, tensors, layers, whole=values[-1])


_NUMBERED = re.compile(r"(?:^|\.)(?:(encoder|decoder)\.)?(?:layers?|blocks?|h)\.(\d+)\.")
_EMBEDDING = re.compile(r"embed|(?:^|\.)(?:shared|wte|wpe)\.")


def transformer_layers(name: str) -> str:
    """The layer of a transformer's parameter: `model.encoder.layers.3.fc1.weight` belongs to "encoder 4".

    Layers count from 1. Without an encoder and a decoder they are called "layer 1" and so on. All other parameters
    belong to "embeddings", which includes a tied output, or to "other".
    """
    numbered = _NUMBERED.search(name)
    if numbered:
        return f"{numbered[1] or 'layer'} {int(numbered[2]) + 1}"
    return "embeddings" if _EMBEDDING.search(name) else "other"


def squared_norm(gradient: Tensor) -> Tensor:
    """|g|^2 on the device of g, in float32 or wider."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return sum_of_squares(values.reshape(-1).to(wide(values.dtype)))


def _label(name: str, layers: Layers | None) -> str:
    if layers is None:
        return name.rpartition(".")[0] or "model"
    if isinstance(layers, Mapping) and name not in layers:
        raise ValueError(f"layers must name the layer of every tensor, but {name!r} is not in it: add it")
    label = layers[name] if isinstance(layers, Mapping) else layers(name)
    if not isinstance(label, str):
        raise TypeError(f"a layer's label must be a string, got {label!r} for {name!r}")
    return label


def _checked_tensors(model: NamedTensors) -> dict[str, Tensor]:
    if isinstance(model, nn.Module):
        model = model.named_parameters()
    pairs = list(model.items() if isinstance(model, Mapping) else model)
    if not pairs:
        raise ValueError("model has no parameters to record: give a model with parameters, or its named_parameters()")
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Tensor)):
            raise TypeError(f"model must be a module or pairs of name and tensor, got a {type(pair).__name__}")
        name, tensor = pair
        sharded = hasattr(tensor, "to_local")
        if sharded or not tensor.is_floating_point():
            found = "a sharded DTensor" if sharded else tensor.dtype
            raise TypeError(f"parameter {name!r} must be a whole tensor of real numbers, got {found}")
    weights = dict(pairs)
    if len(weights) < len(pairs):
        raise ValueError("the names of the parameters must differ: give model.named_parameters()")
    return weights
