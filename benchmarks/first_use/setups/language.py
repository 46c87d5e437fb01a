"""Language: an LSTM on Python's reference, a causal transformer on Penn TreeBank, and Marian on number words."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.first_use import data
from benchmarks.first_use.data import END, PADDING, START, Vocabulary
from benchmarks.first_use.training import PERPLEXITY, Setup, Split, shuffled

State = tuple[Tensor, Tensor]
LARGEST_LOSS = 20.0
ROWS_AT_ONCE = 50


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
        for batch in torch.split(self.data[split], ROWS_AT_ONCE):
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


Pairs = tuple[Tensor, Tensor]
PAIRS_AT_ONCE = 250


@dataclass(frozen=True, kw_only=True)
class NumeralsMarian(Setup):
    name = "numerals-marian"
    title = "Marian translation model, number words"
    metric = replace(PERPLEXITY, digits=3)

    epochs: int = 18
    batch: int = 32
    learning_rate: float = 1e-3
    clip: float | None = 1.0
    rows: int = 1_000
    vocabulary: int = 100
    length: int = 24
    width: int = 64
    layers: int = 2
    heads: int = 4

    @cached_property
    def data(self) -> dict[Split, Pairs]:
        corpus = data.corpus("numerals")
        pairs: dict[Split, list[tuple[str, str]]] = {
            "train": corpus.train[: self.rows],
            "valid": corpus.valid,
            "test": corpus.test,
        }
        sides = [
            self._side({split: [pair[side].split() for pair in pairs[split]] for split in pairs}) for side in (0, 1)
        ]
        return {split: (sides[0][split], sides[1][split]) for split in pairs}

    def _side(self, texts: dict[Split, list[list[str]]]) -> dict[Split, Tensor]:
        vocabulary = Vocabulary(texts["train"], self.vocabulary)
        return {split: vocabulary.rows(lines, self.length, start=True, end=True) for split, lines in texts.items()}

    def model(self) -> nn.Module:
        from transformers import MarianConfig, MarianMTModel

        config = MarianConfig(
            vocab_size=self.vocabulary,
            d_model=self.width,
            encoder_layers=self.layers,
            decoder_layers=self.layers,
            encoder_attention_heads=self.heads,
            decoder_attention_heads=self.heads,
            encoder_ffn_dim=4 * self.width,
            decoder_ffn_dim=4 * self.width,
            max_position_embeddings=self.length + 2,
            dropout=self.dropout,
            scale_embedding=True,
            share_encoder_decoder_embeddings=False,
            decoder_vocab_size=self.vocabulary,
            pad_token_id=PADDING,
            bos_token_id=START,
            eos_token_id=END,
            decoder_start_token_id=START,
            forced_eos_token_id=None,
        )
        return MarianMTModel(config)

    def batches(self, order: Generator) -> Iterable[Pairs]:
        source, target = self.data["train"]
        for rows in shuffled(len(source), self.batch, order):
            yield trimmed(source[rows]), trimmed(target[rows])

    def loss(self, model: nn.Module, batch: Pairs, carried: Any) -> tuple[Tensor, Any]:
        return cross_entropy(*_logits(model, *batch), ignore_index=PADDING), None

    def score(self, model: nn.Module, split: Split) -> float:
        total, count = 0.0, 0
        for source, target in zip(*(torch.split(side, PAIRS_AT_ONCE) for side in self.data[split]), strict=True):
            logits, following = _logits(model, trimmed(source), trimmed(target))
            total += float(cross_entropy(logits, following, ignore_index=PADDING, reduction="sum"))
            count += int((following != PADDING).sum())
        return perplexity(total, count)


def trimmed(rows: Tensor) -> Tensor:
    """Without the columns at the end that are only padding."""
    return rows[:, : int((rows != PADDING).sum(dim=1).max())]


def _logits(model: nn.Module, source: Tensor, target: Tensor) -> Pairs:
    """The scores of every target word, and the words."""
    output = model(
        input_ids=source, attention_mask=(source != PADDING).long(), decoder_input_ids=target[:, :-1].contiguous()
    )
    return output.logits.flatten(0, 1), target[:, 1:].flatten()
