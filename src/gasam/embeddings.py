"""FreeLB: adversarial noise on the outputs of word embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from gasam.groups import wide
from gasam.passes import Around, Backward, back, call, check_around, plainly
from gasam.perturbation import Perturbation
from gasam.scales import inverse
from gasam.trace import OFF, Trace
from gasam.walk import shrinkage, steepest_ascent


class FreeLB:
    """Replaces `loss.backward()`: runs K+1 passes with adversarial noise on embeddings, and adds their mean gradient.

    Call it like SharpBackward; `enabled` and `last` have the same meaning. The weights do not move. After a failed
    pass, `.grad` still contains the gradients of the passes before it.

    Args:
        embeddings: The embedding, or several, whose outputs get noise.
        epsilon: Bound on |noise|_norm for each example and each call of an embedding. 0 means plain training.
        norm: p of the noise's norm, > 1 or math.inf.
        steps: K, the number of ascent steps. A training step takes K+1 passes.
        step_size: Size of an ascent step, in the unit of epsilon; None means 1.5 epsilon / steps.
        padding: Index of the padding token, which gets no noise; None means the `padding_idx` of each embedding.
        example_dim: The dimension of the outputs that enumerates examples.
        backward: Called instead of `loss.backward()`; it receives the loss times 1 / (K+1).
        around: A function of (k, last) that returns a context manager for pass k, for example `same_noise()`.
    """

    def __init__(
        self,
        embeddings: nn.Embedding | Iterable[nn.Embedding],
        epsilon: float,
        *,
        norm: float = math.inf,
        steps: int = 1,
        step_size: float | None = None,
        padding: int | None = None,
        example_dim: int = 0,
        backward: Backward = torch.Tensor.backward,
        around: Around = plainly,
    ) -> None:
        self.embeddings = [embeddings] if isinstance(embeddings, nn.Module) else list(embeddings)
        wrong = [type(module).__name__ for module in self.embeddings if not isinstance(module, nn.Embedding)]
        if wrong or not self.embeddings:
            raise TypeError(f"embeddings must be one or more nn.Embedding modules, got {', '.join(wrong) or 'none'}")
        check_around(around)
        self.perturbation = Perturbation(epsilon=epsilon, norm=norm, scale="one", steps=steps, step_size=step_size)
        self.padding, self.example_dim = padding, example_dim
        self.backward, self.around, self.enabled = backward, around, True
        self.last: Trace | None = None

    def __call__(self, function: Callable[[], Any]) -> Any:
        if not self.enabled or self.perturbation.size == 0:
            with self.around(0, True):
                loss, returned = call(function)
                self.backward(loss)
            self.last = Trace([loss.detach().reshape(())], plain=OFF)
            return returned
        steps, noises, losses, norms = self.perturbation.steps, list[Tensor](), [], []
        finite, returned = torch.tensor(True), None
        for k in range(steps + 1):
            with self.around(k, k == steps):
                loss, result = self._noisy_pass(function, noises)
            returned = result if k == 0 else returned
            losses.append(loss.detach().reshape(()))
            norms.append(nn.utils.get_total_norm(noises))
            finite = finite.to(loss.device) & losses[-1].isfinite()
            if k < steps:
                finite = self._climb(noises, finite)
        self.last = Trace(losses, passes=steps + 1, offsets=norms, finite=finite)
        return returned

    def _noisy_pass(self, function: Callable[[], Any], noises: list[Tensor]) -> tuple[Tensor, Any]:
        """Add noise to each call of an embedding. The first pass creates it; later passes use it in the same order."""
        is_first, in_forward, calls = not noises, True, 0

        def add(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
            nonlocal calls
            if not torch.is_grad_enabled():
                return None
            if not in_forward:
                raise RuntimeError("activation checkpointing called FreeLB's embeddings again: move them out of it")
            if is_first:
                noises.append(torch.zeros_like(output, dtype=wide(output.dtype), requires_grad=True))
            if calls >= len(noises) or noises[calls].shape != output.shape:
                raise RuntimeError(
                    "a later pass called the embeddings differently: the loss function must use one batch"
                )
            noise, calls = noises[calls], calls + 1
            padding = module.padding_idx if self.padding is None else self.padding
            if padding is not None:
                noise = noise * (args[0] if args else kwargs["input"]).ne(padding).unsqueeze(-1)
            return output + noise.to(output.dtype)

        with ExitStack() as hooks:
            for module in self.embeddings:
                hooks.enter_context(module.register_forward_hook(add, with_kwargs=True))
            loss, result = call(function)
            in_forward = False  # later calls come from activation checkpointing in the backward pass
            if not noises:
                raise RuntimeError(
                    "the loss function did not call the embeddings with gradients enabled: give FreeLB those that "
                    "the model uses; if torch.compile ran the model before, call torch.compiler.reset()"
                )
            back(loss, self.backward, 1 / (self.perturbation.steps + 1))
        return loss, result

    @torch.no_grad()
    def _climb(self, noises: list[Tensor], finite: Tensor) -> Tensor:
        """y = project(y + eta / epsilon d) per example, with y = noise / epsilon; zero if anything is not finite."""
        p, stride, epsilon = self.perturbation.norm, self.perturbation.relative_step, self.perturbation.size
        gradients = [torch.zeros_like(noise) if noise.grad is None else noise.grad for noise in noises]
        finite = finite & torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
        for noise, h in zip(noises, gradients, strict=True):
            dims = tuple(i for i in range(h.ndim) if i != self.example_dim % h.ndim)
            v = steepest_ascent(h, p, h.abs().amax(dims, keepdim=True))
            y = noise / epsilon + stride * v * inverse(vector_norm(v, p, dims, keepdim=True))
            y = y.clamp(-1.0, 1.0) if p == math.inf else y * shrinkage(vector_norm(y, p, dims, keepdim=True))
            noise.copy_(torch.where(finite, epsilon * y, 0.0))
            noise.grad = None
        return finite
