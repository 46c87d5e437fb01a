"""The setting for everybody: what SharpBackward and SharpnessAware use when no perturbation is given."""

from __future__ import annotations

from gasam.perturbation import Perturbation, ga_sam
from gasam.schedule import Schedule, StrengthOfStep


def recommended() -> tuple[Perturbation, Schedule]:
    """GA-SAM with a loss budget of 0.1, a cap of 1 percent, and full strength once the loss has fallen by 20 percent.

    `benchmarks/first_use choose` compares it with other candidates on validation data, and the guide has the results on
    test data. No candidate was clearly better: with the norm 2 classifiers gained and language models lost; a cap of
    0.02 or a budget of 0.3 made no clear difference.
    """
    return ga_sam(budget=0.1, cap=0.01), Schedule(progress=0.2)


def or_recommended(
    perturbation: Perturbation | None, schedule: Schedule | StrengthOfStep | None
) -> tuple[Perturbation, Schedule | StrengthOfStep | None]:
    """What the user gave. Without a perturbation it is the recommended one, with its schedule unless one is given."""
    if perturbation is not None:
        return perturbation, schedule
    perturbation, usual = recommended()
    return perturbation, usual if schedule is None else schedule
