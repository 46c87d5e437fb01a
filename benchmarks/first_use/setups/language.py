"""Language models: an LSTM on Python's language reference and a small causal transformer on Penn TreeBank."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.first_use import data
from benchmarks.first_use.data import Vocabulary
from benchmarks.first_use.setup import PERPLEXITY, Setup, Split, shuffled

State = tuple[Tensor, Tensor]
LARGEST_LOSS = 20.0
EVALUATED_AT_ONCE = 50


def perplexity(total: float, count: int) -> float:
    """exp of the mean loss; losses that are too large or not finite count as 20."""
    mean = total / count
    return math.exp(mean if mean < LARGEST_LOSS else LARGEST_LOSS)


def summed_loss(logits: Tensor, following: Tensor) -> float:
    return float(cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="sum"))


def streams(name: str, vocabulary: int, lines: int | None = None) -> dict[Split, Tensor]:
    """The text of each split as one row of word numbers; `lines` limits the training text."""
    corpus = data.corpus(name)
    texts: dict[Split, list[list[str]]] = {
        "train": [line.split() for line in corpus.train[:lines]],
        "valid": [line.split() for line in corpus.valid],
        "test": [line.split() for line in corpus.test],
    }
    known = Vocabulary(texts["train"], vocabulary)
    return {split: known.stream(rows) for split, rows in texts.items()}


@dataclass(frozen=True, kw_only=True)
class PydocLSTM(Setup):
    """Reads the text in order, `batch` columns side by side, and carries its state from batch to batch."""

    name = "pydoc-lstm"
    title = "LSTM language model, Python reference"
    metric = PERPLEXITY

    epochs: int = 12
    batch: int = 10
    learning_rate: float = 3e-3
    clip: float | None = 1.0
    dropout: float = 0.3
    vocabulary: int = 2_500
    length: int = 35
    width: int = 96
    layers: int = 2

    @cached_property
    def data(self) -> dict[Split, Tensor]:
        return streams("pydoc", self.vocabulary)

    def model(self) -> nn.Module:
        return LSTM(self)

    def batches(self, order: Generator) -> Iterable[Tensor]:
        return columns(self.data["train"], self.batch, self.length)

    def loss(self, model: nn.Module, batch: Tensor, carried: State | None) -> tuple[Tensor, Any]:
        logits, (hidden, cell) = model(batch[:-1], carried)
        return cross_entropy(logits.flatten(0, 1), batch[1:].flatten()), (hidden.detach(), cell.detach())

    def score(self, model: nn.Module, split: Split) -> float:
        total, count, carried = 0.0, 0, None
        for batch in columns(self.data[split], 5, self.length):
            logits, carried = model(batch[:-1], carried)
            total += summed_loss(logits, batch[1:])
            count += batch[1:].numel()
        return perplexity(total, count)


def columns(text: Tensor, count: int, length: int) -> list[Tensor]:
    """A text cut into columns of equal length, then into windows of `length` words and the one that follows."""
    rows = len(text) // count
    side_by_side = text[: rows * count].view(count, rows).t()
    return [side_by_side[start : start + length + 1] for start in range(0, rows - 1, length)]


class LSTM(nn.Module):
    """The output layer shares its weights with the embedding."""

    def __init__(self, setup: PydocLSTM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(setup.vocabulary, setup.width)
        self.lstm = nn.LSTM(setup.width, setup.width, setup.layers, dropout=setup.dropout)
        self.dropout = nn.Dropout(setup.dropout)
        self.output = nn.Linear(setup.width, setup.vocabulary)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.output.weight = self.embedding.weight

    def forward(self, words: Tensor, carried: State | None) -> tuple[Tensor, State]:
        outputs, state = self.lstm(self.dropout(self.embedding(words)), carried)
        return self.output(self.dropout(outputs)), state


@dataclass(frozen=True, kw_only=True)
class CausalLanguage(Setup):
    """The text cut into rows of `length` words, which are read in random order."""

    metric = PERPLEXITY

    vocabulary: int
    length: int = 48

    @cached_property
    def data(self) -> dict[Split, Tensor]:
        return {split: self._rows(text) for split, text in self.text().items()}

    def _rows(self, text: Tensor) -> Tensor:
        return text[: len(text) // self.length * self.length].view(-1, self.length)

    @abstractmethod
    def text(self) -> dict[Split, Tensor]:
        """The words of each split, one after the other."""

    def logits(self, model: nn.Module, words: Tensor) -> Tensor:
        scores: Tensor = model(words)
        return scores

    def batches(self, order: Generator) -> Iterable[Tensor]:
        rows = self.data["train"]
        for chosen in shuffled(len(rows), self.batch, order):
            yield rows[chosen]

    def loss(self, model: nn.Module, batch: Tensor, carried: Any) -> tuple[Tensor, Any]:
        logits = self.logits(model, batch[:, :-1])
        return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()), None

    def score(self, model: nn.Module, split: Split) -> float:
        total, count = 0.0, 0
        for batch in torch.split(self.data[split], EVALUATED_AT_ONCE):
            total += summed_loss(self.logits(model, batch[:, :-1]), batch[:, 1:])
            count += batch[:, 1:].numel()
        return perplexity(total, count)


@dataclass(frozen=True, kw_only=True)
class TreebankTransformer(CausalLanguage):
    name = "ptb-transformer"
    title = "causal transformer, 3,000 lines of Penn TreeBank"

    epochs: int = 8
    batch: int = 16
    learning_rate: float = 2e-3
    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    weight_decay: float = 0.01
    clip: float | None = 1.0
    vocabulary: int = 4_000
    length: int = 32
    lines: int = 3_000
    held_out: int = 20_000
    width: int = 64
    layers: int = 2
    heads: int = 4

    def text(self) -> dict[Split, Tensor]:
        texts = streams("ptb", self.vocabulary, self.lines)
        return {split: text if split == "train" else text[: self.held_out] for split, text in texts.items()}

    def model(self) -> nn.Module:
        return CausalTransformer(self)


class CausalTransformer(nn.Module):
    """Learned positions, layers that normalise first, an output layer that shares the embedding's weights."""

    def __init__(self, setup: TreebankTransformer) -> None:
        super().__init__()
        self.embedding = nn.Embedding(setup.vocabulary, setup.width)
        self.positions = nn.Embedding(setup.length, setup.width)
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.dropout = nn.Dropout(setup.dropout)
        layer = nn.TransformerEncoderLayer(
            setup.width, setup.heads, 4 * setup.width, setup.dropout, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, setup.layers, nn.LayerNorm(setup.width), enable_nested_tensor=False)
        self.output = nn.Linear(setup.width, setup.vocabulary, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        length = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        embedded = self.embedding(words) + self.positions(torch.arange(length))
        scores: Tensor = self.output(self.layers(self.dropout(embedded), mask=mask, is_causal=True))
        return scores
