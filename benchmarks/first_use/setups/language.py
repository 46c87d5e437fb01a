"""Language: an LSTM on Python's reference, a causal transformer on Penn TreeBank, and Marian on number words."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam, AdamW, Optimizer

from benchmarks.first_use import data
from benchmarks.first_use.data import END, PADDING, START, Vocabulary
from benchmarks.first_use.training import PERPLEXITY, Setup, Split, shuffled

Pair = tuple[Tensor, Tensor]
LARGEST_LOSS = 20.0


def perplexity(predictions: Iterable[Pair]) -> float:
    """exp of the mean loss of logits for words, without padding; a loss too large or not finite counts as 20."""
    total, count = 0.0, 0
    for logits, words in predictions:
        total += float(cross_entropy(logits, words, ignore_index=PADDING, reduction="sum"))
        count += int((words != PADDING).sum())
    mean = total / count
    return math.exp(mean if mean < LARGEST_LOSS else LARGEST_LOSS)


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


class PydocLSTM(Setup):
    """Reads the text in order, `batch` columns side by side, and carries its state from batch to batch."""

    name = "pydoc-lstm"
    title = "LSTM language model, Python reference"
    metric = PERPLEXITY
    epochs = 12
    batch = 10
    clip = 1.0

    @cached_property
    def data(self) -> dict[Split, Tensor]:
        return streams("pydoc", 2500)

    def model(self) -> nn.Module:
        return LSTM()

    def optimizer(self, weights: Iterator[nn.Parameter]) -> Optimizer:
        return Adam(weights, lr=3e-3)

    def batches(self, order: Generator) -> Iterable[Tensor]:
        return columns(self.data["train"], self.batch)

    def loss(self, model: nn.Module, batch: Tensor, carried: Pair | None) -> tuple[Tensor, Any]:
        logits, (hidden, cell) = model(batch[:-1], carried)
        return cross_entropy(logits.flatten(0, 1), batch[1:].flatten()), (hidden.detach(), cell.detach())

    def part(self, batch: Tensor, carried: Pair | None) -> tuple[Tensor, Pair | None]:
        """The batch and its state have time or layers first."""
        columns = math.ceil(self.batch / 4)
        if carried is not None:
            carried = carried[0][:, :columns].contiguous(), carried[1][:, :columns].contiguous()
        return batch[:, :columns], carried

    def score(self, model: nn.Module, split: Split) -> float:
        def predictions() -> Iterator[Pair]:
            carried = None
            for batch in columns(self.data[split], 5):
                logits, carried = model(batch[:-1], carried)
                yield logits.flatten(0, 1), batch[1:].flatten()

        return perplexity(predictions())


def columns(text: Tensor, count: int) -> list[Tensor]:
    """A text cut into columns of equal length, then into windows of 35 words and the one that follows."""
    rows = len(text) // count
    side_by_side = text[: rows * count].view(count, rows).t()
    return [side_by_side[start : start + 36] for start in range(0, rows - 1, 35)]


class LSTM(nn.Module):
    """The output layer shares its weights with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2500, 96)
        self.lstm = nn.LSTM(96, 96, 2, dropout=0.3)
        self.dropout = nn.Dropout(0.3)
        self.output = nn.Linear(96, 2500)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.output.weight = self.embedding.weight

    def forward(self, words: Tensor, carried: Pair | None) -> tuple[Tensor, Pair]:
        outputs, state = self.lstm(self.dropout(self.embedding(words)), carried)
        return self.output(self.dropout(outputs)), state


class Language(Setup):
    """Batches that do not depend on each other."""

    metric = PERPLEXITY
    clip = 1.0

    @abstractmethod
    def predicted(self, model: nn.Module, batch: Any) -> Pair:
        """The logits of all words that the model predicts, and the words."""

    @abstractmethod
    def parts(self, split: Split) -> Iterable[Any]:
        """A whole split in batches."""

    def loss(self, model: nn.Module, batch: Any, carried: Any) -> tuple[Tensor, Any]:
        return cross_entropy(*self.predicted(model, batch), ignore_index=PADDING), None

    def score(self, model: nn.Module, split: Split) -> float:
        return perplexity(self.predicted(model, part) for part in self.parts(split))


class CausalLanguage(Language):
    """The text cut into rows of `length` words, which are read in random order."""

    batch = 16
    length = 48

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

    def predicted(self, model: nn.Module, batch: Tensor) -> Pair:
        return self.logits(model, batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()

    def parts(self, split: Split) -> Iterable[Tensor]:
        return torch.split(self.data[split], 50)

    def batches(self, order: Generator) -> Iterable[Tensor]:
        rows = self.data["train"]
        return (rows[chosen] for chosen in shuffled(len(rows), self.batch, order))


class TreebankTransformer(CausalLanguage):
    name = "ptb-transformer"
    title = "causal transformer, 3,000 lines of Penn TreeBank"
    epochs = 8
    length = 32

    def text(self) -> dict[Split, Tensor]:
        texts = streams("ptb", 4000, lines=3000)
        return {split: text if split == "train" else text[:20_000] for split, text in texts.items()}

    def model(self) -> nn.Module:
        return CausalTransformer()

    def optimizer(self, weights: Iterator[nn.Parameter]) -> Optimizer:
        return AdamW(weights, lr=2e-3, weight_decay=0.01)


class CausalTransformer(nn.Module):
    """Learned positions, layers that normalise first, an output layer that shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4000, 64)
        self.positions = nn.Embedding(32, 64)
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.dropout = nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(64, 4, 256, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(64), enable_nested_tensor=False)
        self.output = nn.Linear(64, 4000, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        length = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        embedded = self.embedding(words) + self.positions(torch.arange(length))
        scores: Tensor = self.output(self.layers(self.dropout(embedded), mask=mask, is_causal=True))
        return scores


class NumeralsMarian(Language):
    name = "numerals-marian"
    title = "Marian translation model, number words"
    metric = replace(PERPLEXITY, digits=3)
    epochs = 18
    batch = 32

    @cached_property
    def data(self) -> dict[Split, Pair]:
        corpus = data.corpus("numerals")
        pairs: dict[Split, Any] = {"train": corpus.train[:1000], "valid": corpus.valid, "test": corpus.test}
        known = [Vocabulary((pair[side].split() for pair in pairs["train"]), 100) for side in (0, 1)]

        def rows(split: Split, side: int) -> Tensor:
            return known[side].rows([pair[side].split() for pair in pairs[split]], 24, start=True, end=True)

        return {split: (rows(split, 0), rows(split, 1)) for split in pairs}

    def model(self) -> nn.Module:
        from transformers import MarianConfig, MarianMTModel

        config = MarianConfig(
            vocab_size=100, decoder_vocab_size=100, d_model=64, max_position_embeddings=26, scale_embedding=True,
            encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=256,
            decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=256,
            share_encoder_decoder_embeddings=False, pad_token_id=PADDING, bos_token_id=START, eos_token_id=END,
            decoder_start_token_id=START, forced_eos_token_id=None,
        )  # fmt: skip
        return MarianMTModel(config)

    def optimizer(self, weights: Iterator[nn.Parameter]) -> Optimizer:
        return Adam(weights, lr=1e-3)

    def batches(self, order: Generator) -> Iterable[Pair]:
        source, target = self.data["train"]
        return ((source[rows], target[rows]) for rows in shuffled(len(source), self.batch, order))

    def parts(self, split: Split) -> Iterable[Pair]:
        return zip(*(torch.split(side, 250) for side in self.data[split]), strict=True)

    def predicted(self, model: nn.Module, batch: Pair) -> Pair:
        source, target = map(trimmed, batch)
        inputs = {"input_ids": source, "attention_mask": (source != PADDING).long()}
        output = model(**inputs, decoder_input_ids=target[:, :-1].contiguous())
        return output.logits.flatten(0, 1), target[:, 1:].flatten()


def trimmed(rows: Tensor) -> Tensor:
    """Without the columns at the end that are only padding."""
    return rows[:, : int((rows != PADDING).sum(dim=1).max())]
