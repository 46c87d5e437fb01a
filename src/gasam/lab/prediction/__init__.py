"""The use of trained models: loading a finished run from its folder alone, and predictions for new inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from gasam.lab.errors import InputError, checked
from gasam.lab.families.family import Family, PredictionOptions, WholeInput
from gasam.lab.record import Record
from gasam.lab.training.stored import find_run

__all__ = ["TrainedRun", "load"]

Answer = tuple[int, dict[str, Any] | None]
"""The line number of an input and its prediction; None for a blank input."""


@dataclass(frozen=True)
class TrainedRun:
    """A trained model with its record; `load` reads it from disk.

    Args:
        name: The name of the run.
        record: The record of the run, with its settings and scores.
        family: The family of the model, without the training data.
        model: The trained model, a torch module in eval mode.
        text_column: The column of the texts that it was trained on, if it was trained on a table.
    """

    name: str
    record: Record
    family: Family[Any]
    model: nn.Module
    text_column: str = "text"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the model and its training."""
        return self.record.settings

    def predict(
        self,
        inputs: Sequence[Any],
        *,
        words: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
        batch: int | None = None,
    ) -> list[dict[str, Any]]:
        """What the model says about each input, as `gasam predict --json` prints it.

        A dictionary has the names `class` and `probabilities`, `translation`, or `perplexity`, `words` and
        `continuation`; for an own model those of its task file.

        Args:
            inputs: Texts; for images their pixels, whole numbers from 0 to 255, as lists, bytes or arrays.
            words: Maximum number of words that a language model adds to each text; by default 10.
            temperature: Draw these words, at 1 with their probabilities, below 1 with a preference for likely words.
                By default, or at 0, the most likely word is taken each time.
            seed: Seed of drawn words, by default 0. A seed without a temperature draws at temperature 1.
            batch: Number of inputs that the model reads at once; by default as many as in evaluation.
        """
        if isinstance(inputs, str | bytes):
            raise InputError(f"inputs must be a list, such as [{inputs[:20]!r}], got one {type(inputs).__name__}")
        for number, each in enumerate(inputs, start=1):
            if isinstance(each, str) and not each.strip():
                raise InputError(f"input {number} of {len(inputs)} is blank: leave it out")
        options = self.checked(checked(PredictionOptions, batch=batch, words=words, temperature=temperature, seed=seed))
        return self.family.predict(self.model, inputs, options) if len(inputs) else []

    def checked(self, options: PredictionOptions) -> PredictionOptions:
        """The options; raise if they are not for this model."""
        if options.continues and not self.family.continues_text:
            raise InputError(f"words, temperature and seed are for language models, but {self.name} is none")
        return options

    def answers(
        self,
        numbered: Iterable[tuple[int, Any]],
        options: PredictionOptions,
        *,
        whole: WholeInput | None = None,
        at_once: int | None = None,
    ) -> Iterator[Answer]:
        """Predict inputs one after another, with only a few batches of them in memory.

        Args:
            numbered: The inputs with their line numbers, such as `family.read_inputs` gives them.
            options: The options of the prediction.
            whole: Collects what is said about all inputs together.
            at_once: Number of inputs that are read before the first is predicted; by default what the family needs.
        """
        count = at_once or (options.batch or self.family.prediction_batch) * self.family.batches_at_once
        source = iter(numbered)
        while chunk := list(islice(source, count)):
            inputs = [value for _, value in chunk if value is not None]
            found = iter(self.family.predict(self.model, inputs, options) if inputs else [])
            if whole is not None:
                whole.add(inputs)
            for line, value in chunk:
                yield line, None if value is None else next(found)


def load(run: str | Path, *, cpu: bool = False) -> TrainedRun:
    """Load a trained model. Its folder is enough: neither its training data nor its record beside it is needed.

    Args:
        run: The record of a finished run, "runs/NAME.json", or its folder, "runs/NAME".
        cpu: Use the CPU even if there is a GPU.
    """
    found = find_run(Path(run))
    found.check_weights()
    family = found.family()
    try:
        model = found.trained(family.model(), cpu=cpu)
    except KeyError as error:
        raise InputError(f"{found.folder.encoding} is damaged (it lacks {error}): copy it again") from None
    column = found.description.origin.text_column if found.description is not None else "text"
    return TrainedRun(found.name, found.record, family, model, column)
