"""Lanczos' method with full reorthogonalisation, which prevents spurious copies of eigenvalues."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
Eigen = tuple[Tensor, Tensor, Tensor]
"""Eigenvalues in descending order, the residual |A v - value v| of each, and whether it is within the tolerance."""

# Values are accepted only this many steps after a random vector was added, and with a basis of this many more vectors
# than values. Before that, the values may be close to eigenvalues other than the largest.
SETTLED = 20
CHECK_EVERY = 10


class Krylov:
    """An orthonormal basis q_0 .. q_m of the Krylov space, and H = Q A Q' in double precision.

    If the space is invariant, a random vector is added to find the eigenvalues of the remaining directions.
    """

    def __init__(self, product: Product, start: Tensor, size: int, generator: torch.Generator) -> None:
        self.product, self.generator = product, generator
        n = start.numel()
        self.size = min(size, n)
        self.basis = start.new_empty(min(self.size + 1, n), n)
        self.basis[0] = start / start.norm()
        self.projected = torch.zeros(self.size, self.size, dtype=torch.float64)
        self.m = 0  # number of known columns of H
        self.rest = 0.0  # norm of the component of A q_(m-1) outside of the basis
        self.since_random = 0
        self.exhausted = False  # A is a multiple of the identity outside of the basis

    @property
    def full(self) -> bool:
        return self.m == self.size

    def step(self) -> None:
        m = self.m
        outside = self.product(self.basis[m])
        before = float(outside.norm())
        if not before < float("inf"):
            raise FloatingPointError("a product with the matrix is not finite: check whether the gradients overflow")
        inside = self._orthogonalise(outside, m)
        self.projected[: m + 1, m] = inside
        self.projected[m, : m + 1] = inside
        self.m += 1
        self.since_random += 1
        self.rest = float(outside.norm())
        if self.rest <= 100 * torch.finfo(outside.dtype).eps * max(before, float(self.projected.abs().max())):
            self.exhausted = self.exhausted or self.since_random == 1
            self.rest, self.since_random = 0.0, 0
            outside = self._random_outside()
        if self.m < len(self.basis):
            self.basis[self.m] = outside / outside.norm()

    def _orthogonalise(self, vector: Tensor, m: int) -> Tensor:
        """Orthogonalise the vector against the basis, in place; return the coefficients. Repeat if much is removed."""
        coefficients = torch.zeros(m + 1, dtype=torch.float64)
        while True:
            norm = float(vector.norm())
            coefficients += _remove(vector, self.basis[: m + 1])
            if float(vector.norm()) > 0.7 * norm or norm == 0:
                return coefficients

    def _random_outside(self) -> Tensor:
        if self.m == self.basis.shape[1]:
            return self.basis[0]  # the basis is complete, and nothing will be stored
        vector = random_normal(self.basis, self.basis.shape[1], self.generator)
        for _ in range(3):
            _remove(vector, self.basis[: self.m])
        return vector

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Descending eigenvalues, the coefficients of their vectors, and the residuals |A v - value v|."""
        values, vectors = torch.linalg.eigh(self.projected[: self.m, : self.m])
        values, vectors = values.flip(0), vectors.flip(1)
        rounding = torch.finfo(self.basis.dtype).eps * values.abs().max()
        return values, vectors, (self.rest * vectors[-1].abs()).clamp(min=float(rounding))

    def restart(self, keep: int) -> None:
        """Replace the basis by the vectors of the `keep` largest values, followed by the vector that was next."""
        values, vectors, _ = self.ritz()
        turn = vectors[:, :keep].T.to(self.basis)
        for columns in torch.split(self.basis, max(1, 2**24 // self.m), dim=1):
            columns[:keep] = turn @ columns[: self.m]
        self.basis[keep] = self.basis[self.m]
        self.projected.zero_()
        self.projected[:keep, :keep] = torch.diag(values[:keep])
        self.m, self.rest = keep, 0.0


def largest(
    product: Product,
    start: Tensor,
    k: int,
    *,
    size: int,
    tolerance: float,
    max_products: int,
    generator: torch.Generator,
) -> Eigen:
    """The k algebraically largest eigenvalues. When the basis has `size` vectors, it restarts from the largest ones."""
    krylov = Krylov(product, start, size, generator)
    n = start.numel()
    for products in range(1, max_products + 1):
        if krylov.full and krylov.size < n:
            krylov.restart(k + (krylov.size - k) // 3)
        krylov.step()
        last = products == max_products or krylov.m == n
        settled = krylov.exhausted or (krylov.since_random >= SETTLED and krylov.m >= min(k + SETTLED, n))
        due = last or (settled and (krylov.full or products % CHECK_EVERY == 0))
        if krylov.m < k or not due:
            continue
        values, _, residuals = krylov.ritz()
        converged = residuals[:k] <= max(tolerance, torch.finfo(start.dtype).eps) * values.abs().max()
        if last or converged.all():
            break
    return values[:k], residuals[:k], converged if settled or krylov.m == n else torch.zeros_like(converged)


def largest_of(matrix: Tensor, k: int, tolerance: float) -> Eigen:
    """The k largest eigenvalues of an explicit symmetric matrix, padded with exact zeros if it has fewer."""
    values, vectors = torch.linalg.eigh(matrix)
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    residuals = (matrix @ vectors - vectors * values).norm(dim=0)
    missing = values.new_zeros(max(0, k - len(values)))
    values, residuals = (torch.cat([found, missing]).cpu() for found in (values, residuals))
    return values, residuals, residuals <= max(tolerance, 1e-12) * values.abs().max()


def quadrature(product: Product, start: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Nodes and weights w of Gauss quadrature: sum w f(node) approximates start' f(A) start / |start|^2."""
    krylov = Krylov(product, start, steps, generator)
    while not krylov.full:
        krylov.step()
        if krylov.rest == 0:
            break
    values, vectors, _ = krylov.ritz()
    return values, vectors[0].square()


def random_normal(like: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Normal random numbers, drawn on the CPU so that they are the same on every device."""
    return torch.randn(n, generator=generator, dtype=like.dtype).to(like.device)


def random_signs(like: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Random entries +1 and -1. The mean of u' A u is the trace, with less variance than for normal u."""
    return torch.randint(2, (n,), generator=generator).mul_(2).sub_(1).to(like)


def _remove(vector: Tensor, directions: Tensor) -> Tensor:
    """Subtract the projection on orthonormal directions, in place, and return its coefficients."""
    coefficients = directions @ vector
    vector.addmv_(directions.T, coefficients, alpha=-1)
    return coefficients.double().cpu()
