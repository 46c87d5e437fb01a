"""Translation: a small Marian model from scratch on number words, English to Vietnamese."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.first_use import data
from benchmarks.first_use.data import END, PADDING, START, Vocabulary
from benchmarks.first_use.setup import PERPLEXITY, Setup, Split, shuffled
from benchmarks.first_use.setups.language import perplexity

Pairs = tuple[Tensor, Tensor]
EVALUATED_AT_ONCE = 250


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
        for source, target in zip(*(torch.split(side, EVALUATED_AT_ONCE) for side in self.data[split]), strict=True):
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
