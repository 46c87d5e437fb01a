"""Which weights share a T: the groups of a granularity, with their sizes, names and numbers."""

from __future__ import annotations

import math
from typing import Literal, get_args

from torch import Tensor

from gasam.sharded import first_row, local

Granularity = Literal["element", "filter", "layer", "module", "model"]
GRANULARITIES: tuple[str, ...] = get_args(Granularity)


class Groups:
    """The groups of some parameters, numbered from 0.

    `of` has an entry for each parameter: the number of its group, or a range with the number of each of its rows.
    With granularity "element" or "model" the groups are the tensors, for the cap and the trace: T belongs to each
    weight, or to all of them.
    """

    def __init__(self, granularity: str) -> None:
        self.granularity = granularity
        self.of: list[int | range] = []
        self.sizes: list[int] = []  # n_i
        self.dimensions: list[int] = []  # of a group's tensor, the most where there are several
        self.names: list[str] = []  # of a group's tensor, or of its module
        self._numbers: dict[object, int] = {}
        self._rows: list[tuple[int, Tensor | range]] = []  # (number of the first, rows) where each row is a group

    def add(self, parameter: Tensor, name: str, touched: Tensor | None = None) -> None:
        """`touched` are the rows of a sparse gradient: with granularity "filter" the other rows have no group."""
        if self.by_rows(parameter):
            first = len(self.names)
            rows = range(len(parameter)) if touched is None else touched
            here = range(first, first + len(rows))
            if touched is None:  # of a sharded parameter only some rows are in this process
                here = here[first_row(parameter) :][: len(local(parameter))]
            self.of.append(here)
            self._rows.append((first, rows))
            self._append(name, math.prod(parameter.shape[1:]), parameter.ndim, times=len(rows))
            return
        key: object = id(parameter)
        if self.granularity == "module":
            key = name = name.rpartition(".")[0]
        number = self._numbers.setdefault(key, len(self.names))
        if number == len(self.names):
            self._append(name, 0, 0)
        self.of.append(number)
        self.sizes[number] += parameter.numel()
        self.dimensions[number] = max(self.dimensions[number], parameter.ndim)

    def by_rows(self, tensor: Tensor) -> bool:
        return self.granularity == "filter" and tensor.ndim >= 2

    def labels(self) -> list[str]:
        """The names, with the number of the row where each row is a group."""
        labels = list(self.names)
        for first, rows in self._rows:
            for i, row in enumerate(rows if isinstance(rows, range) else rows.tolist(), start=first):
                labels[i] = f"{labels[i]}[{row}]"
        return labels

    def _append(self, name: str, size: int, dimensions: int, times: int = 1) -> None:
        self.names += [name] * times
        self.sizes += [size] * times
        self.dimensions += [dimensions] * times
