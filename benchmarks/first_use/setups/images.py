"""Images: a CNN with BatchNorm and a patch transformer on scikit-learn's digits, and an MLP on MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.first_use import data
from benchmarks.first_use.data import Labelled
from benchmarks.first_use.setup import Split
from benchmarks.first_use.setups.labelled import Classification

CLASSES = 10
SIDE = 8  # pixels of a side of scikit-learn's digits


@dataclass(frozen=True, kw_only=True)
class Digits(Classification):
    """Few training images, so that the task is not solved: the others are added to validation and test."""

    rows: int = 400

    def read(self) -> dict[Split, Labelled]:
        corpus = data.corpus("digits")
        half = (self.rows + len(corpus.train)) // 2
        examples: dict[Split, list[Any]] = {
            "train": corpus.train[: self.rows],
            "valid": corpus.valid + corpus.train[self.rows : half],
            "test": corpus.test + corpus.train[half:],
        }
        return {split: _square(*data.images(rows)) for split, rows in examples.items()}


def _square(pixels: Tensor, labels: Tensor) -> Labelled:
    return pixels.view(-1, 1, SIDE, SIDE), labels


@dataclass(frozen=True, kw_only=True)
class DigitsCNN(Digits):
    """Three convolutions, each with a bias and BatchNorm after it: the biases have no effect and no gradient."""

    name = "digits-cnn"
    title = "CNN with BatchNorm, digits"

    epochs: int = 25
    batch: int = 16
    learning_rate: float = 0.01
    optimizer: Literal["adam", "adamw", "sgd"] = "sgd"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    dropout: float = 0.0
    channels: tuple[int, ...] = (16, 32, 64)

    def model(self) -> nn.Module:
        first, second, third = self.channels
        return nn.Sequential(
            *_convolution(1, first),
            *_convolution(first, second),
            nn.MaxPool2d(2),
            *_convolution(second, third),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            *([nn.Dropout(self.dropout)] if self.dropout else []),
            nn.Linear(third, CLASSES),
        )


@dataclass(frozen=True, kw_only=True)
class DigitsDropoutCNN(DigitsCNN):
    """The same with dropout and a higher learning rate."""

    name = "digits-cnn-dropout"
    title = "CNN with BatchNorm and dropout, digits"

    epochs: int = 20
    learning_rate: float = 0.02
    dropout: float = 0.2


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()


@dataclass(frozen=True, kw_only=True)
class DigitsTransformer(Digits):
    name = "digits-transformer"
    title = "patch transformer, digits"

    epochs: int = 40
    batch: int = 32
    learning_rate: float = 1e-3
    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    weight_decay: float = 0.01
    rows: int = 800
    patch: int = 2
    width: int = 64
    layers: int = 2
    heads: int = 4

    def model(self) -> nn.Module:
        return PatchTransformer(self)


class PatchTransformer(nn.Module):
    """Patches as tokens with learned positions; the mean of all tokens is classified."""

    def __init__(self, setup: DigitsTransformer) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, setup.width, setup.patch, stride=setup.patch)
        self.positions = nn.Parameter(0.02 * torch.randn((SIDE // setup.patch) ** 2, setup.width))
        layer = nn.TransformerEncoderLayer(
            setup.width, setup.heads, 2 * setup.width, setup.dropout, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, setup.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(setup.width)
        self.output = nn.Linear(setup.width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        scores: Tensor = self.output(self.norm(self.encoder(tokens)).mean(dim=1))
        return scores


@dataclass(frozen=True, kw_only=True)
class MnistMLP(Classification):
    name = "mnist-mlp"
    title = "MLP, 6,000 MNIST images"

    epochs: int = 20
    batch: int = 64
    learning_rate: float = 1e-3
    dropout: float = 0.2
    hidden: int = 256
    rows: int = 6_000
    held_out: int = 3_000

    def read(self) -> dict[Split, Labelled]:
        corpus = data.corpus("mnist")
        return {
            "train": data.images(corpus.train[: self.rows]),
            "valid": data.images(corpus.valid[: self.held_out]),
            "test": data.images(corpus.test[: self.held_out]),
        }

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(28 * 28, self.hidden),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(self.hidden, CLASSES),
        )
