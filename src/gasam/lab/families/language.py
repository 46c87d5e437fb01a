"""Language modelling by an LSTM with tied embeddings that carries its state between batches, measured by perplexity."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from gasam.analysis.objective import CrossEntropy, Objective
from gasam.lab.data.corpus import Corpus, Split
from gasam.lab.families.family import UNKNOWN, Family, Recipe, Sampling, Score, Share, Vocabulary, bootstrapped, drawn
from gasam.lab.record import Metric

State = tuple[Tensor, Tensor]
END = "<eos>"
USUAL_WORDS = 10
"""Number of words that are added to a line by default."""
DRAWS = 1000
"""Number of bootstrap samples for the standard error of the perplexity."""


class LSTMSettings(Recipe):
    vocabulary: PositiveInt  # words, including <unk> and <eos>
    length: PositiveInt  # words of backpropagation through time
    hidden: PositiveInt  # size of the hidden layers and of the embeddings, which are tied to the output layer
    dropout: Share
    layers: PositiveInt = 2
    embedding_range: PositiveFloat = 0.1  # largest absolute value of the initial embeddings

    encoding: ClassVar[tuple[str, ...]] = ("rows", "vocabulary")

    def space(self) -> dict[str, Any]:
        return super().space() | {
            "halve_after": f"{max(1, self.epochs // 3)}..{max(2, self.epochs)}",
            "dropout": "0.1..0.7",
            "clip": "0.1..1,log",
            "weight_decay": "1e-8..1e-5,log",
            "embedding_range": "0.02..0.2,log",
        }


class LanguageModel(Family[LSTMSettings]):
    metric = followed = Metric("perplexity", higher_is_better=False)
    settings_type = LSTMSettings
    example_dim = 1
    continues_text = True

    @staticmethod
    def select(split: Split, examples: list[Any], settings: Any) -> list[Any]:
        """The first `rows` lines of the training text, because lines follow each other."""
        return examples[: settings.rows] if split == "train" else examples

    @staticmethod
    def learn(training: Corpus, settings: Any) -> dict[str, Any]:
        lines = ([*line.split(), END] for line in training.train)
        return {"words": Vocabulary.most_frequent(lines, settings.vocabulary, (UNKNOWN, END)).words}

    @staticmethod
    def encode(split: Split, examples: list[Any], shared: dict[str, Any], settings: Any) -> Tensor:
        return stream(examples, Vocabulary(shared["words"]))

    def model(self) -> nn.Module:
        return LSTM(len(self.data.shared["words"]), self.settings)

    def batches(self, order: Generator) -> Sequence[Tensor]:
        """Windows of the text in its own order, because the state is carried from one to the next."""
        return windows(self.data["train"], self.settings.batch, self.settings.length)

    def batch(self, chosen: Tensor) -> tuple[Tensor, ...]:
        return chosen[:-1], chosen[1:].long()

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...], carried: State | None) -> tuple[Tensor, State]:
        words, following = batch
        scores, (hidden, cell) = model(words, carried)
        return cross_entropy(scores.flatten(0, 1), following.flatten()), (hidden.detach(), cell.detach())

    def objective(self) -> Objective:
        """An example is a column of a window; its state starts at zero and is not carried over."""
        loss = CrossEntropy(lambda batch: batch[1].t())
        return Objective(lambda model, batch: model(batch[0], None)[0].transpose(0, 1), loss)

    def examples(self, split: Split, rows: int) -> list[tuple[Tensor, ...]]:
        every = windows(self.data[split], self.settings.batch, self.settings.length)
        whole = [chosen for chosen in every if len(chosen) == len(every[0])]
        chosen = drawn(-(-rows // self.settings.batch), len(whole)).tolist()
        return [self.batch(whole[number]) for number in chosen]

    def validate(self, model: nn.Module) -> float:
        """The perplexity, read in ten columns, which is faster than the exact one of `measure`."""
        return perplexity(*(part.sum() for part in self.losses(model, self.data["valid"], columns=10)))

    def measure(self, model: nn.Module, split: Split, rows: int | None = None) -> Score:
        """The perplexity, and its bootstrap standard error over windows; `rows` is a number of windows."""
        losses, counts = self.losses(model, self._start(split, rows))
        return bootstrapped(lambda some: perplexity(losses[some].sum(), counts[some].sum()), len(losses), DRAWS)

    def worthless(self, split: Split, rows: int | None = None) -> float:
        """The perplexity of the word frequencies in the training text, with add-one smoothing."""
        seen = self.data["train"].long().bincount(minlength=len(self.data.shared["words"])) + 1
        return math.exp(-float((seen / seen.sum()).log()[self._start(split, rows)[1:].long()].mean()))

    def _start(self, split: Split, rows: int | None) -> Tensor:
        """The first `rows` windows of a split, with the word after them; by default the whole split."""
        return self.data[split][: None if rows is None else rows * self.settings.length + 1]  # type: ignore[no-any-return]

    def losses(self, model: nn.Module, stream: Tensor, columns: int = 1) -> tuple[Tensor, Tensor]:
        """The summed loss and the number of words of every window, without the first word of each column."""
        found = [(loss, count) for loss, count, _, _ in self._read(model, stream, columns)]
        losses, counts = torch.tensor(found, dtype=torch.float64).unbind(1)
        return losses, counts

    @torch.no_grad()
    def _read(self, model: nn.Module, stream: Tensor, columns: int = 1) -> Iterator[tuple[float, int, Tensor, State]]:
        """For each window its summed loss, its number of words, the scores of the word after it, and the state."""
        device, state = next(model.parameters()).device, None
        for window in windows(stream, columns, self.settings.length):
            words, following = (part.to(device) for part in self.batch(window))
            scores, state = model(words, state)
            loss = cross_entropy(scores.flatten(0, 1), following.flatten(), reduction="sum")
            yield float(loss), following.numel(), scores[-1], state

    def predict(self, model: nn.Module, inputs: Sequence[Any], options: Sampling) -> list[dict[str, Any]]:
        """The perplexity of each line on its own, its end included, and the words that may follow it.

        The first word follows the end of a line, and the state starts at zero.
        """
        found: list[dict[str, Any]] = []
        for text in inputs:
            losses, counts, scores, states = zip(*self._read(model, stream(["", text], self.vocabulary)), strict=True)
            found.append({"perplexity": perplexity(sum(losses), sum(counts)), "words": sum(counts)})
            if options.words != 0:
                found[-1]["continuation"] = self._continuation(model, text, scores[-1][0], states[-1], options)
        return found

    @torch.no_grad()
    def _continuation(self, model: nn.Module, text: str, scores: Tensor, state: State, options: Sampling) -> str:
        """The words after a text. <unk> is never chosen, and the end of a line ends it."""
        digest = hashlib.sha256(f"{options.seed or 0} {text}".encode()).digest()
        own = Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)  # whatever the other lines are
        heat = float(options.seed is not None) if options.temperature is None else options.temperature
        chosen: list[str] = []
        while len(chosen) < (options.words or USUAL_WORDS):
            scores = scores.double().cpu()
            scores[self.vocabulary.unknown] = -math.inf
            number = int(scores.argmax())
            if heat:
                number = int(torch.multinomial((scores / heat).softmax(dim=0), 1, generator=own))
            if self.vocabulary.words[number] == END:
                break
            chosen.append(self.vocabulary.words[number])
            found, state = model(torch.tensor([[number]], device=state[0].device), state)
            scores = found[-1, 0]
        return " ".join(chosen)

    def line(self, prediction: Mapping[str, Any]) -> str:
        """The perplexity, and after a tab the continuation, if there is one."""
        continuation = f"\t{prediction['continuation']}" if "continuation" in prediction else ""
        return f"{prediction['perplexity']:.2f}{continuation}"

    def whole_input(self, model: nn.Module, inputs: Sequence[Any]) -> dict[str, Any]:
        """The perplexity of all lines as one text, read as in `measure`."""
        losses, counts = self.losses(model, stream(inputs, self.vocabulary))
        return {"perplexity": perplexity(losses.sum(), counts.sum()), "words": int(counts.sum())}


class LSTM(nn.Module):
    """Embedding, LSTM layers with dropout between all layers, and an output layer tied to the embedding."""

    def __init__(self, words: int, settings: LSTMSettings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, settings.hidden)
        self.dropout = nn.Dropout(settings.dropout)
        between = settings.dropout if settings.layers > 1 else 0.0
        self.lstm = nn.LSTM(settings.hidden, settings.hidden, settings.layers, dropout=between)
        self.output = nn.Linear(settings.hidden, words)
        nn.init.uniform_(self.embedding.weight, -settings.embedding_range, settings.embedding_range)
        nn.init.zeros_(self.output.bias)
        self.output.weight = self.embedding.weight

    def forward(self, words: Tensor, carried: State | None) -> tuple[Tensor, State]:
        outputs, state = self.lstm(self.dropout(self.embedding(words)), carried)
        return self.output(self.dropout(outputs)), state


def stream(lines: Sequence[str], vocabulary: Vocabulary) -> Tensor:
    """The words of all lines as one sequence of numbers, with <eos> after each line."""
    numbers = [number for line in lines for number in vocabulary.encode([*line.split(), END])]
    return torch.tensor(numbers, dtype=torch.int32)


def windows(stream: Tensor, columns: int, length: int) -> list[Tensor]:
    """Cut the text into parallel columns, and these into windows of `length` words and the next word.

    A text with fewer than two words per column gets fewer columns.
    """
    columns = max(1, min(columns, len(stream) // 2))
    rows = len(stream) // columns
    side_by_side = stream[: rows * columns].view(columns, rows).t().contiguous()
    return [side_by_side[start : start + length + 1] for start in range(0, rows - 1, length)]


def perplexity(loss: float | Tensor, words: int | Tensor) -> float:
    """The perplexity of the summed loss of this many words, kept finite."""
    return math.exp(min(float(loss / words), 100.0))
