"""What all classification set-ups share: rows of inputs with labels, cross-entropy and accuracy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.first_use.data import Labelled
from benchmarks.first_use.setup import ACCURACY, Setup, Split, shuffled

EVALUATED_AT_ONCE = 250


@dataclass(frozen=True, kw_only=True)
class Classification(Setup):
    metric = ACCURACY

    @cached_property
    def data(self) -> dict[Split, Labelled]:
        return self.read()

    @abstractmethod
    def read(self) -> dict[Split, Labelled]:
        """The inputs and labels of each split."""

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        scores: Tensor = model(inputs)
        return scores

    def batches(self, order: Generator) -> Iterable[Labelled]:
        inputs, labels = self.data["train"]
        for rows in shuffled(len(labels), self.batch, order):
            yield inputs[rows], labels[rows]

    def loss(self, model: nn.Module, batch: Labelled, carried: Any) -> tuple[Tensor, Any]:
        inputs, labels = batch
        return cross_entropy(self.logits(model, inputs), labels), None

    def score(self, model: nn.Module, split: Split) -> float:
        inputs, labels = self.data[split]
        parts = zip(torch.split(inputs, EVALUATED_AT_ONCE), torch.split(labels, EVALUATED_AT_ONCE), strict=True)
        right = sum(int((self.logits(model, x).argmax(dim=1) == y).sum()) for x, y in parts)
        return 100 * right / len(labels)
