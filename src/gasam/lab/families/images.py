"""Image classification by a multi-layer perceptron, measured by accuracy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from gasam.lab.data.corpus import Corpus, Split
from gasam.lab.data.files import STANDARD_INPUT, ending, fault_at, idx, lines, values
from gasam.lab.errors import InputError
from gasam.lab.families.classification import Classification, ClassifierSettings
from gasam.lab.families.family import Sizes


class MLPSettings(ClassifierSettings):
    hidden: Sizes = (100, 100)


class ImageClassification(Classification[MLPSettings]):
    settings_type = MLPSettings
    layers = ()

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

    def read_inputs(self, path: Path | None, column: str) -> Iterator[tuple[int, Any]]:
        for line, image in _images(path):
            try:
                yield line, self._pixels(image) if image else None
            except InputError as error:
                raise fault_at(path or STANDARD_INPUT, line, str(error)) from None

    def input_tensor(self, inputs: Sequence[Any]) -> Tensor:
        return torch.from_numpy(numpy.stack([self._pixels(image) for image in inputs]))

    def _pixels(self, image: Any) -> numpy.typing.NDArray[numpy.uint8]:
        """The pixels of an image that is given as bytes, or as numbers in any shape."""
        count = self.data.shared["pixels"]
        wanted = f"an image must have {count} whole numbers from 0 (background) to 255"
        try:
            numbers = numpy.frombuffer(image, numpy.uint8) if isinstance(image, bytes) else numpy.asarray(image, float)
        except (TypeError, ValueError):
            raise InputError(f"{wanted}, got {str(image)[:40]}") from None
        if numbers.size != count:
            raise InputError(f"{wanted}, got {numbers.size} numbers")
        whole = (numbers == numpy.floor(numbers)) & (numbers >= 0) & (numbers <= 255)
        if not whole.all():
            raise InputError(f"{wanted}, got {numbers[~whole][0]:g}")
        return numbers.reshape(-1).astype(numpy.uint8)


def _images(path: Path | None) -> Iterator[tuple[int, Any]]:
    """The line number and the pixels of each image of an idx file, of lists in a JSONL file, or of lines of numbers.

    A first line with letters is a header.
    """
    if path is not None and ("ubyte" in path.name or ending(path) == ".idx"):
        (count, *sides), pixels = idx(path, dimensions=3)
        size = math.prod(sides)
        yield from ((i + 1, pixels[size * i : size * (i + 1)]) for i in range(count))
    elif path is not None and ending(path) == ".jsonl":
        yield from values(path)
    else:
        for number, line in enumerate(lines(path), start=1):
            if number > 1 or not re.search("[A-Za-z]", line):
                yield number, line.replace(",", " ").split()


class Brightness(nn.Module):
    """Scales bytes to numbers from 0 to 1."""

    def __init__(self, brightest: int) -> None:
        super().__init__()
        self.brightest = brightest

    def forward(self, images: Tensor) -> Tensor:
        return images / self.brightest
