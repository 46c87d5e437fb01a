"""Embeddings with a sparse gradient: only the rows it touches are saved and moved; the others stay as they are."""

from __future__ import annotations

from torch import Tensor


class SparseRows:
    """The touched rows of a parameter: `values` is a copy of them to compute with, `write` puts it back."""

    def __init__(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.parameter = parameter.detach()
        self.rows = parameter.grad.coalesce().indices()[0]
        self.values = self.parameter.index_select(0, self.rows)

    @staticmethod
    def fit(parameter: Tensor) -> bool:
        """Whether the gradient is one of rows. Without any row, or sparse within rows, it is handled as dense."""
        grad = parameter.grad
        if grad is None or not grad.is_sparse:
            return False
        return grad.sparse_dim() == 1 and grad._nnz() > 0

    def of(self, gradient: Tensor) -> Tensor:
        """These rows of another gradient, which may be dense."""
        rows = gradient.coalesce() if gradient.is_sparse else gradient
        return rows.index_select(0, self.rows).to_dense()

    def write(self) -> None:
        self.put(self.values, self.parameter)

    def put(self, values: Tensor, target: Tensor) -> None:
        target.index_copy_(0, self.rows, values)
