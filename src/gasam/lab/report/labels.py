"""Names for groups of runs and for analysed runs: what each is, and what sets it apart from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gasam.lab.record import AnalysisRecord
from gasam.lab.report.frame import DURATION, groups_of
from gasam.lab.report.group import TUNED, Group

CONTROL = "no displacement"


def label(group: Group) -> str:
    return named(group.title, differing(group, group.other_walk()))


def named(name: str, differing: str) -> str:
    return f"{name} ({differing})" if differing else name


def differing(group: Group, walk: Mapping[str, Any]) -> str:
    """What its name does not promise: a radius found on validation, options of its walk, settings, data."""
    found = ""
    if group.found_on_validation:
        found = f"tuned: {radius(group)}"
        walk = {name: value for name, value in walk.items() if name not in TUNED}
    return ", ".join(filter(None, (found, in_words({**walk, **group.apart}))))


def radius(group: Group) -> str:
    if group.is_control:
        return f"{CONTROL} (budget {group.walk['budget']:g})"
    budget, cap = group.walk.get("budget"), group.walk.get("cap")
    size = f"budget {budget:g}" if budget else f"{group.walk['epsilon']:g}"
    return f"{in_words({'norm': group.walk['norm']})} {size}" + (f" with cap {cap:g}" if cap else "")


def duration(group: Group) -> str:
    """How long it was trained, if not as long as its size says."""
    return in_words({name: value for name, value in group.apart.items() if name in DURATION})


def in_words(values: Mapping[str, Any]) -> str:
    return ", ".join(_in_words(name, value) for name, value in values.items())


def configuration_labels(found: Sequence[AnalysisRecord]) -> dict[str, str]:
    """The label of each configuration of analysed runs by its key, which all its seeds share."""
    runs = [each.run for each in found]
    labels: dict[str, str] = {}
    for kind in dict.fromkeys((run.task, run.size) for run in runs):
        for group in groups_of(runs, *kind):
            labels |= {run.key: label(group) for run in group.records}
    return labels


def _in_words(name: str, value: Any) -> str:
    match name:
        case "steps":
            return f"K = {value}"
        case "norm":
            return f"L-{value}" if value == "inf" else f"L{value:g}"
        case "same_noise":
            return "same noise" if value else "fresh noise"
    words = name.replace("_", " ")
    if value is None:
        return f"all {words}" if name in ("rows", "judged") else f"no {words}"
    if isinstance(value, list):
        return f"{words} {'/'.join(map(str, value))}"
    return f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"
