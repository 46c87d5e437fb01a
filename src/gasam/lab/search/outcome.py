"""What a trial measured on the validation split, as the files of a search hold it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer

from gasam.lab.search.strategy import Candidate
from gasam.lab.search.worth import BehindBaseline


class Outcome(BaseModel):
    """What training with one seed gave, with or without a walk.

    `valid` is the score, None if training diverged or was given up; `error` is its standard error, which older files
    lack. `worthless` is the score of guessing. `curve` has a score for each epoch. `seed` is there only if it is not
    the seed of the search.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    valid: float | None
    error: float | None = None
    worthless: float
    diverged: bool
    curve: tuple[float | None, ...]
    gradient_evaluations: int
    seconds: float
    commit: str | None = None
    dirty: bool | None = None
    seed: int | None = None

    def is_final(self, epochs: int, pruner: BehindBaseline | None) -> bool:
        """Whether it ran to its end, diverged, or would be given up now too; otherwise it has to be run again."""
        if self.diverged or len(self.curve) == epochs:
            return True
        return pruner is not None and pruner.hopeless(self.curve)

    def as_json(self) -> dict[str, Any]:
        """Without the fields that were never given, so that an older file stays as it is."""
        return self.model_dump(mode="json", exclude_unset=True)


class Trial(Outcome):
    """The outcome of a walk."""

    norm: Annotated[float, PlainSerializer("{:g}".format)]
    exponent: int
    mantissa: int
    cap: float | None = None

    @classmethod
    def of(cls, candidate: Candidate, outcome: Outcome) -> Trial:
        walk = {name: value for name, value in candidate._asdict().items() if value is not None}
        return cls(**walk, **outcome.model_dump(exclude_unset=True))

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.norm, self.exponent, self.mantissa, self.cap)
