"""Analysed runs side by side: their names, their baselines, their lines in a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gasam.lab.records import AnalysisRecord, RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gasam.lab.analyses import Measure

    Measures = Callable[[AnalysisRecord], Sequence[Measure]]


def flatness(measures: Measures, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> str:
    """Each measure of each run that is not a baseline, beside its baselines'; without any, of all runs."""
    named = list(zip(found, labels, strict=True))
    beside = [
        f"on {each.run.task} {clause}"
        for each, label in named
        if each.run.method != "baseline" and (rivals := baselines(each, found))
        for clause in _clauses(measures, [(each, label), *(named[number] for number in rivals)])
    ]
    return "; ".join(beside or _clauses(measures, named))


def baselines(ours: AnalysisRecord, found: Sequence[AnalysisRecord]) -> list[int]:
    """Which of the records are the baselines to compare with, on the same data and if there is one with its seed: that
    with its settings, and that of nearest to as many gradient evaluations."""
    plain = [
        number
        for number, other in enumerate(found)
        if other.run.method == "baseline"
        and _kind(other.run) == _kind(ours.run)
        and other.run.data.hash == ours.run.data.hash
    ]
    plain = [number for number in plain if found[number].run.seed == ours.run.seed] or plain
    equal = [number for number in plain if _settings(found[number]) == _settings(ours)][:1]
    spent = ours.run.gradient_evaluations
    dear = sorted(plain, key=lambda number: abs(math.log(found[number].run.gradient_evaluations / spent)))[:1]
    return list(dict.fromkeys(equal + dear))


def _settings(each: AnalysisRecord) -> Any:
    return each.run.config["settings"]


def _clauses(measures: Measures, named: Sequence[tuple[AnalysisRecord, str]]) -> list[str]:
    """For each measure its name, and its number for each of the runs."""
    told: dict[str, list[str]] = {}
    for each, label in named:
        for measure in measures(each):
            told.setdefault(measure.name, []).append(f"{measure.text} for {label}")
    return [f"{name} is {', '.join(numbers)}" for name, numbers in told.items()]


def norm_name(norm: float) -> str:
    return "L-inf" if math.isinf(norm) else f"L{norm:g}"


def counted(found: Sequence[AnalysisRecord]) -> str:
    """How many examples the loss was taken on: fewer than asked for where a split has no more."""
    counts = sorted({each.examples or each.options["rows"] for each in found})
    return f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} examples"


def panels(
    found: Sequence[AnalysisRecord],
    labels: Sequence[str],
    line: Callable[..., Any],
    *,
    title: str,
    **described: str | Callable[[AnalysisRecord], str],
) -> Figure:
    """A panel for each task and size, a line for each run: grey for the baselines, orange for GA-SAM.

    `described` goes to `draw_lines`: words, or what makes them of a record of the panel.
    """
    from gasam.analysis.pictures import BASELINE, DASHES, GA_SAM, draw_lines, sheet

    named = list(zip(found, labels, strict=True))
    kinds = list(dict.fromkeys(_kind(each.run) for each in found))
    figure, axes = sheet(len(kinds))
    for kind, panel in zip(kinds, axes, strict=True):
        before: dict[str, int] = {}
        lines = []
        here = [(each, label) for each, label in named if _kind(each.run) == kind]
        for each, label in here:
            method = each.run.method
            number = before[method] = before.get(method, -1) + 1
            lines.append(
                line(
                    each,
                    label=label,
                    colour={"baseline": BASELINE, "ga-sam": GA_SAM}.get(method),
                    dashes=DASHES[number % len(DASHES)],
                )
            )
        words = {name: text(here[0][0]) if callable(text) else text for name, text in described.items()}
        draw_lines(panel, lines, title=f"{kind[0]}, size {kind[1]}: {title}", **words)
    return figure


def _kind(run: RunSummary) -> tuple[str, str]:
    return run.task, run.size
