"""Tests of two approximations of section 3.2 of the paper: batch gradients for examples, Fisher for Hessian."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad

from gasam.analysis.checks import check_whole
from gasam.analysis.examples import example_gradients, squares
from gasam.analysis.lanczos import Product, largest, random_normal, random_signs
from gasam.analysis.objective import Batches, Named, Objective, each, examined, twice_differentiable
from gasam.analysis.products import GIBIBYTE, Products, connected
from gasam.analysis.results import Result
from gasam.pieces import wide


@dataclass(frozen=True)
class TensorNorms:
    """Gradient norms of one tensor.

    `batch` is |g_i| of a batch's mean loss, averaged over batches by their size. `examples` is E|grad_i l|. `ratio` is
    `batch` / `examples`, at most 1. It is None if the gradients are only rounding errors, as for the biases of the keys
    in attention.
    """

    name: str
    size: int
    batch: float
    examples: float
    ratio: float | None


@dataclass(frozen=True)
class NormSubstitution(Result):
    """How T_i = sqrt(n_i) / (|g_i| sqrt(n)) changes if |g_i| is a batch's gradient norm instead of E|grad_i l|.

    Section 3.2 of the paper derives T from E|grad_i l|, the expected norm of one example's gradient, but the algorithm
    uses the norm of the batch's gradient. A factor common to all tensors can be absorbed into epsilon, so only the
    differences between the ratios of the two norms matter.

    Args:
        tensors: The norms of each tensor.
        examples: The number of examples.
        batch_size: The mean number of examples in a batch.
        factor: Geometric mean of the ratios.
        spread: Standard deviation of the logarithms of the ratios.
        rank_correlation: Spearman's rank correlation between the T_i of both kinds; None if all T_i are equal.
    """

    tensors: tuple[TensorNorms, ...]
    examples: int
    batch_size: float
    factor: float
    spread: float
    rank_correlation: float | None

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"sentence": self.sentence}

    @property
    def sentence(self) -> str:
        ranks = "" if self.rank_correlation is None else f"; the rank correlation of T is {self.rank_correlation:.2f}"
        return (
            f"The mean gradient of {self.batch_size:.4g} examples has {self.factor:.3g} times the norm of one "
            f"example's gradient (independent ones would give {self.batch_size**-0.5:.3g}), which epsilon can absorb; "
            f"the standard deviation of the factor's logarithm between tensors is {self.spread:.3g}{ranks}."
        )


@dataclass(frozen=True)
class TensorTraces:
    """Traces of one tensor's diagonal blocks.

    The trace of the Fisher matrix is exact; that of the Hessian is an estimate with a standard error. `difference` is
    (fisher - hessian) / |hessian|, or None if the trace of the Hessian is only a rounding error.
    """

    name: str
    size: int
    hessian: float
    hessian_error: float
    fisher: float
    difference: float | None


@dataclass(frozen=True)
class FisherSubstitution(Result):
    """How far the empirical Fisher F = E[grad l grad l^T] is from the Hessian H of the mean loss.

    Section 3.2 of the paper assumes that they are equal, which no trained network satisfies exactly.

    Args:
        tensors: The traces of each tensor's diagonal blocks.
        examples: The number of examples.
        probes: The number of random vectors.
        hessian_trace: Estimated trace of H.
        hessian_trace_error: Its standard error.
        fisher_trace: Exact trace of F.
        hessian_top: Largest eigenvalue of H.
        fisher_top: Largest eigenvalue of F.
        residuals: |A v - top v| / |top| for H and F.
        top_ratio: `fisher_top` / `hessian_top`; None if `hessian_top` is zero.
        distance: |H - F| / |H| in the Frobenius norm, estimated by the probes; None if H is zero.
        cosine: <H, F> / (|H| |F|), which does not depend on a common factor; None if H or F is zero.
    """

    tensors: tuple[TensorTraces, ...]
    examples: int
    probes: int
    hessian_trace: float
    hessian_trace_error: float
    fisher_trace: float
    hessian_top: float
    fisher_top: float
    residuals: tuple[float, float]
    top_ratio: float | None
    distance: float | None
    cosine: float | None

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"sentence": self.sentence}

    @property
    def sentence(self) -> str:
        if self.distance is None or self.cosine is None:
            return "The Hessian or the empirical Fisher is zero, so they can't be compared."
        return (
            f"The distance of the empirical Fisher from the Hessian is {self.distance:.3g} of the Hessian's norm, and "
            f"their cosine is {self.cosine:.2f}; the trace is {self.fisher_trace:.3g} instead of "
            f"{self.hessian_trace:.3g}, and the largest eigenvalue {self.fisher_top:.3g} instead of "
            f"{self.hessian_top:.3g} ({self.probes} probes)."
        )


def norm_substitution(model: nn.Module, objective: Objective, batches: Batches) -> NormSubstitution:
    """Compare the gradient norms of batches with those of single examples, in eval mode.

    Args:
        model: The model.
        objective: Computes the losses.
        batches: The batches, as an iterable that can be read repeatedly. The result depends on their size.
    """
    with examined(model, batches) as named, torch.enable_grad():
        weights = list(named.values())
        joint = torch.zeros(len(weights), dtype=torch.float64)
        single = torch.zeros_like(joint)
        sizes = []
        for batch in each(batches):
            losses = connected(objective(model, batch))
            whole = grad(losses.mean(), weights, retain_graph=True, allow_unused=True)
            joint += len(losses) * squares(whole).sqrt()
            every = example_gradients(model, objective, batch, losses, weights)
            single += sum(squares(gradients).sqrt() for gradients in every)
            sizes.append(len(losses))
    _check_gradients(named, single)
    joint, single = joint / sum(sizes), single / sum(sizes)
    tensors = []
    columns = zip(named.items(), joint.tolist(), single.tolist(), _beyond_rounding(named, single), strict=True)
    for (name, weight), of_batch, of_examples, is_real in columns:
        ratio = of_batch / of_examples if is_real else None
        tensors.append(TensorNorms(name, weight.numel(), of_batch, of_examples, ratio))
    logs = [math.log(t.ratio) for t in tensors if t.ratio]
    if not logs:
        raise ValueError("no tensor has a gradient in any batch: give batches whose losses depend on the weights")
    ranks = rank_correlation(
        [math.sqrt(t.size) / t.batch for t in tensors if t.ratio],
        [math.sqrt(t.size) / t.examples for t in tensors if t.ratio],
    )
    factor, spread = math.exp(fmean(logs)), pstdev(logs)
    return NormSubstitution(tuple(tensors), sum(sizes), fmean(sizes), factor, spread, ranks)


def fisher_substitution(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    *,
    probes: int = 16,
    iterations: int = 30,
    seed: int = 0,
) -> FisherSubstitution:
    """Compare the empirical Fisher matrix with the Hessian, in eval mode.

    For a vector v of random signs, E[v_i (H v)_i] is the trace of block i, and E|A v|^2 is the squared Frobenius norm
    of A.

    Args:
        model: The model.
        objective: Computes the losses.
        batches: All examples, as an iterable that can be read repeatedly.
        probes: The number of random vectors, at least 2.
        iterations: Largest number of Lanczos steps for each eigenvalue.
        seed: Seed of the random vectors.
    """
    check_whole("probes", probes, 2)
    check_whole("iterations", iterations, 1)
    with examined(model, batches) as named, twice_differentiable(), torch.enable_grad():
        exact, rows = _fisher_traces(model, objective, batches, list(named.values()))
        _check_gradients(named, exact)
        draw = torch.Generator().manual_seed(seed)
        H = Products(model, objective, batches, named, "hessian", memory=2 * GIBIBYTE)  # noqa: N806
        F = Products(model, objective, batches, named, "empirical_fisher", memory=2 * GIBIBYTE)  # noqa: N806
        traces, (away, hessian, fisher, both) = _probed(H, F, probes, draw)
        start = random_normal(H.like.double(), H.n, draw)
        hessian_top, hessian_residual = top_eigenvalue(H, start, iterations)
        fisher_top, fisher_residual = top_eigenvalue(F, start, iterations)
    tensors = []
    means, errors = traces.mean(0), traces.std(0) / math.sqrt(probes)
    columns = zip(means.tolist(), errors.tolist(), exact.tolist(), _beyond_rounding(named, means), strict=True)
    for (name, weight), (h, error, f, is_real) in zip(named.items(), columns, strict=True):
        tensors.append(TensorTraces(name, weight.numel(), h, error, f, (f - h) / abs(h) if is_real else None))
    return FisherSubstitution(
        tuple(tensors),
        rows,
        probes,
        hessian_trace=sum(t.hessian for t in tensors),
        hessian_trace_error=float(traces.sum(1).std()) / math.sqrt(probes),
        fisher_trace=sum(t.fisher for t in tensors),
        hessian_top=hessian_top,
        fisher_top=fisher_top,
        residuals=(hessian_residual, fisher_residual),
        top_ratio=fisher_top / hessian_top if hessian_top else None,
        distance=math.sqrt(away / hessian) if hessian else None,
        cosine=both / math.sqrt(hessian * fisher) if hessian and fisher else None,
    )


def top_eigenvalue(product: Product, start: Tensor, iterations: int) -> tuple[float, float]:
    """The algebraically largest eigenvalue, and its residual |A v - top v| / |top|, which bounds its error."""
    draw = torch.Generator().manual_seed(0)
    values, residuals, _ = largest(
        product, start, 1, size=iterations, tolerance=1e-4, max_products=iterations, generator=draw
    )
    value, residual = float(values), float(residuals)
    return value, residual / abs(value) if value else residual


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None if all values of one sequence are equal."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    from scipy.stats import spearmanr  # type: ignore[import-untyped]

    return float(spearmanr(first, second).statistic)


def _fisher_traces(
    model: nn.Module, objective: Objective, batches: Batches, weights: list[nn.Parameter]
) -> tuple[Tensor, int]:
    """E|grad_i l|^2, the exact trace of each tensor's block of the empirical Fisher, and the number of examples."""
    total, rows = torch.zeros(len(weights), dtype=torch.float64), 0
    for batch in each(batches):
        losses = connected(objective(model, batch))
        total += sum(map(squares, example_gradients(model, objective, batch, losses, weights)))
        rows += len(losses)
    return total / rows, rows


def _probed(hessian: Products, fisher: Products, probes: int, draw: torch.Generator) -> tuple[Tensor, list[float]]:
    """v_i (H v)_i of each probe and tensor, and the sums of |(H - F) v|^2, |H v|^2, |F v|^2 and (H v)(F v)."""
    traces, sums = [], torch.zeros(4, dtype=torch.float64)
    sizes = [weight.numel() for weight in hessian.weights]
    for _ in range(probes):
        v = random_signs(hessian.like.double(), hessian.n, draw)
        h, f = hessian(v), fisher(v)
        traces.append(torch.stack([part.sum() for part in torch.split(v * h, sizes)]).cpu())
        away = h - f
        sums += torch.stack([away @ away, h @ h, f @ f, h @ f]).cpu()
    return torch.stack(traces), sums.tolist()


def _beyond_rounding(named: Named, values: Tensor) -> list[bool]:
    """Whether each value exceeds the rounding error of terms that cancel: 16 eps of the largest value in its module."""
    sizes = values.abs().tolist()
    owners = [name.rpartition(".")[0] for name in named]
    largest_of_owner = dict[str, float]()
    for owner, size in zip(owners, sizes, strict=True):
        largest_of_owner[owner] = max(size, largest_of_owner.get(owner, 0.0))
    limits = [16 * torch.finfo(wide(weight.dtype)).eps for weight in named.values()]
    return [size > limit * largest_of_owner[owner] for size, limit, owner in zip(sizes, limits, owners, strict=True)]


def _check_gradients(named: Named, values: Tensor) -> None:
    for name, finite in zip(named, values.isfinite().tolist(), strict=True):
        if not finite:
            raise ValueError(f"the gradient of {name!r} is not finite: give a model and examples with a finite loss")
