"""Searches for settings: a table of their best trials, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

from gasam.lab.methods import METHODS
from gasam.lab.output import Table
from gasam.lab.search.settings_finding import SettingsFinding, SettingsTrial
from gasam.lab.statistics import counted, number

SHOWN = 5
"""The number of trials in a table, beside the task's own settings."""


def settings_table(found: SettingsFinding) -> Table:
    """The best trials and the task's own settings: the chosen ones, then by the number of seeds and by their mean."""
    best = found.ranked()[:SHOWN]
    shown = [*best, *([] if found.own in best else [found.own])]
    chosen = found.chosen()
    sign = -1 if found.metric.higher_is_better else 1

    def place(one: SettingsTrial) -> tuple[bool, int, float]:
        mean = found.mean(one)
        return one is not chosen, -len(found.scores(one)), math.inf if mean is None else sign * mean

    rows = [_row(found, one, one is chosen) for one in sorted(shown, key=place)]
    ended = sum(one.valid is not None for one in found.trials)
    notes = [
        f"{counted(len(found.trials), 'trial')} with seed {found.seed}, of which {len(found.trials) - ended} were "
        f"stopped early or diverged; {found.gradient_evaluations:,} gradient evaluations in all.",
    ]
    if found.error:
        error = f"{number(found.error, found.metric.decimals)} {found.metric.unit_of_differences}"
        notes.append(f"The standard error of a difference of two scores on this split is at most {error}.")
    about = f"{found.task}, size {found.size}: settings of {METHODS[found.method].title}, chosen on validation"
    return Table(about, rows, notes)


def _row(found: SettingsFinding, trial: SettingsTrial, chosen: bool) -> dict[str, str]:
    mean, seeds = found.mean(trial), len(found.scores(trial))
    unit = f", {found.metric.unit}" if found.metric.unit else ""
    return {
        "settings": assignments(trial.values) or "the task's own",
        f"validation {found.metric.name}{unit}": "diverged" if mean is None else number(mean, found.metric.decimals),
        "seeds": str(seeds),
        "gradient evaluations": f"{trial.gradient_evaluations:,}",
        "chosen": "yes" if chosen else "",
    }


def settings_conclusion(found: SettingsFinding, file: str) -> str:
    """What to do, in one sentence, and how far to trust it."""
    best, own, name = found.chosen(), found.mean(found.own), f"{found.method} on {found.task}"
    if best is None:
        return f"{name}: every trial diverged: give other ranges with --space"
    score = found.mean(best)
    assert score is not None, "a chosen trial has a score"
    if not best.values:
        return f"{name}: no settings are better than the task's own ({found.metric.shown(score)} on validation)"
    gain = "" if own is None else f", {found.metric.difference(score - own)} compared with the task's own settings"
    walk = "".join(f" --walk {found.method}.{option}={value:g}" for option, value in found.walk(best).items())
    return (
        f"{name}: {assignments(best.values)}: {found.metric.name} {found.metric.shown(score)} on validation"
        f"{gain}; {_trust(found, best)}. Use them with --settings-from {file}{walk}"
    )


def _trust(found: SettingsFinding, best: SettingsTrial) -> str:
    """Whether the gain is larger than the noise: that of the seeds if there are several, else that of the split."""
    scores = zip(found.scores(best), found.scores(found.own), strict=False)
    differences = [ours - own for ours, own in scores if ours is not None and own is not None]
    gain, decimals = abs(fmean(differences)) if differences else 0.0, found.metric.decimals
    if len(differences) > 1:
        error = stdev(differences) / math.sqrt(len(differences))
        word = "more than" if gain > 2 * error else "less than"
        return f"that is {word} twice the standard error over {len(differences)} seeds ({number(error, decimals)})"
    if gain <= found.error:
        return (
            f"that is within the noise of the split ({number(found.error, decimals)}): --seeds 3 repeats the finalists"
        )
    return "it was chosen on this split, so expect less on test"


def assignments(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
    )
