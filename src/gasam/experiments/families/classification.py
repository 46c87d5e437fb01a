"""Text classification: a convolutional network over word embeddings (TextCNN), judged by accuracy."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from gasam.analysis.likelihoods import CrossEntropy
from gasam.analysis.objective import Objective
from gasam.experiments.data.corpus import SPLITS, Corpus, Split
from gasam.experiments.families import Encoded, Family, Metric, Recipe, drawn
from gasam.experiments.families.vocabulary import UNKNOWN, Vocabulary

PADDING = "<pad>"
BREAK = re.compile(r"<br\s*/?>")
LABELLED = Objective(lambda model, batch: model(batch[0]), CrossEntropy())
WORD = re.compile(r"\w+(?:'\w+)?|[!?]")


@dataclass(frozen=True, kw_only=True)
class TextCNNSettings(Recipe):
    vocabulary: int
    length: int
    embedding: int
    maps: int
    windows: tuple[int, ...] = (3, 4, 5)

    encoding: ClassVar[tuple[str, ...]] = ("rows", "vocabulary", "length")


class TextClassification(Family[TextCNNSettings]):
    metric = Metric("accuracy", higher_is_better=True, unit="%")
    settings_type = TextCNNSettings

    @staticmethod
    def encode(corpus: Corpus, settings: TextCNNSettings) -> Encoded:
        training = some(corpus.train, settings.rows)
        texts = [words(text) for text, _ in training]
        vocabulary = Vocabulary.most_frequent(texts, settings.vocabulary, (PADDING, UNKNOWN))
        data: Encoded = {"words": vocabulary.words, "classes": list(corpus.classes)}
        for split in SPLITS:
            examples = training if split == "train" else getattr(corpus, split)
            tokens = torch.zeros(len(examples), settings.length, dtype=torch.int32)
            for row, (text, _) in enumerate(examples):
                numbers = vocabulary.encode(words(text)[: settings.length])
                tokens[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int32)
            data[split] = (tokens, torch.tensor([label for _, label in examples]))
        return data

    def model(self) -> nn.Module:
        return TextCNN(len(self.data["words"]), len(self.data["classes"]), self.settings)

    def batches(self, order: Generator) -> Sequence[Tensor]:
        return shuffled(len(self.data["train"][1]), self.settings.batch, order)

    def batch(self, chosen: Tensor) -> tuple[Tensor, ...]:
        tokens, labels = self.data["train"]
        return tokens[chosen], labels[chosen]

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...], carried: Any) -> tuple[Tensor, Any]:
        tokens, labels = batch
        return cross_entropy(model(tokens), labels), None

    def objective(self) -> Objective:
        return LABELLED

    def examples(self, split: Split, rows: int) -> list[tuple[Tensor, ...]]:
        return some_batches(self.data[split], rows, self.settings.batch)

    def score(self, model: nn.Module, split: Split, rows: int | None = None) -> float:
        inputs, labels = self.data[split]
        return accuracy(model, inputs[:rows], labels[:rows])

    def worthless(self, split: Split, rows: int | None = None) -> float:
        return share_of_the_commonest(self.data[split][1][:rows])


class TextCNN(nn.Module):
    """Embeddings, convolutions of several windows, the largest value over time of each map, a linear layer."""

    def __init__(self, words: int, classes: int, settings: TextCNNSettings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, settings.embedding, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(settings.embedding, settings.maps, window, padding=window - 1) for window in settings.windows
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.output = nn.Linear(settings.maps * len(settings.windows), classes)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens).transpose(1, 2)
        largest = [convolution(embedded).amax(dim=2).relu() for convolution in self.convolutions]
        return self.output(self.dropout(torch.cat(largest, dim=1)))  # type: ignore[no-any-return]


def words(text: str) -> list[str]:
    return WORD.findall(BREAK.sub(" ", text).lower())


def some(examples: list[Any], rows: int | None) -> list[Any]:
    """That many examples, drawn once and for all."""
    if rows is None or rows >= len(examples):
        return examples
    return random.Random(0).sample(examples, rows)


def some_batches(labelled: tuple[Tensor, Tensor], rows: int, batch: int) -> list[tuple[Tensor, ...]]:
    """That many rows, always the same, with their labels, a batch at a time."""
    inputs, labels = labelled
    return [(inputs[some], labels[some]) for some in torch.split(drawn(rows, len(labels)), batch)]


def shuffled(rows: int, batch: int, order: Generator) -> Sequence[Tensor]:
    """The numbers of all rows in random order, a batch at a time."""
    return torch.split(torch.randperm(rows, generator=order), batch)


def share_of_the_commonest(labels: Tensor) -> float:
    """The accuracy of always naming one class, in percent."""
    return 100 * int(labels.bincount().max()) / len(labels)


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor, rows: int = 250) -> float:
    device = next(model.parameters()).device
    right = sum(
        (model(x.to(device)).argmax(dim=1) == y.to(device)).sum()
        for x, y in zip(torch.split(inputs, rows), torch.split(labels, rows), strict=True)
    )
    return 100 * int(right) / len(labels)
