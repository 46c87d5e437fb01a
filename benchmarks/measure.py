"""Timing on a noisy machine (candidates interleaved in one process, medians of many), and the models to time."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

ROOT = Path(__file__).parents[1]


def commit(*paths: str) -> str:
    """The commit of the source, and whether these files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("--no-optional-locks", "status", "--porcelain", "--", *paths)
        return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class Timed:
    """A loss function and its backward, with the seconds spent in them."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        self.function = function
        self.seconds = 0.0

    def loss(self) -> Tensor:
        start = time.perf_counter()
        loss = self.function()
        self.seconds += time.perf_counter() - start
        return loss

    def backward(self, loss: Tensor) -> None:
        start = time.perf_counter()
        loss.backward()
        self.seconds += time.perf_counter() - start


def interleaved(candidates: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each candidate in every round but the first two, which warm up. Each begins with another candidate."""
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-2, rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            candidates[name]()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, over: str) -> float:
    """The median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[over], strict=True))


class TextCNN(nn.Module):
    """Vocabulary 30,000, embedding 500, windows 3, 4 and 5 with 500 maps each; 64 reviews of 200 random words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30_000, 500)
        self.windows = nn.ModuleList(nn.Conv1d(500, 500, size) for size in (3, 4, 5))
        self.out = nn.Linear(1500, 2)

    def loss(self, share: float = 1.0) -> Tensor:
        rows = int(64 * share)
        words = self.words(torch.randint(30_000, (rows, 200))).transpose(1, 2)
        features = torch.cat([window(words).relu().amax(2) for window in self.windows], 1)
        return cross_entropy(self.out(features), torch.randint(2, (rows,)))


class LanguageModel(nn.Module):
    """Two LSTM layers of 500, embeddings of 10,000 words tied with the output; 20 texts of 70 random words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10_000, 500)
        self.layers = nn.LSTM(500, 500, 2)
        self.bias = nn.Parameter(torch.zeros(10_000))

    def loss(self, share: float = 1.0) -> Tensor:
        columns = int(20 * share)
        hidden, _ = self.layers(self.words(torch.randint(10_000, (70, columns))))
        logits = nn.functional.linear(hidden, self.words.weight, self.bias)
        return cross_entropy(logits.flatten(0, 1), torch.randint(10_000, (70 * columns,)))


class Translator(nn.Module):
    """Six and six layers of 512, 8 heads, 2048 inside; 17,200 and 7,800 words; 32 pairs of 32 random words.

    The batch has a quarter of the paper's 4,096 tokens, so the walk's share of the time is overstated.
    """

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(17_200, 512), nn.Embedding(7_800, 512)
        self.layers = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
        self.out = nn.Linear(512, 7_800, bias=False)

    def loss(self, share: float = 1.0) -> Tensor:
        pairs = int(32 * share)
        source, target = self.source(torch.randint(17_200, (pairs, 32))), self.target(torch.randint(7_800, (pairs, 32)))
        mask = nn.Transformer.generate_square_subsequent_mask(32)
        logits = self.out(self.layers(source, target, tgt_mask=mask, tgt_is_causal=True))
        return cross_entropy(logits.flatten(0, 1), torch.randint(7_800, (32 * pairs,)))


MODELS: dict[str, Callable[[], nn.Module]] = {"TextCNN": TextCNN, "LSTM": LanguageModel, "Transformer": Translator}


def classifier() -> nn.Module:
    """BERT-mini: 4 layers of 256, 11 million weights; without dropout, so that all passes cost the same."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, num_labels=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model: nn.Module = BertForSequenceClassification(config)
    return model.train()


def sentences(count: int, words: int) -> dict[str, Tensor]:
    """A batch of random words for the classifier."""
    return {"input_ids": torch.randint(30_000, (count, words)), "labels": torch.randint(2, (count,))}
