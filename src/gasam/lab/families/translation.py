"""Translation by a Transformer with label smoothing and beam search, measured by BLEU."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from gasam.analysis.objective import CrossEntropy, Objective
from gasam.lab.data.corpus import Corpus, Split
from gasam.lab.errors import InputError
from gasam.lab.families.bleu import bleu, bleu_error
from gasam.lab.families.family import Family, Metric, Score, drawn
from gasam.lab.families.marian import PAD, POSITIONS, TransformerSettings, logits, marian
from gasam.lab.families.prediction import Prediction, PredictionOptions, TranslatedText, ignore_count
from gasam.lab.families.sentences import by_length, joined, packed, padded, separated
from gasam.lab.families.subwords import Subwords

Side = Literal["source", "target"]
TRANSLATED_AT_ONCE = 64


class Translation(Family[TransformerSettings]):
    metric = Metric("BLEU", higher_is_better=True)

    @classmethod
    def has_normalisation(cls) -> bool:
        return True

    followed = Metric("perplexity", higher_is_better=False)
    settings_type = TransformerSettings
    batches_at_once = 160  # 10,240 sentences, sorted by length as in evaluation

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
            longest = max((len(line) for line in (*source_lines, *target_lines)), default=0)
            if longest > POSITIONS:
                raise InputError(
                    f"the {split} split has a text of {longest:,} tokens, but {POSITIONS:,} is the limit: split it "
                    "into sentences, or remove it"
                )
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
        return padded([self.lines[split, side][row] for row in rows], PAD)

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
        for rows in by_length(self.lines["valid", "source"], TRANSLATED_AT_ONCE):
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

    def translate(self, model: nn.Module, split: Split, rows: int | None = None) -> list[str]:
        return self._translated(model, self.lines[split, "source"][:rows])

    @staticmethod
    def readable(shared: Mapping[str, Any]) -> dict[str, Any]:
        """The tokenisers as JSON objects, in the format of the tokenizers library."""
        saved = (text if isinstance(text, str) else json.dumps(text) for text in shared["subwords"])
        return dict(shared) | {"subwords": [json.loads(text) for text in saved]}

    @property
    def prediction_batch(self) -> int:
        return TRANSLATED_AT_ONCE

    def predict(self, model: nn.Module, inputs: Sequence[Any], options: PredictionOptions) -> list[Prediction]:
        lines = self.subwords[0].encode(inputs)
        for text, line in zip(inputs, lines, strict=True):
            if len(line) > POSITIONS:
                raise InputError(
                    f"a text of {len(line):,} tokens is too long to translate, {POSITIONS:,} is the limit: "
                    f"split it into sentences ({text[:40]!r}...)"
                )
        found = self._translated(model, lines, options.batch or self.prediction_batch, options.watch)
        return [TranslatedText(text) for text in found]

    @torch.no_grad()
    def _translated(
        self,
        model: nn.Module,
        lines: Sequence[Tensor],
        batch: int = TRANSLATED_AT_ONCE,
        watch: Callable[[int], None] = ignore_count,
    ) -> list[str]:
        """Translate source lines by beam search, in batches of similar length.

        Args:
            model: The model.
            lines: The token numbers of each source line.
            batch: Number of lines that are translated at once.
            watch: Called with the number of lines that are done.
        """
        device = next(model.parameters()).device
        translations: dict[int, str] = {}
        for rows in by_length(lines, batch):
            source = padded([lines[row] for row in rows], PAD).to(device)
            found = model.generate(  # type: ignore[operator]
                input_ids=source,
                attention_mask=(source != PAD).long(),
                num_beams=self.settings.beam,
                max_new_tokens=min(source.shape[1] * 3 // 2 + 10, POSITIONS - 1),
                do_sample=False,
            )
            translations.update(zip(rows, self.subwords[1].decode(found.tolist()), strict=True))
            watch(len(translations))
        return [translations[row] for row in sorted(translations)]


def smoothed_cross_entropy(scores: Tensor, right: Tensor, smoothing: float) -> Tensor:
    """fairseq's smoothed loss: the right word has probability 1 - smoothing, the V - 1 others share the rest evenly."""
    return cross_entropy(scores, right, label_smoothing=spread(smoothing, scores.shape[1]))


def spread(smoothing: float, words: int) -> float:
    """The value of torch's `label_smoothing` that gives fairseq's smoothing.

    torch spreads it over all V words, including the right one, so it must be V / (V - 1) times as large.
    """
    return smoothing * words / (words - 1)
