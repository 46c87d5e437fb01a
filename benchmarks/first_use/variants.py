"""The variants that are compared: plain training, gasam's recommended setting, and candidates for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from torch import nn

from gasam import Perturbation, Schedule, SharpBackward, asam, ga_sam, layer_sam, recommended, sam

Variant = Callable[[nn.Module], SharpBackward | None]

PLAIN, RECOMMENDED, SAM = "plain", "recommended", "sam"
HUGE_BUDGET = 1e3

BASE, SCHEDULE = recommended()


def _walk(perturbation: Perturbation, schedule: Schedule | None = SCHEDULE) -> Variant:
    return lambda model: SharpBackward(model, perturbation, schedule=schedule)


VARIANTS: dict[str, Variant] = {
    PLAIN: lambda model: None,
    RECOMMENDED: lambda model: SharpBackward(model),
    SAM: _walk(sam(budget=BASE.budget, cap=BASE.cap)),
    "cap 0.02": _walk(replace(BASE, cap=0.02)),
    "budget 0.3": _walk(replace(BASE, budget=0.3)),
    "norm 2": _walk(replace(BASE, norm=2.0)),
    "sign": _walk(replace(BASE, budget=HUGE_BUDGET)),
    "layer_sam": _walk(layer_sam(budget=BASE.budget, cap=BASE.cap)),
    "asam": _walk(asam(budget=BASE.budget, cap=BASE.cap)),
    "paper": _walk(ga_sam(1e-4), schedule=None),
}
"""Each function takes the model and returns its `SharpBackward`, or None for plain training.

"sign" has a budget that is never reached: every layer moves by the cap along the sign of its gradient. "paper" is
GA-SAM as in the paper, without a cap and without a schedule.
"""


def settings(name: str) -> dict[str, Any]:
    """The perturbation and the schedule of a variant, as plain values for a record; None for plain training."""
    sharp = VARIANTS[name](nn.Linear(1, 1))
    if sharp is None:
        return {"perturbation": None, "schedule": None}
    return {"perturbation": as_plain(sharp.perturbation), "schedule": as_plain(sharp.clock.schedule)}


def as_plain(value: Any) -> Any:
    """A value that JSON can hold: dataclasses become dictionaries, infinity and functions become text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: as_plain(entry) for name, entry in asdict(value).items()}
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return repr(value)
