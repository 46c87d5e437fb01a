"""Sentences of different lengths as tensors: joined for storage, sorted by length, padded in batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def padded(lines: list[Tensor], padding: int) -> Tensor:
    return pad_sequence(lines, batch_first=True, padding_value=padding).long()


def by_length(lines: Sequence[Tensor], rows: int) -> list[list[int]]:
    """Batches of `rows` row numbers of similar length, to reduce padding."""
    order = sorted(range(len(lines)), key=lambda row: len(lines[row]))
    return [order[start : start + rows] for start in range(0, len(order), rows)]


def joined(lines: list[Tensor]) -> tuple[Tensor, Tensor]:
    """All words in one tensor, and the length of each line. One tensor per line would be slow to read from disk."""
    return torch.cat(lines), torch.tensor([len(line) for line in lines])


def separated(words: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    return torch.split(words, lengths.tolist())


def packed(rows: Tensor, lengths: list[int], tokens: int) -> list[Tensor]:
    """Rows, sorted by length, in batches of at most `tokens` tokens including padding."""
    cuts, first = [0], 0
    for row, length in enumerate(lengths):
        if row > first and length * (row - first + 1) > tokens:
            cuts.append(row)
            first = row
    return list(rows.tensor_split(cuts[1:]))
