"""Classification: digits, MNIST, docstrings and reviews, with CNNs, an MLP, a patch transformer and a BERT."""

from __future__ import annotations

import csv
import tempfile
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.first_use import data
from benchmarks.first_use.data import PADDING, Labelled, Vocabulary
from benchmarks.first_use.training import ACCURACY, Setup, Split, shuffled

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
        return {split: data.images(rows, (1, SIDE, SIDE)) for split, rows in examples.items()}


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


Example = tuple[str, int]
Examples = dict[Split, list[Example]]


@dataclass(frozen=True, kw_only=True)
class TextClassification(Classification):
    """Texts as rows of word numbers.

    Args:
        classes: Number of labels.
        vocabulary: Words that are known, special ones included.
        length: Words of a text that are read.
    """

    classes: int
    vocabulary: int = 10_000
    length: int = 150

    @abstractmethod
    def examples(self) -> Examples:
        """The labelled texts of each split."""

    def read(self) -> dict[Split, Labelled]:
        examples = self.examples()
        texts = {split: [data.words(text) for text, _ in rows] for split, rows in examples.items()}
        vocabulary = Vocabulary(texts["train"], self.vocabulary)
        return {
            split: (vocabulary.rows(texts[split], self.length), data.labels(rows)) for split, rows in examples.items()
        }


@dataclass(frozen=True, kw_only=True)
class TextCNNSetup(TextClassification):
    embedding: int = 64
    maps: int = 64
    initial_embedding: float = 0.1
    dropout: float = 0.5

    def model(self) -> nn.Module:
        return TextCNN(self)


class TextCNN(nn.Module):
    """Word embeddings, convolutions over 3, 4 and 5 words, the maximum over time, dropout, a linear layer.

    A text is an image of height one: torch convolves it faster than with Conv1d.
    """

    def __init__(self, setup: TextCNNSetup) -> None:
        super().__init__()
        self.embedding = nn.Embedding(setup.vocabulary, setup.embedding, padding_idx=PADDING)
        with torch.no_grad():
            self.embedding.weight.mul_(setup.initial_embedding)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(setup.embedding, setup.maps, (1, window), padding=(0, window - 1)) for window in (3, 4, 5)
        )
        self.dropout = nn.Dropout(setup.dropout)
        self.output = nn.Linear(3 * setup.maps, setup.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens).transpose(1, 2).unsqueeze(2)
        largest = [convolution(embedded).amax(dim=(2, 3)).relu() for convolution in self.convolutions]
        scores: Tensor = self.output(self.dropout(torch.cat(largest, dim=1)))
        return scores


@dataclass(frozen=True, kw_only=True)
class DocstringsCNN(TextCNNSetup):
    name = "docstrings-textcnn"
    title = "TextCNN, docstrings"

    epochs: int = 12
    batch: int = 64
    learning_rate: float = 1e-3
    classes: int = 7
    length: int = 48

    def examples(self) -> Examples:
        corpus = data.corpus("docstrings")
        return {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}


@dataclass(frozen=True, kw_only=True)
class ReviewsCNN(TextCNNSetup):
    name = "reviews-textcnn"
    title = "TextCNN, CSV file of 4,000 reviews"

    epochs: int = 10
    batch: int = 64
    learning_rate: float = 1e-3
    classes: int = 2
    rows: int = 4_000
    held_out: int = 2_000

    def examples(self) -> Examples:
        """Written to a CSV file and read back, as a user with a file of reviews would start."""
        reviews = imdb(self.rows, self.held_out)
        with tempfile.TemporaryDirectory() as folder:
            return {split: _through_csv(Path(folder, f"{split}.csv"), rows) for split, rows in reviews.items()}


def imdb(rows: int, held_out: int) -> Examples:
    corpus = data.corpus("imdb")
    return {"train": corpus.train[:rows], "valid": corpus.valid[:held_out], "test": corpus.test[:held_out]}


def _through_csv(path: Path, rows: list[Example]) -> list[Example]:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("text", "label"), *rows])
    with path.open(newline="", encoding="utf-8") as stream:
        return [(row["text"], int(row["label"])) for row in csv.DictReader(stream)]


@dataclass(frozen=True, kw_only=True)
class ReviewsBERT(TextClassification):
    """Training starts on a plateau: the loss stays near log 2 for more than one epoch before it falls."""

    name = "reviews-bert"
    title = "BERT from scratch, 4,000 reviews"

    epochs: int = 6
    batch: int = 32
    learning_rate: float = 2e-4
    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    weight_decay: float = 0.01
    classes: int = 2
    length: int = 80
    width: int = 64
    layers: int = 2
    heads: int = 2
    rows: int = 4_000
    held_out: int = 2_000

    def examples(self) -> Examples:
        return imdb(self.rows, self.held_out)

    def model(self) -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.width,
            max_position_embeddings=self.length,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            num_labels=self.classes,  # type: ignore[call-arg]
            pad_token_id=PADDING,
        )
        return BertForSequenceClassification(config)  # type: ignore[no-untyped-call]

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        scores: Tensor = model(input_ids=inputs, attention_mask=(inputs != PADDING).long()).logits
        return scores
