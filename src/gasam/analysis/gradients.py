"""Mean gradient norms of training epochs, by tensor and by layer, as in Figures 4 and 5 of the paper."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gasam.family import dot
from gasam.groups import wide


@dataclass(frozen=True)
class Norms:
    """The means of |g_i|_2 over the steps of an epoch that had a gradient.

    The norm of a layer is the root of the sum of its tensors' squared norms; `whole` is that of all tensors. A norm is
    None if there was no gradient (which differs from a gradient of zero) or if it is not finite.
    """

    epoch: int
    tensors: dict[str, float | None]
    layers: dict[str, float | None]
    whole: float | None


class GradientNorms:
    """Records the norms of the gradients in `.grad` in any training loop, without synchronising with the device.

        norms = GradientNorms(model)
        ...
        loss.backward()
        norms.record(epoch)  # before clipping and zero_grad; with a GradScaler after unscale_

    After SharpBackward this is the combined gradient of all passes, which the optimizer uses. Only sparse gradients
    make a GPU synchronise, because they are coalesced first. The memory does not grow with the number of steps.

    Args:
        model: The model, or a part of it.
        layers: Gives the layer of a tensor by its name; by default the module that owns the tensor.
    """

    def __init__(self, model: nn.Module, layers: Callable[[str], str] | None = None) -> None:
        weights = dict(model.named_parameters())
        if not weights:
            raise ValueError("model has no parameters to record: give a model with parameters")
        for name, weight in weights.items():
            if hasattr(weight, "to_local") or not weight.is_floating_point():
                raise TypeError(f"parameter {name!r} must be a whole tensor of real numbers, not sharded or complex")
        self.names, self._weights = list(weights), list(weights.values())
        self.labels = [layers(name) if layers else name.rpartition(".")[0] or "model" for name in self.names]
        self.layers = list(dict.fromkeys(self.labels))
        of_layer = [[label == layer for label in self.labels] for layer in self.layers]
        own, every = torch.eye(len(weights), dtype=torch.bool), torch.ones(1, len(weights), dtype=torch.bool)
        self._members = torch.cat([own, torch.tensor(of_layer), every])  # one row per norm: the tensors it includes
        # Of each epoch, the sum of each norm, and the number of steps that had it, which needs no synchronisation.
        self._epochs: dict[int, tuple[Tensor, list[int]]] = {}

    @torch.no_grad()
    def record(self, epoch: int) -> None:
        """Record the gradients of one step of an epoch."""
        gradients = [weight.grad for weight in self._weights]
        device = self._weights[0].device
        self._members, none = self._members.to(device), torch.zeros((), device=device)
        squares = torch.stack([none if g is None else squared_norm(g).to(device) for g in gradients]).double()
        # Not a matrix product, because one infinite square would then make every norm NaN.
        norms = torch.where(self._members, squares, 0.0).sum(1).sqrt_()
        present = [gradient is not None for gradient in gradients]
        layers = {label for label, there in zip(self.labels, present, strict=True) if there}
        found = [*present, *(layer in layers for layer in self.layers), any(present)]
        total, counts = self._epochs.get(epoch, (torch.zeros_like(norms), [0] * len(found)))
        self._epochs[epoch] = total + norms, [count + there for count, there in zip(counts, found, strict=True)]

    def by_epoch(self) -> list[Norms]:
        return [self.mean(epoch) for epoch in self._epochs]

    def mean(self, epoch: int) -> Norms:
        """The mean over the steps of one epoch."""
        if epoch not in self._epochs:
            raise ValueError(f"epoch must be one that was recorded, one of {sorted(self._epochs)}, got {epoch}")
        total, counts = self._epochs[epoch]
        sums = zip(total.tolist(), counts, strict=True)
        means = [norm / count if count and math.isfinite(norm) else None for norm, count in sums]
        tensors = dict(zip(self.names, means[: len(self.names)], strict=True))
        layers = dict(zip(self.layers, means[len(self.names) : -1], strict=True))
        return Norms(epoch, tensors, layers, whole=means[-1])

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and plain values, for `torch.load(weights_only=True)`. It does not change later."""
        return {"names": list(self.names), "labels": list(self.labels), "epochs": dict(self._epochs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for key, value in {"names": self.names, "labels": self.labels}.items():
            if key not in state or state[key] != value:
                raise ValueError(
                    f"state must come from a recorder with the same tensors and layers, but its {key!r} differ: "
                    "create the recorder with the same arguments"
                )
        device = self._weights[0].device
        self._epochs = {epoch: (total.to(device), list(counts)) for epoch, (total, counts) in state["epochs"].items()}


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
    values = values.to(wide(values.dtype))
    return dot([values], [values])
