"""Classification: digits, MNIST, docstrings and reviews, with CNNs, an MLP, a patch transformer and a BERT."""

from __future__ import annotations

import csv
import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW, Optimizer

from benchmarks.first_use import data
from benchmarks.first_use.data import PADDING, Labelled, Vocabulary
from benchmarks.first_use.training import ACCURACY, Setup, Split, shuffled

EVALUATED_AT_ONCE = 250


class Classification(Setup):
    """Classification by a model that maps inputs to logits; `data` has inputs and labels of each split."""

    metric = ACCURACY

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        scores: Tensor = model(inputs)
        return scores

    def optimizer(self, weights: Iterator[nn.Parameter]) -> Optimizer:
        return Adam(weights, lr=1e-3)

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


class Digits(Classification):
    """Few training images, so that the task is not solved: the others are added to validation and test."""

    rows = 400

    @cached_property
    def data(self) -> dict[Split, Labelled]:
        corpus = data.corpus("digits")
        half = (self.rows + len(corpus.train)) // 2
        examples: dict[Split, list[Any]] = {
            "train": corpus.train[: self.rows],
            "valid": corpus.valid + corpus.train[self.rows : half],
            "test": corpus.test + corpus.train[half:],
        }
        return {split: data.images(rows, (1, 8, 8)) for split, rows in examples.items()}


class DigitsCNN(Digits):
    """Three convolutions, each with a bias and BatchNorm after it: the biases have no effect and no gradient."""

    name = "digits-cnn"
    title = "CNN with BatchNorm, digits"
    epochs = 25
    batch = 16

    def optimizer(self, weights: Iterator[nn.Parameter]) -> Optimizer:
        return SGD(weights, lr=0.01, momentum=0.9, weight_decay=5e-4)

    def model(self) -> nn.Module:
        return nn.Sequential(
            *_convolution(1, 16),
            *_convolution(16, 32),
            nn.MaxPool2d(2),
            *_convolution(32, 64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            *self.dropout(),
            nn.Linear(64, 10),
        )

    def dropout(self) -> list[nn.Module]:
        return []


class DigitsDropoutCNN(DigitsCNN):
    """The same with dropout and a higher learning rate."""

    name = "digits-cnn-dropout"
    title = "CNN with BatchNorm and dropout, digits"
    epochs = 20

    def optimizer(self, weights: Iterator[nn.Parameter]) -> Optimizer:
        return SGD(weights, lr=0.02, momentum=0.9, weight_decay=5e-4)

    def dropout(self) -> list[nn.Module]:
        return [nn.Dropout(0.2)]


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()


class DigitsTransformer(Digits):
    name = "digits-transformer"
    title = "patch transformer, digits"
    epochs = 40
    batch = 32
    rows = 800

    def optimizer(self, weights: Iterator[nn.Parameter]) -> Optimizer:
        return AdamW(weights, lr=1e-3, weight_decay=0.01)

    def model(self) -> nn.Module:
        return PatchTransformer()


class PatchTransformer(nn.Module):
    """Patches of 2 x 2 as tokens with learned positions; the mean of all tokens is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 64, 2, stride=2)
        self.positions = nn.Parameter(0.02 * torch.randn(16, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(64)
        self.output = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        scores: Tensor = self.output(self.norm(self.encoder(tokens)).mean(dim=1))
        return scores


class MnistMLP(Classification):
    name = "mnist-mlp"
    title = "MLP, 6,000 MNIST images"
    epochs = 20
    batch = 64

    @cached_property
    def data(self) -> dict[Split, Labelled]:
        corpus = data.corpus("mnist")
        return {
            "train": data.images(corpus.train[:6000]),
            "valid": data.images(corpus.valid[:3000]),
            "test": data.images(corpus.test[:3000]),
        }

    def model(self) -> nn.Module:
        hidden = (nn.Linear(28 * 28, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.2))
        return nn.Sequential(*hidden, nn.Linear(256, 10))


Example = tuple[str, int]
Examples = dict[Split, list[Example]]


class TextClassification(Classification):
    """Texts as rows of the numbers of their first `length` words; the 10,000 most frequent words are known."""

    length: int

    @abstractmethod
    def examples(self) -> Examples:
        """The labelled texts of each split."""

    @cached_property
    def data(self) -> dict[Split, Labelled]:
        examples = self.examples()
        texts = {split: [data.words(text) for text, _ in rows] for split, rows in examples.items()}
        known = Vocabulary(texts["train"], 10_000)
        return {split: (known.rows(texts[split], self.length), data.labels(rows)) for split, rows in examples.items()}


class TextCNN(nn.Module):
    """Word embeddings, convolutions over 3, 4 and 5 words, the maximum over time, dropout, a linear layer.

    A text is an image of height one: torch convolves it faster than with Conv1d.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 64, padding_idx=PADDING)
        with torch.no_grad():
            self.embedding.weight.mul_(0.1)
        self.convolutions = nn.ModuleList(nn.Conv2d(64, 64, (1, size), padding=(0, size - 1)) for size in (3, 4, 5))
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(3 * 64, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens).transpose(1, 2).unsqueeze(2)
        largest = [convolution(embedded).amax(dim=(2, 3)).relu() for convolution in self.convolutions]
        scores: Tensor = self.output(self.dropout(torch.cat(largest, dim=1)))
        return scores


class DocstringsCNN(TextClassification):
    name = "docstrings-textcnn"
    title = "TextCNN, docstrings"
    epochs = 12
    batch = 64
    length = 48

    def examples(self) -> Examples:
        corpus = data.corpus("docstrings")
        return {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}

    def model(self) -> nn.Module:
        return TextCNN(classes=7)


class ReviewsCNN(TextClassification):
    name = "reviews-textcnn"
    title = "TextCNN, CSV file of 4,000 reviews"
    epochs = 10
    batch = 64
    length = 150

    def examples(self) -> Examples:
        """Written to a CSV file and read back, as a user with a file of reviews would start."""
        with tempfile.TemporaryDirectory() as folder:
            return {split: _through_csv(Path(folder, f"{split}.csv"), rows) for split, rows in reviews().items()}

    def model(self) -> nn.Module:
        return TextCNN(classes=2)


def reviews() -> Examples:
    corpus = data.corpus("imdb")
    return {"train": corpus.train[:4000], "valid": corpus.valid[:2000], "test": corpus.test[:2000]}


def _through_csv(path: Path, rows: list[Example]) -> list[Example]:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("text", "label"), *rows])
    with path.open(newline="", encoding="utf-8") as stream:
        return [(row["text"], int(row["label"])) for row in csv.DictReader(stream)]


class ReviewsBERT(TextClassification):
    """Training starts on a plateau: the loss stays near log 2 for more than one epoch before it falls."""

    name = "reviews-bert"
    title = "BERT from scratch, 4,000 reviews"
    epochs = 6
    batch = 32
    length = 80

    def examples(self) -> Examples:
        return reviews()

    def optimizer(self, weights: Iterator[nn.Parameter]) -> Optimizer:
        return AdamW(weights, lr=2e-4, weight_decay=0.01)

    def model(self) -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=10_000, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256,
            max_position_embeddings=self.length, pad_token_id=PADDING,
        )  # fmt: skip
        return BertForSequenceClassification(config)  # type: ignore[no-untyped-call]

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        scores: Tensor = model(input_ids=inputs, attention_mask=(inputs != PADDING).long()).logits
        return scores
