"""The largest eigenvalues and the spectral density of the Hessian and of the Fisher matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gasam.analysis.lanczos import Eigen, largest, largest_of, quadrature, random_normal, random_signs
from gasam.analysis.objective import (
    Batches,
    Objective,
    check_choice,
    check_number,
    check_whole,
    examined,
    twice_differentiable,
)
from gasam.analysis.per_example import Examples, gram
from gasam.analysis.products import GIBIBYTE, Matrix, Products, Work, check_matrix

Method = Literal["gram", "lanczos", "dense"]
# Up to this many weights it is cheap to compute the whole matrix, and no tolerance is needed.
SMALL = 1000


@dataclass(frozen=True)
class Eigenvalues:
    """The result of `top_eigenvalues`.

    Args:
        values: The k largest eigenvalues in descending order, in double precision.
        residuals: |A v - value v|. An eigenvalue lies within this distance, apart from the rounding of gradients in the
            weights' type. For method "gram", A is the Gram matrix.
        converged: Whether each residual is within the tolerance.
        method: The method that was used.
        examples: The number of examples.
        weights: The number of weights.
        work: The number of products with the matrix; for "gram" the number of per-example gradients.
    """

    values: Tensor
    residuals: Tensor
    converged: Tensor
    method: Method
    examples: int
    weights: int
    work: int


@dataclass(frozen=True)
class Density:
    """The result of `spectral_density`: the density of the eigenvalues, with integral 1.

    sum(node_weights * nodes^j) * weights estimates trace(A^j).

    Args:
        grid: Eigenvalues at which the density is given.
        density: The density on the grid: a sum of normal densities around the nodes.
        nodes: The nodes of the quadrature.
        node_weights: Their weights, with sum 1.
        width: The standard deviation of the normal densities, a hundredth of the range of the nodes.
        trace: The estimated trace of A.
        trace_error: Its standard error over the probes; NaN for a single probe.
        weights: The number of weights.
    """

    grid: Tensor
    density: Tensor
    nodes: Tensor
    node_weights: Tensor
    width: float
    trace: float
    trace_error: float
    weights: int


def top_eigenvalues(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    k: int = 50,
    matrix: Matrix = "empirical_fisher",
    *,
    tolerance: float = 1e-5,
    seed: int = 0,
    method: Method | None = None,
    max_products: int = 2000,
    memory: float = 4.0,
    watch: Callable[[int], object] | None = None,
) -> Eigenvalues:
    """The k algebraically largest eigenvalues; the Hessian also has negative ones.

    With the loss l_i of example i, its outputs z and J_i = dz/dw, the matrices are:
      empirical_fisher  1/N sum (dl_i/dw) (dl_i/dw)'
      fisher            1/N sum J_i' (d2 l_i / dz2) J_i
      hessian           1/N sum d2 l_i / dw2
    For CrossEntropy, `fisher` is the Fisher matrix of the predicted distribution, divided by the number of targets in a
    row. For SquaredError over D numbers, it is that of a normal distribution with variance D/2.

    Args:
        k: The number of eigenvalues.
        matrix: "empirical_fisher", "fisher" or "hessian", as above.
        tolerance: A value has converged when its residual is at most this share of the largest |value|. Its error is
            usually much smaller than its residual.
        seed: Seed of the random start vector of Lanczos, which may miss some of several equal eigenvalues.
        method: "gram" (empirical Fisher only) computes per-example gradients, in factors for linear layers. "lanczos"
            computes a few products per value, "dense" one product per weight. None chooses the cheapest.
        max_products: Lanczos stops after this number of products.
        memory: GiB for blocks of gradients, kept graphs and the basis of Lanczos, which has at least k + 20 vectors.
        watch: Called with the count after each unit of work.
    """
    check_matrix(matrix, objective)
    check_whole("k", k, 1)
    check_number("tolerance", tolerance, least=0)
    if method is not None:
        check_choice("method", method, get_args(Method))
    if method == "gram" and matrix != "empirical_fisher":
        raise ValueError(f"method 'gram' needs matrix 'empirical_fisher', got {matrix!r}: use method None")
    if max_products < k:
        raise ValueError(f"max_products must be at least k, {k}, got {max_products}")
    with _curvature(model, objective, batches, matrix, memory, watch) as (examples, products):
        if k > products.n:
            raise ValueError(f"k must be at most the number of weights that require a gradient, {products.n}, got {k}")
        chosen = method or _cheapest(matrix, k, len(examples), products.n, max_products, memory)
        if chosen == "gram":
            found = largest_of(gram(examples, products, memory * GIBIBYTE), k, tolerance)
        elif chosen == "dense":
            found = largest_of(_formed(products), k, tolerance)
        else:
            found = _by_lanczos(products, k, tolerance, max_products, memory * GIBIBYTE, seed)
        return Eigenvalues(*found, chosen, len(examples), products.n, products.work.done)


def spectral_density(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    matrix: Matrix = "hessian",
    *,
    probes: int = 8,
    steps: int = 80,
    seed: int = 0,
    memory: float = 4.0,
    watch: Callable[[int], object] | None = None,
) -> Density:
    """The density of the eigenvalues, estimated by stochastic Lanczos quadrature.

    For each random vector of signs u, Lanczos gives the nodes and weights of Gauss quadrature for
    u' f(A) u / |u|^2, whose mean is the mean of f over all eigenvalues.

    Args:
        matrix: "hessian", "fisher" or "empirical_fisher"; see `top_eigenvalues`.
        probes: The number of random vectors.
        steps: Steps of Lanczos per vector.
        seed: Seed of the random vectors.
        memory: GiB for kept graphs.
        watch: Called with the count after each product.
    """
    check_matrix(matrix, objective)
    check_whole("probes", probes, 1)
    check_whole("steps", steps, 1)
    generator = torch.Generator().manual_seed(seed)
    with _curvature(model, objective, batches, matrix, memory, watch) as (_, products):
        rules = [
            quadrature(products, random_signs(products.like, products.n, generator), steps, generator)
            for _ in range(probes)
        ]
    traces = torch.stack([nodes @ shares for nodes, shares in rules]) * products.n
    error = float(traces.std() / math.sqrt(probes)) if probes > 1 else math.nan
    nodes = torch.cat([nodes for nodes, _ in rules])
    shares = torch.cat([shares for _, shares in rules]) / probes
    low, high = float(nodes.min()), float(nodes.max())
    width = (high - low or abs(high) or 1.0) / 100
    grid = torch.linspace(low - 5 * width, high + 5 * width, 1024, dtype=torch.float64)
    bells = torch.exp(-0.5 * ((grid[:, None] - nodes) / width).square()) / (width * math.sqrt(2 * math.pi))
    return Density(grid, bells @ shares, nodes, shares, width, float(traces.mean()), error, products.n)


@contextmanager
def _curvature(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    matrix: Matrix,
    memory: float,
    watch: Callable[[int], object] | None,
) -> Iterator[tuple[Examples, Products]]:
    """Yield the examples and the products with their matrix; restore the model afterwards."""
    if not memory > 0:
        raise ValueError(f"memory must be a number of GiB > 0, got {memory}")
    with examined(model, batches) as weights, twice_differentiable(), torch.enable_grad():
        work = Work(watch)
        examples = Examples(model, objective, batches, work)
        if not all(losses.isfinite().all() for losses in examples.losses):
            raise ValueError("losses must be finite, got infinity or NaN: check the weights")
        yield examples, Products(model, objective, batches, weights, matrix, memory * GIBIBYTE, work)


def _cheapest(matrix: Matrix, k: int, examples: int, n: int, max_products: int, memory: float) -> Method:
    """The cheapest method.

    The Gram matrix needs one backward pass per example and N^2 n multiplications. Lanczos needs about 4 k products,
    each with several passes over all examples.
    """
    fits = 4 * 8 * examples**2 <= memory * GIBIBYTE
    if matrix == "empirical_fisher" and examples < n and examples <= 500 + 100 * k and fits:
        return "gram"
    return "dense" if n <= min(SMALL, max_products) else "lanczos"


def _formed(products: Products) -> Tensor:
    """The explicit matrix, for few weights."""
    columns = torch.stack([products(unit) for unit in torch.eye(products.n).to(products.like)]).double()
    return (columns + columns.T) / 2


def _by_lanczos(products: Products, k: int, tolerance: float, max_products: int, memory: float, seed: int) -> Eigen:
    generator = torch.Generator().manual_seed(seed)
    start = random_normal(products.like, products.n, generator)
    room = int(memory // start.nbytes) - 1
    size = max(k + 20, min(room, 8 * k + 40))
    return largest(products, start, k, size=size, tolerance=tolerance, max_products=max_products, generator=generator)
