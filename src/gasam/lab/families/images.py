"""Image classification by a multi-layer perceptron, measured by accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from gasam.lab.data.corpus import Corpus, Split
from gasam.lab.families import Recipe
from gasam.lab.families.labelled import Classification


@dataclass(frozen=True, kw_only=True)
class MLPSettings(Recipe):
    hidden: tuple[int, ...] = (100, 100)


class ImageClassification(Classification[MLPSettings]):
    settings_type = MLPSettings
    has_embeddings = False

    @staticmethod
    def learn(training: Corpus, settings: Any) -> dict[str, Any]:
        return {
            "classes": list(training.classes),
            "pixels": len(training.train[0][0]),
            "brightest": max(max(image) for image, _ in training.train),
        }

    @staticmethod
    def encode(split: Split, examples: list[Any], shared: dict[str, Any], settings: Any) -> tuple[Tensor, Tensor]:
        pixels = numpy.frombuffer(b"".join(image for image, _ in examples), dtype=numpy.uint8)
        images = torch.from_numpy(pixels.copy()).view(len(examples), -1)
        return images, torch.tensor([label for _, label in examples])

    def model(self) -> nn.Module:
        sizes = (self.data.shared["pixels"], *self.settings.hidden)
        layers: list[nn.Module] = [Brightness(self.data.shared["brightest"])]
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(self.settings.dropout)]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], len(self.data.shared["classes"])))


class Brightness(nn.Module):
    """Scales bytes to numbers from 0 to 1."""

    def __init__(self, brightest: int) -> None:
        super().__init__()
        self.brightest = brightest

    def forward(self, images: Tensor) -> Tensor:
        return images / self.brightest
