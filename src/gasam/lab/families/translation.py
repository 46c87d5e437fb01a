"""Translation by a Transformer with label smoothing and beam search, measured by BLEU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from gasam.analysis.likelihoods import CrossEntropy
from gasam.analysis.objective import Objective
from gasam.lab.data.corpus import Corpus, Split
from gasam.lab.errors import InputError
from gasam.lab.families import Family, Metric, Score, drawn
from gasam.lab.families.bleu import bleu, bleu_error
from gasam.lab.families.marian import PAD, TransformerSettings, logits, marian
from gasam.lab.families.subwords import Subwords

Side = Literal["source", "target"]


class Translation(Family[TransformerSettings]):
    metric = Metric("BLEU", higher_is_better=True)
    followed = Metric("perplexity", higher_is_better=False)
    settings_type = TransformerSettings

    @staticmethod
    def select(split: Split, examples: list[Any], settings: Any) -> list[Any]:
        """The examples to use: of validation and test only the first `judged`."""
        return Family.select(split, examples, settings) if split == "train" else examples[: settings.judged]

    @staticmethod
    def learn(training: Corpus, settings: Any) -> dict[str, Any]:
        """Learn the tokenisers of both languages, limited to the word lists that come with the data, if any."""
        found = []
        for side, size in enumerate(settings.vocabularies):
            text = [pair[side] for pair in training.train]
            shipped = training.vocabularies[side] if training.vocabularies else ()
            found.append(Subwords.learn(text, settings.units, size, shipped).saved)
        return {"subwords": found}

    @staticmethod
    def encode(split: Split, examples: list[Any], shared: dict[str, Any], settings: Any) -> dict[str, Any]:
        """The token numbers of both sides. Pairs that are too long are dropped from the training split only.

        Validation and test also keep the text, because BLEU is computed from text.
        """
        sources, targets = ([pair[side] for pair in examples] for side in (0, 1))
        source_lines = Subwords(shared["subwords"][0]).encode(sources)
        target_lines = Subwords(shared["subwords"][1]).encode(targets)
        if split != "train":
            numbers = {"source": joined(source_lines), "target": joined(target_lines)}
            return numbers | {"source_text": sources, "target_text": targets}
        pairs = zip(source_lines, target_lines, strict=True)
        kept = [(s, t) for s, t in pairs if max(len(s), len(t)) <= settings.length]
        if not kept:
            raise InputError(f"no training pair has at most {settings.length} tokens in both languages: raise length")
        numbers = {"source": joined([s for s, _ in kept]), "target": joined([t for _, t in kept])}
        return numbers | {"dropped": len(examples) - len(kept)}

    @staticmethod
    def notes(corpus: Corpus, splits: Mapping[Split, Any], settings: Any) -> list[str]:
        said = []
        if settings.judged is not None and settings.judged < max(len(corpus.valid), len(corpus.test)):
            said.append(f"BLEU is of the first {settings.judged:,} sentences of validation and test in this size")
        if dropped := splits["train"]["dropped"]:
            said.append(f"{dropped:,} training pairs longer than {settings.length} pieces are left out")
        return said

    @cached_property
    def lines(self) -> dict[tuple[Split, Side], tuple[Tensor, ...]]:
        """The lines of each split and side."""
        sides: tuple[Side, Side] = ("source", "target")
        return {(split, side): separated(*part[side]) for split, part in self.data.splits.items() for side in sides}

    @cached_property
    def subwords(self) -> tuple[Subwords, Subwords]:
        source, target = self.data.shared["subwords"]
        return Subwords(source), Subwords(target)

    def model(self) -> nn.Module:
        return marian(self.settings, len(self.subwords[0]), len(self.subwords[1]))

    def embeddings(self, model: nn.Module) -> list[nn.Embedding]:
        """The word embeddings, without the position embeddings."""
        return [model.get_encoder().embed_tokens, model.get_decoder().embed_tokens]  # type: ignore[operator]

    @cached_property
    def lengths(self) -> Tensor:
        return self._lengths("train")

    def _lengths(self, split: Split) -> Tensor:
        """The length of the longer side of each pair."""
        pairs = zip(self.lines[split, "source"], self.lines[split, "target"], strict=True)
        return torch.tensor([max(len(source), len(target)) for source, target in pairs])

    def batches(self, order: Generator) -> Sequence[Tensor]:
        """Batches of pairs of similar length, with at most `batch` tokens including padding, in random order."""
        shuffled = torch.randperm(len(self.lengths), generator=order)
        by_length = shuffled[self.lengths[shuffled].sort(stable=True).indices]
        chosen = packed(by_length, self.lengths[by_length].tolist(), self.settings.batch)
        return [chosen[i] for i in torch.randperm(len(chosen), generator=order).tolist()]

    def batch(self, chosen: Tensor) -> tuple[Tensor, ...]:
        return self._pairs("train", chosen.tolist())

    def _pairs(self, split: Split, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self._padded(split, "source", rows), self._padded(split, "target", rows)

    def _padded(self, split: Split, side: Side, rows: Sequence[int]) -> Tensor:
        lines = [self.lines[split, side][row] for row in rows]
        return pad_sequence(lines, batch_first=True, padding_value=PAD).long()

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...], carried: Any) -> tuple[Tensor, Any]:
        return smoothed_cross_entropy(*self._scores(model, *batch), self.settings.smoothing), None

    def objective(self) -> Objective:
        """An example is a sentence; its loss is the mean over its words. Training uses the mean over all words."""
        smoothing = spread(self.settings.smoothing, len(self.subwords[1]))
        return Objective(
            lambda model, batch: logits(model, *batch), CrossEntropy(ignored=PAD, label_smoothing=smoothing)
        )

    def examples(self, split: Split, rows: int) -> list[tuple[Tensor, ...]]:
        lengths = self._lengths(split)
        chosen = drawn(rows, len(lengths))
        by_length = chosen[lengths[chosen].sort(stable=True).indices]
        batches = packed(by_length, lengths[by_length].tolist(), self.settings.batch)
        return [self._pairs(split, some.tolist()) for some in batches]

    def _scores(self, model: nn.Module, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's logits and the target words, without padding."""
        words = target != PAD
        return logits(model, source, target)[words], target[words]

    @torch.no_grad()
    def validate(self, model: nn.Module) -> float:
        """The perplexity without label smoothing. BLEU needs a beam search, so only the final weights get it."""
        device = next(model.parameters()).device
        total, count = 0.0, 0
        for rows in self._sorted("valid"):
            source, target = self._pairs("valid", rows)
            scores, right = self._scores(model, source.to(device), target.to(device))
            total += float(cross_entropy(scores, right, reduction="sum"))
            count += len(right)
        return math.exp(min(total / count, 100.0))

    def measure(self, model: nn.Module, split: Split, rows: int | None = None) -> Score:
        lines, references = self.translate(model, split, rows), self.data[split]["target_text"][:rows]
        return Score(bleu(lines, references)[0], bleu_error(lines, references))

    def remarks(self) -> dict[str, Any]:
        """The signature of BLEU, and the BLEU of copying the source without translation."""
        test = self.data["test"]
        value, signature = bleu(test["source_text"], test["target_text"])
        return {"bleu_signature": signature, "bleu_of_copying": value}

    @torch.no_grad()
    def translate(self, model: nn.Module, split: Split, rows: int | None = None) -> list[str]:
        device = next(model.parameters()).device
        lines: dict[int, str] = {}
        for some_rows in self._sorted(split, count=rows):
            source = self._padded(split, "source", some_rows).to(device)
            found = model.generate(  # type: ignore[operator]
                input_ids=source,
                attention_mask=(source != PAD).long(),
                num_beams=self.settings.beam,
                max_new_tokens=source.shape[1] * 3 // 2 + 10,
                do_sample=False,
            )
            lines.update(zip(some_rows, self.subwords[1].decode(found.tolist()), strict=True))
        return [lines[row] for row in sorted(lines)]

    def _sorted(self, split: Split, rows: int = 64, count: int | None = None) -> list[list[int]]:
        """Batches of rows of similar length, to reduce padding."""
        lines = self.lines[split, "source"][:count]
        order = sorted(range(len(lines)), key=lambda row: len(lines[row]))
        return [order[start : start + rows] for start in range(0, len(order), rows)]


def joined(lines: list[Tensor]) -> tuple[Tensor, Tensor]:
    """All words in one tensor, and the length of each line. One tensor per line would be slow to read from disk."""
    return torch.cat(lines), torch.tensor([len(line) for line in lines])


def separated(words: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    return torch.split(words, lengths.tolist())


def packed(rows: Tensor, lengths: list[int], tokens: int) -> list[Tensor]:
    """Rows, sorted by length, in batches of at most `tokens` tokens including padding."""
    cuts, first = [0], 0
    for row, length in enumerate(lengths):
        if row > first and length * (row - first + 1) > tokens:
            cuts.append(row)
            first = row
    return list(rows.tensor_split(cuts[1:]))


def smoothed_cross_entropy(scores: Tensor, right: Tensor, smoothing: float) -> Tensor:
    """fairseq's smoothed loss: the right word has probability 1 - smoothing, the V - 1 others share the rest evenly."""
    return cross_entropy(scores, right, label_smoothing=spread(smoothing, scores.shape[1]))


def spread(smoothing: float, words: int) -> float:
    """The value of torch's `label_smoothing` that gives fairseq's smoothing.

    torch spreads it over all V words, including the right one, so it must be V / (V - 1) times as large.
    """
    return smoothing * words / (words - 1)
