"""Image classification by a multi-layer perceptron, judged by accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from gasam.analysis.objective import Objective
from gasam.experiments.data.corpus import SPLITS, Corpus, Split
from gasam.experiments.families import Encoded, Family, Metric, Recipe
from gasam.experiments.families.classification import (
    LABELLED,
    accuracy,
    share_of_the_commonest,
    shuffled,
    some,
    some_batches,
)


@dataclass(frozen=True, kw_only=True)
class MLPSettings(Recipe):
    hidden: tuple[int, ...] = (100, 100)


class ImageClassification(Family[MLPSettings]):
    metric = Metric("accuracy", higher_is_better=True, unit="%")
    settings_type = MLPSettings
    has_embeddings = False

    @staticmethod
    def encode(corpus: Corpus, settings: MLPSettings) -> Encoded:
        data: Encoded = {"classes": list(corpus.classes)}
        for split in SPLITS:
            examples = getattr(corpus, split)
            examples = some(examples, settings.rows) if split == "train" else examples
            pixels = numpy.frombuffer(b"".join(image for image, _ in examples), dtype=numpy.uint8)
            images = torch.from_numpy(pixels.copy()).view(len(examples), -1)
            data[split] = (images, torch.tensor([label for _, label in examples]))
        data["brightest"] = int(data["train"][0].max())
        return data

    def model(self) -> nn.Module:
        sizes = (self.data["train"][0].shape[1], *self.settings.hidden)
        layers: list[nn.Module] = [Brightness(self.data["brightest"])]
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(self.settings.dropout)]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], len(self.data["classes"])))

    def batches(self, order: Generator) -> Sequence[Tensor]:
        return shuffled(len(self.data["train"][1]), self.settings.batch, order)

    def batch(self, chosen: Tensor) -> tuple[Tensor, ...]:
        images, labels = self.data["train"]
        return images[chosen], labels[chosen]

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...], carried: Any) -> tuple[Tensor, Any]:
        images, labels = batch
        return cross_entropy(model(images), labels), None

    def objective(self) -> Objective:
        return LABELLED

    def examples(self, split: Split, rows: int) -> list[tuple[Tensor, ...]]:
        return some_batches(self.data[split], rows, self.settings.batch)

    def score(self, model: nn.Module, split: Split, rows: int | None = None) -> float:
        inputs, labels = self.data[split]
        return accuracy(model, inputs[:rows], labels[:rows])

    def worthless(self, split: Split, rows: int | None = None) -> float:
        return share_of_the_commonest(self.data[split][1][:rows])


class Brightness(nn.Module):
    """Bytes to numbers from 0 to 1."""

    def __init__(self, brightest: int) -> None:
        super().__init__()
        self.brightest = brightest

    def forward(self, images: Tensor) -> Tensor:
        return images / self.brightest
