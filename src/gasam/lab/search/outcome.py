"""The outcome of a trial on the validation split, as the files of a search hold it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer

from gasam.lab.families.family import Recipe
from gasam.lab.search.strategy import Candidate
from gasam.lab.search.worth import Pruner, stops


class Outcome(BaseModel):
    """The outcome of training with one seed, with or without a walk.

    Args:
        valid: The score; None if training diverged or was stopped early.
        error: The standard error of the score; older files lack it.
        worthless: The score of guessing.
        diverged: Whether the loss became infinite or NaN.
        curve: The score after each epoch.
        gradient_evaluations: Number of gradient evaluations.
        seconds: Time of training.
        commit: The commit of the code; None if it is not known.
        dirty: Whether the code had uncommitted changes.
        seed: The seed, only if it is not the seed of the search.
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

    def is_final(self, settings: Recipe, pruner: Pruner | None) -> bool:
        """Whether the trial was completed, diverged, or would be stopped early again. If not, it has to be rerun."""
        if self.diverged or len(self.curve) == settings.epochs:
            return True
        return pruner is not None and stops(pruner, self.curve, settings)

    def as_json(self) -> dict[str, Any]:
        """The fields that were set, so that older files do not change."""
        return self.model_dump(mode="json", exclude_unset=True)


class Trial(Outcome):
    """The outcome of training with a walk, and the walk: its norm, mantissa, exponent and cap, see `Candidate`."""

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
