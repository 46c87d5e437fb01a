"""Who shares a scale: every group, and which part of each stretch belongs to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gasam.sharded import first_row, local
from gasam.tensors import Slice, SparseRows, Stretch


class Groups:
    """Numbers the groups as the stretches come, and tells each stretch its pieces."""

    def __init__(self, granularity: str, names: dict[int, str]) -> None:
        self.granularity = granularity
        self.names = names
        self.numbers: dict[object, int] = {}
        self.labels: list[str] = []
        self.sizes: list[int] = []
        self.dimensions: list[int] = []
        self.of_pieces: list[int] = []
        self.counted = False

    def count(self, tensors: Sequence[Tensor]) -> None:
        """Every group of whole tensors, and its size, whether or not a part of it comes later."""
        for tensor in tensors:
            if self._has_filters(tensor):
                for i in range(len(tensor)):
                    self._filter(tensor, i, math.prod(tensor.shape[1:]))
            else:
                self._whole(tensor, tensor.numel())
        self.counted = True

    def add(self, stretch: Stretch) -> None:
        """Neighbouring runs of one group are one piece."""
        first, lengths = len(self.of_pieces), list[int]()
        for tensor in stretch.tensors:
            for group, length in self._runs(stretch, tensor):
                if lengths and self.of_pieces[-1] == group:
                    lengths[-1] += length
                else:
                    self.of_pieces.append(group)
                    lengths.append(length)
        stretch.pieces = slice(first, len(self.of_pieces))
        stretch.lengths = torch.tensor(lengths, device=stretch.device) if len(lengths) > 1 else None

    def _runs(self, stretch: Stretch, tensor: Tensor) -> Iterator[tuple[int, int]]:
        """(group, how many weights) in the order they lie."""
        start, stop = (stretch.start, stretch.stop) if isinstance(stretch, Slice) else (0, local(tensor).numel())
        if isinstance(stretch, SparseRows):
            stop = stretch.size
        if self._has_filters(tensor):
            row, first = math.prod(tensor.shape[1:]), first_row(tensor)
            numbers = stretch.rows.tolist() if isinstance(stretch, SparseRows) else range(first, len(tensor))
            for i in range(start // row, -(-stop // row)):
                length = min((i + 1) * row, stop) - max(i * row, start)
                yield self._filter(tensor, numbers[i], length), length
            return
        # The rows that a sparse gradient did not touch are not here, and count.
        yield self._whole(tensor, tensor.numel() if isinstance(stretch, SparseRows) else stop - start), stop - start

    def _has_filters(self, tensor: Tensor) -> bool:
        return self.granularity == "filter" and tensor.ndim >= 2

    def _filter(self, tensor: Tensor, row: int, size: int) -> int:
        return self._group((id(tensor), row), f"{self.names[id(tensor)]}[{row}]", size, tensor.ndim)

    def _whole(self, tensor: Tensor, size: int) -> int:
        name = self.names[id(tensor)]
        module = name.rpartition(".")[0]
        key, label = {"module": (module, module), "model": ("", "(model)")}.get(self.granularity, (id(tensor), name))
        return self._group(key, label, size, tensor.ndim)

    def _group(self, key: object, label: str, size: int, dimensions: int) -> int:
        group = self.numbers.setdefault(key, len(self.numbers))
        if group == len(self.labels):
            self.labels.append(label)
            self.sizes.append(0)
            self.dimensions.append(0)
        self.sizes[group] += 0 if self.counted else size
        self.dimensions[group] = max(self.dimensions[group], dimensions)
        return group


def check_names(granularity: str, names: Sequence[str] | None) -> None:
    if granularity != "module":
        return
    if names is None:
        raise ValueError(
            "granularity 'module' needs the parameters' names: give model.named_parameters() instead of "
            "model.parameters(), to the base optimizer where there is one"
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"granularity 'module' needs each parameter's name once, got {twice!r} twice, as of two models: give "
            "model.named_parameters(prefix=...) with a prefix for each"
        )
