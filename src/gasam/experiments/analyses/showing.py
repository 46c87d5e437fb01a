"""Analysed runs side by side: their names, their baselines, their lines in a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gasam.experiments.records import Record
from gasam.experiments.report.groups import grouped, labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = dict[str, Any]


def run_labels(found: Sequence[Record]) -> list[str]:
    """A name for each analysed run that tells it apart from the others, its task in front where there are several."""
    runs = [each["run"] for each in found]
    several = len({run["task"] for run in runs}) > 1
    told: dict[str, str] = {}
    for kind in dict.fromkeys(map(_kind, runs)):
        groups = grouped(run for run in runs if _kind(run) == kind)
        for group, label in zip(groups, labels(groups), strict=True):
            for run in group.runs:
                task = f"{run['task']}: " if several else ""
                seed = f", seed {run['seed']}" if len(group.runs) > 1 else ""
                told[run["name"]] = f"{task}{label}{seed}"
    return [told[run["name"]] for run in runs]


def versus_baseline(found: Sequence[Record]) -> Iterator[tuple[str, str, Found, str, Found]]:
    """Task, name and numbers of each run that is not a baseline, beside name and numbers of the baseline of its task
    that spent nearest to as many gradient evaluations."""
    named = list(zip(found, run_labels(found), strict=True))
    for each, label in named:
        plain = [
            (abs(math.log(other["run"]["gradient_evaluations"] / each["run"]["gradient_evaluations"])), number)
            for number, (other, _) in enumerate(named)
            if other["run"]["method"] == "baseline" and _kind(other["run"]) == _kind(each["run"])
        ]
        if plain and each["run"]["method"] != "baseline":
            base, name = named[min(plain)[1]]
            yield each["run"]["task"], label, each["found"], name, base["found"]


def panels(found: Sequence[Record], line: Callable[..., Any], *, title: str, **described: str) -> Figure:
    """A panel for each task, a line for each run: grey for the baselines, orange for GA-SAM."""
    from gasam.analysis.pictures import BASELINE, DASHES, GA_SAM, draw_lines, sheet

    told = dict(zip((each["run"]["name"] for each in found), run_labels(found), strict=True))
    kinds = list(dict.fromkeys(_kind(each["run"]) for each in found))
    figure, axes = sheet(len(kinds))
    for kind, panel in zip(kinds, axes, strict=True):
        before: dict[str, int] = {}
        lines = []
        for each in (each for each in found if _kind(each["run"]) == kind):
            method = each["run"]["method"]
            number = before[method] = before.get(method, -1) + 1
            lines.append(
                line(
                    each,
                    label=told[each["run"]["name"]].removeprefix(f"{kind[0]}: "),
                    colour={"baseline": BASELINE, "ga-sam": GA_SAM}.get(method),
                    dashes=DASHES[number % len(DASHES)],
                )
            )
        draw_lines(panel, lines, title=f"{kind[0]}, size {kind[1]}: {title}", **described)
    return figure


def _kind(run: Record) -> tuple[str, str]:
    return run["task"], run["size"]
