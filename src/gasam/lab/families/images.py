"""Image classification by a multi-layer perceptron, judged by accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy
import torch
from torch import Tensor, nn

from gasam.lab.data.corpus import SPLITS, Corpus
from gasam.lab.families import Encoded, Recipe
from gasam.lab.families.labelled import Labelled, some


@dataclass(frozen=True, kw_only=True)
class MLPSettings(Recipe):
    hidden: tuple[int, ...] = (100, 100)


class ImageClassification(Labelled[MLPSettings]):
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


class Brightness(nn.Module):
    """Bytes to numbers from 0 to 1."""

    def __init__(self, brightest: int) -> None:
        super().__init__()
        self.brightest = brightest

    def forward(self, images: Tensor) -> Tensor:
        return images / self.brightest
