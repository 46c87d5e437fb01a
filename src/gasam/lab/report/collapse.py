"""Methods that end clearly below the baseline, and models that stay at guessing level."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gasam.lab import tasks
from gasam.lab.report.groups import Group, baseline_of
from gasam.lab.report.statistics import summary
from gasam.lab.search.worth import Worth
from gasam.lab.tasks import asked_size

SHARE = 0.1
"""A method that loses more than this share of what the baseline has learned, and more than twice the noise of the test
split, has collapsed."""


def collapsed(group: Group, baseline: Group | None) -> bool:
    """Whether a method ends clearly below its baseline. Older records do not say how noisy their test split is."""
    ours, plain = summary(group.scores.values()), summary(baseline.scores.values()) if baseline else None
    if baseline is None or group.method == "baseline" or plain is None or _error(baseline) is None:
        return False
    if ours is None:
        return True
    worth = _worth(baseline)
    noise = 2 * math.sqrt(2) * (_error(baseline) or 0.0) / worth.of(plain.mean)
    return worth.gain(ours.mean, plain.mean) < -max(SHARE, noise)


def at_guessing_level(group: Group) -> bool:
    """Whether the mean is no better than guessing; False if its error is not known."""
    found, error = summary(group.scores.values()), _error(group)
    return found is not None and error is not None and _worth(group).is_guessing(found.mean, error)


def warnings(groups: Sequence[Group], names: Sequence[str], flags: str | None) -> Iterator[str]:
    """A sentence for each method that collapsed, with the command that looks for a better walk."""
    for group, name in zip(groups, names, strict=True):
        if at_guessing_level(group):
            yield f"{name} is no better than guessing ({group.runs[0].worthless:.2f})."
        if never_walked(group):
            yield f"{name} never walked: its loss did not fall enough for the schedule. Train longer."
        if collapsed(group, baseline_of(group, groups)):
            cure = "" if flags is None or group.tuned else f": run `{_tune(group)}{flags}`, then compare with --tuned"
            yield f"{name} collapsed{cure}."


def never_walked(group: Group) -> bool:
    """Whether a method that waits for progress took as many gradients as updates."""
    waits = group.walk.get("walk_progress") is not None
    return waits and all(run.gradient_evaluations == run.updates for run in group.runs)


def _tune(group: Group) -> str:
    return f"gasam tune {group.task} --method {group.method} --size {asked_size(group.task, group.size)}"


def _error(group: Group) -> float | None:
    """The standard error of the test score, from the choice of the split's examples."""
    errors = [run.test_error for run in group.runs if run.test_error is not None]
    return max(errors, default=None)


def _worth(group: Group) -> Worth:
    return Worth(tasks.find(group.task).family.metric, group.runs[0].worthless or 0.0)
