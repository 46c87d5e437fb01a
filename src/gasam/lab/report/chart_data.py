"""The rows of the charts in the HTML report: what was recorded, as plain values. Missing numbers have no row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from gasam.lab.report.comparison import SAME
from gasam.lab.report.group import Group
from gasam.lab.report.labels import label
from gasam.lab.report.pictures import Style, styles
from gasam.lab.statistics import FEW, counted, number

Row = dict[str, Any]
FULL, MAIN = 6, 7
"""Up to FULL configurations are all shown at first; of more, at most MAIN, because many lines cannot be told apart."""
DASHES = {"-": [1, 0], "--": [6, 3], "-.": [6, 3, 1, 3], ":": [2, 2]}


class Series(NamedTuple):
    """A configuration in the charts of a section, with the colour and the dashes that it has in pictures.

    `name` is short, for labels in a chart; `shown` is whether it is visible when the page opens.
    """

    label: str
    name: str
    colour: str
    dashes: list[int]
    shown: bool = True


def series_of(groups: Sequence[Group]) -> list[Series]:
    """All configurations. If they are many, the first one of each method is shown, those with the most seeds first."""
    first = {group.method: group for group in reversed(groups)}
    main = sorted(first.values(), key=lambda group: (-len(group.records), groups.index(group)))[:MAIN]
    few = len(groups) <= FULL
    return [
        _series(group, style, group.title if group is first[group.method] else label(group), few or group in main)
        for group, style in zip(groups, styles(groups), strict=True)
    ]


def analysed_series(groups: Sequence[Group], colours: Mapping[str, str]) -> list[Series]:
    """The configurations of analysed runs; `colours` are those that methods have in the section."""
    found = []
    for group, style in zip(groups, styles(groups), strict=True):
        each = _series(group, style, label(group), shown=True)
        found.append(each._replace(colour=colours.get(group.method, each.colour)))
    return found


def _series(group: Group, style: Style, name: str, shown: bool) -> Series:
    # A variable with the picture's colour as its default: the dark theme has lighter ones.
    colour = f"var(--series-{style.colour[1:]}, {style.colour})"
    return Series(label(group), name, colour, DASHES[style.dashes], shown)


def over_epochs(groups: Sequence[Group], value: Callable[[Row], float | None]) -> list[Row]:
    """A number of each epoch: its mean, smallest and largest over seeds, or the seeds themselves if they are few."""
    rows: list[Row] = []
    for group in groups:
        several = len(group.records) >= FEW
        epochs: dict[int, list[Row]] = {}
        for record in group.records:
            for point in record.curve:
                found = value(point)
                if found is not None and math.isfinite(found):
                    row = {"epoch": point["epoch"], "spent": point["gradient_evaluations"], "value": found}
                    row |= {"label": label(group), "line": f"{label(group)} {record.seed}"}
                    row["told"] = f"{_short(found)} (seed {record.seed})"
                    epochs.setdefault(point["epoch"], []).append(row)
        for same in epochs.values():
            rows += [_over_seeds(same)] if several else same
    return rows


def _over_seeds(rows: Sequence[Row]) -> Row:
    values = [row["value"] for row in rows]
    mean, low, high = fmean(values), min(values), max(values)
    spent = fmean(row["spent"] for row in rows)
    told = f"{_short(mean)} ({_short(low)} to {_short(high)}, {counted(len(values), 'seed')})"
    every = {"value": mean, "low": low, "high": high, "spent": spent, "told": told}
    return rows[0] | every | {"line": rows[0]["label"]}


def differences(groups: Sequence[Group], series: Sequence[Series]) -> list[Row]:
    """Each configuration minus its baseline: a row with the mean and its interval, and one for each common seed."""
    rows: list[Row] = []
    for group, each in zip(groups, series, strict=True):
        base, found = group.baseline, group.difference(group.baseline)
        if base is None or found is None:
            continue
        same = group.method == "baseline" and group.has_scores_of(base)
        common = {"label": each.label, "name": each.name, "baseline": label(base)}
        text = SAME if same else group.versus(base)
        mean: Row = common | {"kind": "mean", "text": text}
        if found.pairs >= FEW:
            mean |= {"value": found.mean, "low": found.low, "high": found.high}
        mean["told"] = f"{text} ({counted(found.pairs, 'common seed')})"
        rows.append(mean)
        for seed, score in group.scores.items():
            if seed in base.scores:
                value = score - base.scores[seed]
                both = f"{group.metric.shown(score)} and {group.metric.shown(base.scores[seed])}"
                told = f"{group.metric.difference(value)} (seed {seed}: {both})"
                rows.append(common | {"kind": "seed", "value": value, "told": told})
    return rows


def scores(groups: Sequence[Group], cost: Callable[[Group], float | None]) -> list[Row]:
    """The test score of each configuration at its cost: the mean and the standard deviation, or its few seeds."""
    rows: list[Row] = []
    for group in groups:
        spent, found = cost(group), group.summary
        if spent is None or found is None:
            continue
        common = {"label": label(group), "cost": spent}
        if found.seeds >= FEW and found.std is not None:
            told = f"{found.text(group.metric.decimals)} ({counted(found.seeds, 'seed')})"
            spread = {"low": found.mean - found.std, "high": found.mean + found.std}
            rows.append(common | {"kind": "mean", "value": found.mean, "told": told} | spread)
        else:
            for seed, score in group.scores.items():
                rows.append(
                    common | {"kind": "seed", "value": score, "told": f"{group.metric.shown(score)} (seed {seed})"}
                )
    return rows


def walk_rows(groups: Sequence[Group], names: Sequence[str]) -> Iterator[tuple[str, list[Row]]]:
    """The diagnostics of walks over the epochs, by name; those that no run has are left out."""
    for name in names:

        def value(point: Row, name: str = name) -> float | None:
            return (point.get("walk") or {}).get(name)

        if rows := over_epochs(groups, value):
            yield name, rows


def _short(value: float) -> str:
    return number(value) if value == 0 or 0.1 <= abs(value) < 1e6 else f"{value:.3g}"
