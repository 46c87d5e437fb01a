"""Reading of single lines by a language model: the perplexity of each, and the words that may follow."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from gasam.lab.families.prediction import PredictionOptions, TextPerplexity
from gasam.lab.families.vocabulary import Vocabulary

State = tuple[Tensor, Tensor]
USUAL_WORDS = 10
"""Number of words that are added to a line by default."""


@dataclass(frozen=True)
class LineReader:
    """Reads lines, each on its own: its first word follows the end of a line, and the state starts at zero.

    Args:
        model: The language model, called with words (time x lines) and a state; it gives scores and the next state.
        vocabulary: The vocabulary of the model.
        end: The word that ends a line.
        length: Number of words that are read at once.
    """

    model: nn.Module
    vocabulary: Vocabulary
    end: str
    length: int

    def read(self, lines: Sequence[str], batch: int, options: PredictionOptions) -> list[TextPerplexity]:
        """The perplexity of every line, with its end as a word, and a continuation if words are asked for.

        Lines with the same number of words are read together, so that no line is padded.

        Args:
            lines: The lines.
            batch: Maximum number of lines that are read together.
            options: The options of the prediction.
        """
        numbers = [self.vocabulary.encode([self.end, *line.split(), self.end]) for line in lines]
        by_length: dict[int, list[int]] = {}
        for row, line in enumerate(numbers):
            by_length.setdefault(len(line), []).append(row)
        found: dict[int, TextPerplexity] = {}
        for rows in by_length.values():
            for start in range(0, len(rows), batch):
                some = rows[start : start + batch]
                texts = [lines[row] for row in some]
                found.update(zip(some, self._together(texts, [numbers[row] for row in some], options), strict=True))
                options.watch(len(found))
        return [found[row] for row in range(len(lines))]

    @torch.no_grad()
    def _together(
        self, texts: Sequence[str], numbers: list[list[int]], options: PredictionOptions
    ) -> list[TextPerplexity]:
        words = torch.tensor(numbers, device=next(self.model.parameters()).device).t()
        state: State | None = None
        losses = torch.zeros(len(texts), dtype=torch.float64)
        for start in range(0, len(words) - 1, self.length):
            window = words[start : start + self.length + 1]
            scores, state = self.model(window[:-1], state)
            lost = cross_entropy(scores.flatten(0, 1), window[1:].flatten(), reduction="none")
            losses += lost.view(len(window) - 1, -1).double().sum(dim=0).cpu()
        assert state is not None
        count = len(words) - 1
        added: Sequence[str | None] = [None] * len(texts)
        if wanted := USUAL_WORDS if options.words is None else options.words:
            added = self._continued(texts, scores[-1], state, wanted, options)
        perplexities = [exponential(loss / count) for loss in losses.tolist()]
        return [TextPerplexity(each, count, more) for each, more in zip(perplexities, added, strict=True)]

    def _continued(
        self, texts: Sequence[str], scores: Tensor, state: State, words: int, options: PredictionOptions
    ) -> list[str]:
        """Up to `words` words after each text. <unk> is never chosen, and the end of a line ends a continuation."""
        temperature, seed = options.drawing_temperature, options.seed or 0
        generators = [_generator(seed, text) for text in texts] if temperature else []
        end = self.vocabulary.numbers[self.end]
        chosen: list[list[int]] = [[] for _ in texts]
        for _ in range(words):
            scores = scores.double().cpu()
            scores[:, self.vocabulary.unknown] = -math.inf
            if temperature:
                shares = (scores / temperature).softmax(dim=1)
                drawn = [torch.multinomial(s, 1, generator=g) for s, g in zip(shares, generators, strict=True)]
                following = torch.cat(drawn)
            else:
                following = scores.argmax(dim=1)
            for line, number in zip(chosen, following.tolist(), strict=True):
                if not line or line[-1] != end:
                    line.append(number)
            if all(line[-1] == end for line in chosen):
                break
            found, state = self.model(following[None].to(state[0].device), state)
            scores = found[-1]
        spoken = ([number for number in line if number != end] for line in chosen)
        return [" ".join(self.vocabulary.words[number] for number in line) for line in spoken]


def exponential(loss: float) -> float:
    """The perplexity of a mean loss, which is kept finite."""
    return math.exp(min(loss, 100.0))


def _generator(seed: int, text: str) -> Generator:
    """A generator of a line's own, so that what is drawn depends neither on other lines nor on the batch."""
    digest = hashlib.sha256(f"{seed} {text}".encode()).digest()
    return Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
