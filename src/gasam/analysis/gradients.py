"""Gradient norms during training, by tensor and by layer: what Figures 4 and 5 of the paper are drawn from."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gasam.portions import sum_of_squares, wide

Layers = Mapping[str, str] | Callable[[str], str]
Named = nn.Module | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]


@dataclass(frozen=True)
class Norms:
    """|g_i|_2 at one step or, where `step` is None, the mean over an epoch's steps that had a gradient.

    A layer's norm is the root of the sum of its tensors' squares, `whole` that of all. None where there was no gradient
    at all, which is not a gradient of zero, and where the number is not finite.
    """

    epoch: int
    step: int | None
    tensors: dict[str, float | None]
    layers: dict[str, float | None]
    whole: float | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Sum:
    """Of one epoch: which entries had a gradient is known without asking the device, so the counts are plain."""

    total: Tensor
    counts: list[int]
    last: int


@dataclass(frozen=True)
class _Row:
    epoch: int
    step: int
    norms: Tensor
    present: tuple[bool, ...]  # of the tensors


class GradientNorms:
    """Notes the norms of what lies in `.grad`, in any training loop, and never waits for the device.

        norms = GradientNorms(model)
        ...
        loss.backward()
        norms.record(epoch=epoch, step=step)  # before clipping and zero_grad; with a GradScaler after unscale_

    After a sharpness-aware backward that is the folded gradient, the one the optimizer is given.
    `layers` says which layer a tensor belongs to, by its name; else it is the module that owns it.
    `every_step=False` keeps an epoch's sums alone, so that memory does not grow with the steps.
    Sparse gradients are coalesced first, for which a GPU does wait.
    """

    def __init__(self, model: Named, layers: Layers | None = None, *, every_step: bool = True) -> None:
        weights = _named(model)
        self.names, self._weights = list(weights), list(weights.values())
        self.labels = [_label(name, layers) for name in self.names]
        self.layers = list(dict.fromkeys(self.labels))
        self.every_step = every_step
        members = [[i for i, label in enumerate(self.labels) if label == layer] for layer in self.layers]
        self._members = members
        self._order = torch.tensor([i for member in members for i in member])
        self._lengths = torch.tensor([len(member) for member in members])
        self._entries: dict[tuple[bool, ...], list[bool]] = {}
        self._epochs: dict[int, _Sum] = {}
        self._rows: list[_Row] = []

    @torch.no_grad()
    def record(self, *, epoch: int, step: int) -> None:
        """Note the gradients of one step; epochs and steps are numbered as the caller likes, steps upwards."""
        gradients = [weight.grad for weight in self._weights]
        present = tuple(gradient is not None for gradient in gradients)
        norms, found = self._norms(gradients), self._found(present)
        before = self._epochs.get(epoch)
        if before is None:
            self._epochs[epoch] = _Sum(norms, [int(there) for there in found], step)
        elif step <= before.last:
            raise ValueError(
                f"step must grow within an epoch, got {step} after {before.last} in epoch {epoch}: "
                "whoever goes back to a checkpoint must load the recorder's state as well"
            )
        else:
            counts = [count + there for count, there in zip(before.counts, found, strict=True)]
            self._epochs[epoch] = _Sum(before.total + norms, counts, step)
        if self.every_step:
            self._rows.append(_Row(epoch, step, norms, present))

    def by_step(self) -> list[Norms]:
        if not self.every_step:
            raise ValueError("every_step=False keeps no single steps: ask by_epoch, or record with every_step=True")
        if not self._rows:
            return []
        values = torch.stack([row.norms for row in self._rows]).tolist()
        return [
            self._read(row.epoch, row.step, norms, self._found(row.present))
            for row, norms in zip(self._rows, values, strict=True)
        ]

    def by_epoch(self) -> list[Norms]:
        return [self.mean(epoch) for epoch in self._epochs]

    def mean(self, epoch: int) -> Norms:
        """Over the steps of one epoch."""
        if epoch not in self._epochs:
            raise ValueError(f"epoch must be one that was recorded, of {sorted(self._epochs)}, got {epoch}")
        kept = self._epochs[epoch]
        means = [total / max(count, 1) for total, count in zip(kept.total.tolist(), kept.counts, strict=True)]
        return self._read(epoch, None, means, kept.counts)

    def as_json(self) -> dict[str, Any]:
        steps = [row.as_json() for row in self.by_step()] if self.every_step else None
        return {"steps": steps, "epochs": [mean.as_json() for mean in self.by_epoch()]}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, for `torch.load(weights_only=True)`: what is recorded later does not change it."""
        rows = self._rows
        return {
            "names": list(self.names),
            "labels": list(self.labels),
            "every_step": self.every_step,
            "epochs": {epoch: (kept.total, kept.counts, kept.last) for epoch, kept in self._epochs.items()},
            "steps": [(row.epoch, row.step) for row in rows],
            "norms": torch.stack([row.norms for row in rows]) if rows else None,
            "present": torch.tensor([row.present for row in rows]) if rows else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        ours = {"names": self.names, "labels": self.labels, "every_step": self.every_step}
        for key, value in ours.items():
            if key not in state or state[key] != value:
                raise ValueError(
                    f"state must come from a recorder of the same tensors, layers and every_step, and its {key!r} is "
                    "another: make the recorder as it was made then"
                )
        device = self._weights[0].device
        self._epochs = {
            epoch: _Sum(total.to(device), list(counts), last)
            for epoch, (total, counts, last) in state["epochs"].items()
        }
        self._rows = []
        if state["steps"]:
            every = zip(state["steps"], state["norms"].to(device).unbind(), state["present"].tolist(), strict=True)
            self._rows = [_Row(epoch, step, norms, tuple(present)) for (epoch, step), norms, present in every]

    def _norms(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Of tensors, layers and the whole, side by side in double precision; 0 stands where there is none."""
        device = self._weights[0].device
        if self._order.device != device:
            self._order, self._lengths = self._order.to(device), self._lengths.to(device)
        none = torch.zeros((), device=device)
        squares = torch.stack([none if g is None else squared_norm(g).to(device) for g in gradients]).double()
        ordered = squares.index_select(0, self._order)
        layers = torch.segment_reduce(ordered, "sum", lengths=self._lengths, unsafe=True)
        return torch.cat([squares, layers, squares.sum().reshape(1)]).sqrt_()

    def _found(self, present: tuple[bool, ...]) -> list[bool]:
        """Which entries of `_norms` have a gradient; nearly always the same tensors do."""
        if present not in self._entries:
            layers = [any(present[i] for i in member) for member in self._members]
            self._entries[present] = [*present, *layers, any(present)]
        return self._entries[present]

    def _read(self, epoch: int, step: int | None, norms: Sequence[float], found: Sequence[int]) -> Norms:
        values = [norm if there and math.isfinite(norm) else None for norm, there in zip(norms, found, strict=True)]
        tensors, layers = values[: len(self.names)], values[len(self.names) : -1]
        return Norms(
            epoch,
            step,
            dict(zip(self.names, tensors, strict=True)),
            dict(zip(self.layers, layers, strict=True)),
            values[-1],
        )


_NUMBERED = re.compile(r"(?:^|\.)(?:(encoder|decoder)\.)?(?:layers?|blocks?|h)\.(\d+)\.")
_EMBEDDING = re.compile(r"embed|(?:^|\.)(?:shared|wte|wpe)\.")


def transformer_layers(name: str) -> str:
    """`model.encoder.layers.3.fc1.weight` belongs to "encoder 4": layers count from 1, the highest is the last.

    Models without an encoder have "layer 1", ..; the rest is "embeddings", which a tied output belongs to, or "other".
    """
    numbered = _NUMBERED.search(name)
    if numbered:
        return f"{numbered[1] or 'layer'} {int(numbered[2]) + 1}"
    return "embeddings" if _EMBEDDING.search(name) else "other"


def squared_norm(gradient: Tensor) -> Tensor:
    """|g|^2 on its device, in float32 at least."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return sum_of_squares(values.reshape(-1).to(wide(values.dtype)))


def _label(name: str, layers: Layers | None) -> str:
    if layers is None:
        return name.rpartition(".")[0] or "model"
    if isinstance(layers, Mapping):
        if name not in layers:
            raise ValueError(f"layers must name the layer of every tensor, and {name!r} is not in it")
        label = layers[name]
    else:
        label = layers(name)
    if not isinstance(label, str):
        raise TypeError(f"a layer's label must be a string, got {label!r} for {name!r}")
    return label


def _named(model: Named) -> dict[str, Tensor]:
    if isinstance(model, nn.Module):
        model = model.named_parameters()
    pairs = list(model.items() if isinstance(model, Mapping) else model)
    if not pairs:
        raise ValueError("there are no parameters to record: give a model, or its named_parameters()")
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Tensor)):
            raise TypeError(f"model must be a module or pairs of name and tensor, got a {type(pair).__name__}")
    for name, tensor in pairs:
        if not tensor.is_floating_point() or hasattr(tensor, "to_local"):
            raise TypeError(f"parameter {name!r} must be a whole tensor of real numbers, got {_kind(tensor)}")
    weights = dict(pairs)
    if len(weights) < len(pairs):
        raise ValueError("names of parameters must differ from each other: give model.named_parameters()")
    return weights


def _kind(tensor: Tensor) -> str:
    return "a sharded DTensor" if hasattr(tensor, "to_local") else str(tensor.dtype)
