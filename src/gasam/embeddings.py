"""FreeLB: adversarial noise on the outputs of word embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from gasam.contexts import standing
from gasam.groups import wide
from gasam.passes import Around, Backward, back, call, check_around, plainly
from gasam.perturbation import Perturbation
from gasam.scales import inverse
from gasam.trace import OFF, Trace
from gasam.walk import shrinkage, steepest_ascent

Start = Literal["zero", "uniform"]


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
        start: The noise of the first pass: "zero", or "uniform" for random noise in the ball.
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
        start: Start = "zero",
        padding: int | None = None,
        example_dim: int = 0,
        backward: Backward = torch.Tensor.backward,
        around: Around = plainly,
    ) -> None:
        self.embeddings = [embeddings] if isinstance(embeddings, nn.Module) else list(embeddings)
        wrong = [type(module).__name__ for module in self.embeddings if not isinstance(module, nn.Embedding)]
        if wrong or not self.embeddings:
            raise TypeError(f"embeddings must be one or more nn.Embedding modules, got {', '.join(wrong) or 'none'}")
        if start not in get_args(Start):
            raise ValueError(f"start must be 'zero' or 'uniform', got {start!r}")
        check_around(around)
        self.perturbation = Perturbation(epsilon=epsilon, norm=norm, scale="one", steps=steps, step_size=step_size)
        self.epsilon, self.enabled = epsilon, True
        self.start, self.padding, self.example_dim = start, padding, example_dim
        self.backward, self.around = backward, around
        self.last: Trace | None = None

    def __call__(self, function: Callable[[], Any]) -> Any:
        if not self.enabled or self.epsilon == 0:
            with self.around(0, True):
                loss, returned = call(function)
                self.backward(loss)
            self.last = Trace([loss.detach().reshape(())], plain=OFF)
            return returned
        steps, noises, losses, norms, first = self.perturbation.steps, list[Noise](), [], [], None
        finite = torch.tensor(True)
        # Random noise comes from a separate generator, so that the model draws the same numbers as in a plain pass.
        seed = standing() if self.start == "uniform" else None
        for k in range(steps + 1):
            with self.around(k, k == steps), self._noisy(noises, k, seed) as hooks:
                loss, returned = call(function)
                hooks.end_forward()
                back(loss, self.backward, 1 / (steps + 1))
            first = returned if k == 0 else first
            losses.append(loss.detach().reshape(()))
            norms.append(torch.stack([noise.values.detach().square().sum() for noise in noises]).sum().sqrt())
            if k < steps:
                finite = self._climb(noises, finite.to(loss.device) & losses[-1].isfinite())
        self.last = Trace(losses, [norm.reshape(1) for norm in norms], finite)
        if seed is not None and seed == standing():  # otherwise the next start would be the same
            torch.rand(())
        return first

    @contextmanager
    def _noisy(self, noises: list[Noise], k: int, seed: int | None) -> Iterator[Hooks]:
        hooks = Hooks(noises, partial(self._new_noise, seed) if k == 0 else None)
        handles = [module.register_forward_hook(hooks.add, with_kwargs=True) for module in self.embeddings]
        try:
            yield hooks
        finally:
            for handle in handles:
                handle.remove()

    def _new_noise(self, seed: int | None, number: int, module: nn.Module, tokens: Tensor, output: Tensor) -> Noise:
        padding = module.padding_idx if self.padding is None else self.padding
        mask = torch.ones_like(tokens) if padding is None else tokens.ne(padding)  # type: ignore[arg-type]
        kept = mask.unsqueeze(-1).expand_as(output).to(wide(output.dtype))
        dims = tuple(i for i in range(output.ndim) if i != self.example_dim % output.ndim)
        values = torch.zeros_like(kept)
        if seed is not None:
            # Divided by m^(1/p), where m counts the numbers of an example, so that every draw lies in the ball.
            size = inverse(kept.sum(dims, keepdim=True).pow(1 / self.perturbation.norm)) * self.epsilon
            generator = torch.Generator(values.device).manual_seed(seed + number)
            values.uniform_(-1, 1, generator=generator).mul_(kept * size)
        return Noise(values.requires_grad_(), kept, dims)

    @torch.no_grad()
    def _climb(self, noises: list[Noise], finite: Tensor) -> Tensor:
        """y = project(y + eta / epsilon d) per example, with y = noise / epsilon; zero if anything is not finite."""
        p, epsilon, stride = self.perturbation.norm, self.epsilon, self.perturbation.stride
        gradients = [torch.zeros_like(n.values) if n.values.grad is None else n.values.grad for n in noises]
        finite = finite & torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
        for noise, gradient in zip(noises, gradients, strict=True):
            toward = direction(gradient * noise.kept, p, noise.dims)
            y = project(noise.values / epsilon + stride * toward, p, noise.dims)
            noise.values.copy_(torch.where(finite, epsilon * y, 0.0))
            noise.values.grad = None
        return finite


class Noise(NamedTuple):
    """The noise of one call of an embedding, a mask that is 0 on padding, and the dimensions of an example."""

    values: Tensor
    kept: Tensor
    dims: tuple[int, ...]


class Hooks:
    """Adds noise to each call of an embedding. The first pass creates it; later passes use it in the same order."""

    def __init__(self, noises: list[Noise], make: Callable[[int, nn.Module, Tensor, Tensor], Noise] | None) -> None:
        self.noises, self.make = noises, make
        self.calls, self.forward = 0, True

    def add(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
        if not torch.is_grad_enabled():
            return None
        if not self.forward:
            raise RuntimeError("FreeLB's embeddings were called again by activation checkpointing: move them out of it")
        if self.make is not None:
            self.noises.append(self.make(self.calls, module, args[0] if args else kwargs["input"], output))
        if self.calls >= len(self.noises) or self.noises[self.calls].values.shape != output.shape:
            raise RuntimeError("a later pass called the embeddings differently: the loss function must use one batch")
        self.calls += 1
        return output + self.noises[self.calls - 1].values.to(output.dtype)

    def end_forward(self) -> None:
        """Later calls come from activation checkpointing in the backward pass."""
        self.forward = False
        if not self.noises:
            raise RuntimeError(
                "the loss function did not call the embeddings with gradients enabled: give FreeLB those that "
                "the model uses; if torch.compile ran the model before, call torch.compiler.reset()"
            )


def direction(h: Tensor, p: float, dims: tuple[int, ...]) -> Tensor:
    """The unit direction of steepest ascent along h for each slice over `dims`; zero if h is not finite."""
    u = steepest_ascent(h, p, h.abs().amax(dims, keepdim=True))
    if p == math.inf:
        return u
    return (u * inverse(torch.linalg.vector_norm(u, p, dims, keepdim=True))).nan_to_num(0.0, 0.0, 0.0)


def project(y: Tensor, p: float, dims: tuple[int, ...]) -> Tensor:
    """Project each slice over `dims` onto the unit ball: clip for p = inf, otherwise rescale."""
    if p == math.inf:
        return y.clamp(-1.0, 1.0)
    return y * shrinkage(torch.linalg.vector_norm(y, p, dims, keepdim=True))
