"""Two substitutions of the paper, measured on a model: a batch's gradient for an example's, the Fisher for the Hessian.

Section 3.2 derives T from E|grad_i l|, the expected norm of one example's gradient, and from H = E[grad l grad l^T].
The algorithm takes the norm of the batch's gradient instead, and no trained network fulfils the second exactly.
"""

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
from gasam.portions import wide


@dataclass(frozen=True)
class TensorNorms:
    """`batch` is |g_i| of a batch's mean loss, the mean over batches weighted by size; `examples` is E|grad_i l|.
    Their ratio is at most 1, and None where gradients are zero up to rounding, as those of the keys' biases in
    attention are."""

    name: str
    size: int
    batch: float
    examples: float
    ratio: float | None


@dataclass(frozen=True)
class NormSubstitution(Result):
    """What |g_i| in place of E|grad_i l| does to T_i = sqrt(n_i) / (|g_i| sqrt(n)).

    A factor common to all tensors can be put into epsilon, so what matters is how the ratios differ: `spread` is the
    standard deviation of their logarithms, `rank_correlation` Spearman's between the T_i of both kinds.
    """

    tensors: tuple[TensorNorms, ...]
    examples: int
    batch_size: float
    factor: float  # the geometric mean of the ratios
    spread: float
    rank_correlation: float | None  # None where there are no two different T_i

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"sentence": self.sentence}

    @property
    def sentence(self) -> str:
        ranks = "" if self.rank_correlation is None else f"; the ranks of T correlate by {self.rank_correlation:.2f}"
        return (
            f"The gradient of {self.batch_size:.4g} examples has {self.factor:.3g} times the norm of one example's "
            f"(unrelated ones would give {self.batch_size**-0.5:.3g}), which epsilon takes up; between tensors the "
            f"factor differs by a standard deviation of {self.spread:.3g} in its logarithm{ranks}."
        )


@dataclass(frozen=True)
class TensorTraces:
    """Traces of one tensor's blocks. The Fisher's is exact, the Hessian's has a standard error.
    `difference` is (fisher - hessian) / |hessian|, None where the Hessian's is zero up to rounding."""

    name: str
    size: int
    hessian: float
    hessian_error: float
    fisher: float
    difference: float | None


@dataclass(frozen=True)
class FisherSubstitution(Result):
    """How far the empirical Fisher F = E[grad l grad l^T] is from the Hessian H of the mean loss.

    `distance` is |H - F| / |H| and `cosine` <H, F> / (|H| |F|) in the Frobenius norm, estimated by probes; a common
    factor does not change the cosine. The tops are the largest eigenvalues, with the residuals |A v - top v| / |top|.
    Ratios to a Hessian of zero are None.
    """

    tensors: tuple[TensorTraces, ...]
    examples: int
    probes: int
    hessian_trace: float
    hessian_trace_error: float  # standard error
    fisher_trace: float
    hessian_top: float
    fisher_top: float
    residuals: tuple[float, float]
    top_ratio: float | None  # of Fisher to Hessian
    distance: float | None
    cosine: float | None

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"sentence": self.sentence}

    @property
    def sentence(self) -> str:
        if self.distance is None or self.cosine is None:
            return "The Hessian is zero, which the empirical Fisher cannot stand in for."
        return (
            f"The empirical Fisher lies {self.distance:.3g} of the Hessian's norm away from it, at a cosine of "
            f"{self.cosine:.2f}; its trace is {self.fisher_trace:.3g} for {self.hessian_trace:.3g}, its largest "
            f"eigenvalue {self.fisher_top:.3g} for {self.hessian_top:.3g} ({self.probes} probes)."
        )


def norm_substitution(model: nn.Module, objective: Objective, batches: Batches) -> NormSubstitution:
    """Measured for batches of the size that is given, in eval mode."""
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
        raise ValueError("no tensor has a gradient in any batch: there are no norms to compare")
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
    """By `probes` random vectors of signs, and at most `iterations` steps of Lanczos for each eigenvalue.

    With a vector v of random signs E[v_i (H v)_i] is the trace of block i, E|A v|^2 the squared Frobenius norm of A.
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
    """The largest eigenvalue with its sign, and its residual |A v - top v| / |top|, which bounds its error."""
    draw = torch.Generator().manual_seed(0)
    values, residuals, _ = largest(
        product, start, 1, size=iterations, tolerance=1e-4, max_products=iterations, generator=draw
    )
    value, residual = float(values), float(residuals)
    return value, residual / abs(value) if value else residual


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's; None where all values of a side are equal."""
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
    """Each probe's v_i (H v)_i by tensor, and the sums of |(H - F) v|^2, |H v|^2, |F v|^2 and (H v)(F v)."""
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
    """Whether a tensor's value is more than terms that cancel leave behind: 16 roundings of its module's largest."""
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
            raise ValueError(f"the gradient of {name!r} is not finite: take a model and examples whose loss is finite")
