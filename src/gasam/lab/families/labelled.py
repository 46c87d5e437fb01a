"""The base class of classification on labelled examples: batches, cross-entropy loss and accuracy."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from gasam.analysis.objective import CrossEntropy, Objective
from gasam.lab.data.corpus import Split
from gasam.lab.families.family import Family, Metric, Recipe, Score, Share, drawn
from gasam.lab.families.prediction import ClassPrediction, Prediction, PredictionOptions
from gasam.lab.families.spaces import Space, Span, around

EVALUATED_AT_ONCE = 250


class ClassifierSettings(Recipe):
    """Settings that all classifiers share.

    Args:
        dropout: The dropout probability.
        smoothing: The share of the label that is spread over all classes in the training loss.
    """

    dropout: Share
    smoothing: Share = 0.0

    later: ClassVar[dict[str, Any]] = {"smoothing": 0.0}

    def space(self) -> Space:
        return {
            "learning_rate": around(self.learning_rate, 4),
            "epochs": (max(1, self.epochs // 2), self.epochs, 2 * self.epochs),
            "schedule": ("constant", "linear"),
            "optimizer": ("adamw",),
            "weight_decay": Span(1e-3, 1.0, log=True),
            "dropout": Span(0.0, 0.6),
            "smoothing": (0.0, 0.1),
        }


Settings = TypeVar("Settings", bound=ClassifierSettings)


class Classification(Family[Settings]):
    """Classification of examples; `data[split]` is (inputs, labels)."""

    metric = Metric("accuracy", higher_is_better=True, unit="%")

    def batches(self, order: Generator) -> Sequence[Tensor]:
        """The indices of all rows in random order, in batches."""
        rows = len(self.data["train"][1])
        return torch.split(torch.randperm(rows, generator=order), self.settings.batch)

    def batch(self, chosen: Tensor) -> tuple[Tensor, ...]:
        return self._rows("train", chosen)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...], carried: Any) -> tuple[Tensor, Any]:
        inputs, labels = batch
        return cross_entropy(model(inputs), labels, label_smoothing=self.settings.smoothing), None

    def objective(self) -> Objective:
        return Objective(lambda model, batch: model(batch[0]), CrossEntropy())

    def examples(self, split: Split, rows: int) -> list[tuple[Tensor, ...]]:
        chosen = drawn(rows, len(self.data[split][1]))
        return [self._rows(split, some) for some in torch.split(chosen, self.settings.batch)]

    def measure(self, model: nn.Module, split: Split, rows: int | None = None) -> Score:
        inputs, labels = self.data[split]
        value, count = accuracy(model, inputs[:rows], labels[:rows]), len(labels[:rows])
        share = (value / 100 * count + 1) / (count + 2)  # add-one smoothing, so that the error is not 0 at 0 or 100 %
        return Score(value, 100 * math.sqrt(share * (1 - share) / count))

    def worthless(self, split: Split, rows: int | None = None) -> float:
        """The accuracy of always predicting the most frequent class."""
        labels = self.data[split][1][:rows]
        return 100 * int(labels.bincount().max()) / len(labels)

    @property
    def prediction_batch(self) -> int:
        return EVALUATED_AT_ONCE

    @abstractmethod
    def input_tensor(self, inputs: Sequence[Any]) -> Tensor:
        """Encode inputs for the model."""

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[Any], options: PredictionOptions) -> list[Prediction]:
        device, batch = next(model.parameters()).device, options.batch or self.prediction_batch
        classes, found = self.data.shared["classes"], list[Prediction]()
        for start in range(0, len(inputs), batch):
            scores = model(self.input_tensor(inputs[start : start + batch]).to(device)).double().cpu()
            for best, shares in zip(scores.argmax(dim=1).tolist(), scores.softmax(dim=1).tolist(), strict=True):
                found.append(ClassPrediction(classes[best], dict(zip(classes, shares, strict=True))))
            options.watch(len(found))
        return found

    def _rows(self, split: Split, chosen: Tensor) -> tuple[Tensor, ...]:
        inputs, labels = self.data[split]
        return inputs[chosen], labels[chosen]


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor, rows: int = EVALUATED_AT_ONCE) -> float:
    device = next(model.parameters()).device
    right = sum(
        (model(x.to(device)).argmax(dim=1) == y.to(device)).sum()
        for x, y in zip(torch.split(inputs, rows), torch.split(labels, rows), strict=True)
    )
    return 100 * int(right) / len(labels)
