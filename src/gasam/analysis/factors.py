"""Gradients of single examples that need not be made: those of a linear layer are b_i a_i', those of its bias b_i.

a_i is the layer's input for example i, b_i the derivative of its loss by the layer's output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad

from gasam.analysis.lanczos import random_signs
from gasam.analysis.objective import Objective
from gasam.analysis.products import connected

Factors = tuple[Tensor, ...]  # a row for each example: b and, for weights, a
ROUNDINGS = 100


def factored(
    model: nn.Module, objective: Objective, batch: Any, weights: list[nn.Parameter]
) -> tuple[Tensor, dict[int, Factors]]:
    """The batch's losses, and the factors of those weights, by number, whose gradients have them.

    That is not taken on trust: a layer may be called twice, share its weights or see the rows in another order, and
    losses may depend on each other's rows. With c_i random signs, d (sum c_i l_i) / dW must be sum c_i b_i a_i'.
    """
    losses, calls = called(model, objective, batch)
    outputs = [output for _, output in calls.values()]
    try:
        slopes = grad(losses.sum(), outputs, retain_graph=True, materialize_grads=True) if outputs else ()
    except RuntimeError:  # outputs that are no part of the losses' graph, such as those inside of a vmap
        return losses, {}
    factors: dict[Tensor, Factors] = {}
    for (layer, (entered, _)), slope in zip(calls.items(), slopes, strict=True):
        factors |= {layer.weight: (slope, entered)} | ({} if layer.bias is None else {layer.bias: (slope,)})
    numbered = {i: factors[weight] for i, weight in enumerate(weights) if weight in factors}
    chosen = [weights[i] for i in numbered]
    signs = random_signs(losses.detach(), len(losses), torch.Generator().manual_seed(0))
    sums = grad(losses, chosen, signs, retain_graph=True, materialize_grads=True) if chosen else ()
    checked = zip(numbered.items(), sums, strict=True)
    return losses, {i: found for (i, found), expected in checked if agree(found, signs, expected)}


def called(model: nn.Module, objective: Objective, batch: Any) -> tuple[Tensor, dict[nn.Linear, tuple[Tensor, Tensor]]]:
    """The batch's losses, and what entered and left each linear layer that had a row for each."""
    calls: dict[nn.Linear, tuple[Tensor, Tensor]] = {}

    def note(layer: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if inputs and inputs[0].ndim == 2 and output.requires_grad and inputs[0].dtype == output.dtype:
            calls[layer] = inputs[0].detach(), output

    hooks = [module.register_forward_hook(note) for module in model.modules() if isinstance(module, nn.Linear)]
    try:
        losses = connected(objective(model, batch))
    finally:
        for hook in hooks:
            hook.remove()
    return losses, {layer: call for layer, call in calls.items() if len(call[0]) == len(losses)}


def agree(factors: Factors, signs: Tensor, expected: Tensor) -> bool:
    slope = factors[0] * signs[:, None]
    found = slope.T @ factors[1] if len(factors) == 2 else slope.sum(0)
    return bool((found - expected).norm() <= ROUNDINGS * torch.finfo(expected.dtype).eps * expected.norm())
