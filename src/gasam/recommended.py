"""`recommended`, the settings to begin with, by what a training step may cost."""

import warnings
from dataclasses import replace
from typing import Literal

from gasam.family.random_offsets import random_offsets
from gasam.perturbation import Perturbation, check_perturbation, check_schedule, ga_sam
from gasam.schedule import Schedule, StrengthOfStep, check

Setting = tuple[Perturbation, Schedule]
_PROGRESS = Schedule(progress=0.2)
_GA_SAM = ga_sam(budget=0.1, cap=0.01)
_QUARTER = replace(_GA_SAM, needs_ascent=True)
_SETTINGS: dict[float | str, Setting] = {
    2: (_GA_SAM, _PROGRESS),
    1.25: (_QUARTER, _PROGRESS),
    1.1: (_QUARTER, Schedule(start=0.6)),
    1: (random_offsets(0.01), _PROGRESS),
    "rounding": (random_offsets(0.1), Schedule(start=0.67)),
}


def recommended(passes: float | Literal["rounding"] = 1) -> Setting:
    """The perturbation and its schedule by cost, to be used as in `SharpBackward(model, recommended(passes=2))`.

    Chosen on validation data of the programs in `benchmarks/first_use`. On their test data 1, 1.1 and 2 did no harm,
    1.25 harmed two language models, and "rounding" a fine-tuning: see the guide.

    Args:
        passes: Passes of a training step. 2: GA-SAM, at full strength once the loss has fallen by a fifth. 1.25: the
            same with `ascent` on a quarter of the batch. 1.1: that in the last 40% of training. 1: random offsets of
            1% of each tensor, at full strength once the loss has fallen by a fifth. "rounding": one pass, with random
            offsets of 10% in the last third of training, for a model that will be rounded to few bits. 1.1 and
            "rounding" need `total_steps`.
    """
    check("passes", passes, passes in _SETTINGS, f"one of {', '.join(map(repr, _SETTINGS))}")
    return _SETTINGS[passes]


def chosen(
    perturbation: Perturbation | Setting | None, schedule: Schedule | StrengthOfStep | None
) -> tuple[Perturbation, Schedule | StrengthOfStep | None]:
    """The user's choice, checked, or the recommended perturbation; its usual schedule, unless the user gave one."""
    if perturbation is None:
        perturbation = recommended()
    if isinstance(perturbation, tuple):
        perturbation, usual = perturbation
        schedule = usual if schedule is None else schedule
    check_perturbation(perturbation)
    if perturbation.budget and perturbation.cap is None:
        warnings.warn(
            "a budget without a cap does not bound epsilon, which grows as the gradient vanishes: add a cap, as in "
            "ga_sam(budget=0.1, cap=0.01)",
            stacklevel=3,
        )
    if schedule is None and perturbation.method is not None:
        schedule = perturbation.method.usual_schedule
    check_schedule(perturbation, schedule)
    return perturbation, schedule
