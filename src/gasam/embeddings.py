"""FreeLB: adversarial noise on the outputs of word embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

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

    Call it like SharpBackward; `enabled` and `last` have the same meaning. K ascent steps change the noise; the weights
    do not move. After a failed pass, `.grad` still contains the gradients of the passes before it.

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
        self.epsilon, self.enabled = epsilon, True
        self.padding, self.example_dim = padding, example_dim
        self.backward, self.around = backward, around
        self.last: Trace | None = None

    def __call__(self, function: Callable[[], Any]) -> Any:
        if not self.enabled or self.epsilon == 0:
            with self.around(0, True):
                loss, returned = call(function)
                self.backward(loss)
            self.last = Trace([loss.detach().reshape(())], plain=OFF)
            return returned
        steps, noises, losses, norms = self.perturbation.steps, list[Noise](), [], []
        finite, returned = torch.tensor(True), None
        for k in range(steps + 1):
            with self.around(k, k == steps), NoisyPass(self, noises, is_first=k == 0) as noisy:
                loss, result = call(function)
                noisy.end_forward()
                back(loss, self.backward, 1 / (steps + 1))
            returned = result if k == 0 else returned
            losses.append(loss.detach().reshape(()))
            norms.append(torch.stack([noise.values.detach().square().sum() for noise in noises]).sum().sqrt())
            finite = finite.to(loss.device) & losses[-1].isfinite()
            if k < steps:
                finite = self._climb(noises, finite)
        self.last = Trace(losses, [norm.reshape(1) for norm in norms], finite)
        return returned

    @torch.no_grad()
    def _climb(self, noises: list[Noise], finite: Tensor) -> Tensor:
        """y = project(y + eta / epsilon d) per example, with y = noise / epsilon; zero if anything is not finite."""
        p, stride = self.perturbation.norm, self.perturbation.stride
        gradients = [torch.zeros_like(n.values) if n.values.grad is None else n.values.grad for n in noises]
        finite = finite & torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
        for noise, gradient in zip(noises, gradients, strict=True):
            h, dims = gradient * noise.kept, noise.dims
            v = steepest_ascent(h, p, h.abs().amax(dims, keepdim=True))
            y = noise.values / self.epsilon + stride * v * inverse(vector_norm(v, p, dims, keepdim=True))
            y = y.clamp(-1.0, 1.0) if p == math.inf else y * shrinkage(vector_norm(y, p, dims, keepdim=True))
            noise.values.copy_(torch.where(finite, self.epsilon * y, 0.0))
            noise.values.grad = None
        return finite


class Noise(NamedTuple):
    """The noise of one call of an embedding, a mask that is 0 on padding, and the dimensions of an example."""

    values: Tensor
    kept: Tensor
    dims: tuple[int, ...]


class NoisyPass:
    """Adds noise to each call of an embedding. The first pass creates it; later passes use it in the same order."""

    def __init__(self, free: FreeLB, noises: list[Noise], *, is_first: bool) -> None:
        self.free, self.noises, self.is_first = free, noises, is_first
        self.calls, self.in_forward = 0, True

    def __enter__(self) -> NoisyPass:
        self.handles = [module.register_forward_hook(self.add, with_kwargs=True) for module in self.free.embeddings]
        return self

    def __exit__(self, *failure: object) -> None:
        for handle in self.handles:
            handle.remove()

    def add(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
        if not torch.is_grad_enabled():
            return None
        if not self.in_forward:
            raise RuntimeError("FreeLB's embeddings were called again by activation checkpointing: move them out of it")
        if self.is_first:
            self.noises.append(self.zero(module, args[0] if args else kwargs["input"], output))
        if self.calls >= len(self.noises) or self.noises[self.calls].values.shape != output.shape:
            raise RuntimeError("a later pass called the embeddings differently: the loss function must use one batch")
        self.calls += 1
        return output + self.noises[self.calls - 1].values.to(output.dtype)

    def zero(self, module: nn.Module, tokens: Tensor, output: Tensor) -> Noise:
        padding = module.padding_idx if self.free.padding is None else self.free.padding
        mask = torch.ones_like(tokens) if padding is None else tokens.ne(padding)  # type: ignore[arg-type]
        kept = mask.unsqueeze(-1).expand_as(output).to(wide(output.dtype))
        dims = tuple(i for i in range(output.ndim) if i != self.free.example_dim % output.ndim)
        return Noise(torch.zeros_like(kept, requires_grad=True), kept, dims)

    def end_forward(self) -> None:
        """Later calls come from activation checkpointing in the backward pass."""
        self.in_forward = False
        if not self.noises:
            raise RuntimeError(
                "the loss function did not call the embeddings with gradients enabled: give FreeLB those that "
                "the model uses; if torch.compile ran the model before, call torch.compiler.reset()"
            )
