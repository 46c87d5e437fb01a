"""Where the size of a walk comes from, as a record tells it."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

OLD_SENTENCE = re.compile(
    r"(?P<kind>paper|chosen|tuned)(?: on validation)?"
    r"(?P<gainless> without a gain)?(?P<usual> for the usual walk)?(?: of (?P<task>[\w-]+))?"
    r"(?:, (?P<trials>\d+) (?:try|tries)|, (?P<multiple>[\d.e-]+) x|, (?P<remark>.+))?"
)


class EpsilonSource(BaseModel):
    """Where the size of a walk comes from.

    Args:
        kind: How it was chosen: "paper" from the paper, "chosen" by hand on validation, "recommended" by the
            recommended walk, "tuned" by `gasam tune`, "given" by the user; "none" for plain training.
        borrowed_from: The task that the number was chosen for, if it is not the run's own task.
        trials: Number of trials of the search, if it was tuned.
        multiple: The factor by which the tuned epsilon was multiplied, if any.
        for_usual_walk: Whether it was tuned for the method's default options, of which this run changes some.
        without_gain: Whether the search found nothing better than plain training.
        remark: A remark on the paper's number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["none", "paper", "chosen", "recommended", "tuned", "given"]
    borrowed_from: str | None = None
    trials: int | None = None
    multiple: float | None = None
    for_usual_walk: bool = False
    without_gain: bool = False
    remark: str = ""

    def __str__(self) -> str:
        names = {"chosen": "chosen on validation", "tuned": "tuned on validation", "given": "command line"}
        text = names.get(self.kind, self.kind)
        if self.without_gain:
            text += " without a gain"
        if self.for_usual_walk:
            text += " for the usual walk"
        if self.borrowed_from is not None:
            text += f" of {self.borrowed_from}"
        if self.remark:
            text += f", {self.remark}"
        if self.trials is not None:
            text += ", 1 try" if self.trials == 1 else f", {self.trials} tries"
        if self.multiple is not None:
            text += f", {self.multiple:g} x"
        return text

    @classmethod
    def of_sentence(cls, text: str) -> EpsilonSource:
        """Parse the text that `str` gives; the first records hold this text instead of the fields."""
        plain: dict[str, Any] = {"none": "none", "recommended": "recommended", "command line": "given"}
        if text in plain:
            return cls(kind=plain[text])
        found = OLD_SENTENCE.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a known source of an epsilon")
        kinds: dict[str, Any] = {"paper": "paper", "chosen": "chosen", "tuned": "tuned"}
        return cls(
            kind=kinds[found["kind"]],
            borrowed_from=found["task"],
            trials=int(found["trials"]) if found["trials"] else None,
            multiple=float(found["multiple"]) if found["multiple"] else None,
            for_usual_walk=found["usual"] is not None,
            without_gain=found["gainless"] is not None,
            remark=found["remark"] or "",
        )
