"""The metric of a run under corrupted weights, as in the paper's Table 4, and the radius at which half is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from pydantic import ValidationInfo, field_validator
from torch import nn

from gasam.analysis.corruption import pruned, quantised
from gasam.analysis.objective import examined
from gasam.analysis.robustness import TABLE4, Point, half_radius, robustness
from gasam.lab.analyses.analysis import (
    Analysis,
    Cells,
    Found,
    Labels,
    Norm,
    Progress,
    as_numbers,
    example_count,
    methods_of,
    norm_name,
    option,
)
from gasam.lab.output import Chart, Table, lines
from gasam.lab.record import AnalysisRecord
from gasam.lab.training.finished import FinishedRun

COMPRESSIONS: dict[str, Callable[[nn.Module], AbstractContextManager[None]]] = {
    "8-bit weights": lambda model: quantised(model, 8),
    "4-bit weights": lambda model: quantised(model, 4),
    "half of the weights pruned": lambda model: pruned(model, 0.5),
    "nine tenths pruned": lambda model: pruned(model, 0.9),
}


class Attack(Analysis):
    """Measure the metric under corrupted weights: attacked, random, quantised and pruned.

    Example: `gasam attack runs/A.json runs/B.json --norm inf --radii table4`
    """

    kind = command = "attack"
    title = "Metric under corrupted weights"

    norm: Norm = option(2.0, "Norm of the ball: 2, inf, or any number > 1.", text="2")
    radii: tuple[float, ...] = option(
        (),
        "Radii: collapse (search until half of the metric is lost), table4 (the paper's), or numbers separated by "
        "commas.",
        text="collapse",
    )
    steps: int = option(10, "Number of ascent steps of an attack, K.")
    restarts: int = option(1, "Number of further attacks, from random points of the ball.")
    draws: int = option(1, "Number of random corruptions at each radius.")
    judged: int | None = option(
        None, "Number of test examples for the metric. Default: all.", panel="The examples", ge=1
    )

    @field_validator("radii", mode="before")
    @classmethod
    def _parse_radii(cls, value: object, info: ValidationInfo) -> tuple[float, ...]:
        norm = info.data.get("norm", 2.0)
        if value == "collapse":
            return ()
        if value == "table4":
            if norm not in TABLE4:
                raise ValueError(f"--radii table4 needs --norm 2 or inf, got {norm:g}: give radii separated by commas")
            return TABLE4[norm]
        return as_numbers(value, "radii", "collapse, table4 or numbers separated by commas")

    def measure(self, run: FinishedRun, progress: Progress) -> Found:
        points = [Point.from_json(point) for point in progress.kept.get("points", ())]

        def keep_point(point: Point) -> None:
            points.append(point)
            progress.keep({"points": points})

        curve = robustness(
            *run.on(self.split, self.rows),
            lambda model: run.score(model, "test", self.judged),
            self.radii or None,
            self.norm,
            higher_is_better=run.family.metric.higher_is_better,
            floor=run.family.worthless("test", self.judged),
            steps=self.steps,
            restarts=self.restarts,
            draws=self.draws,
            known=list(points),
            seed=self.seed,
            watch=lambda done, of: progress.say(f"{len(points)} radii done, the next {done}/{of}"),
            keep=keep_point,
        )
        compressed = {}
        for name, compress in COMPRESSIONS.items():
            with torch.no_grad(), examined(run.model), compress(run.model):
                compressed[name] = run.score(run.model, "test", self.judged)
        return curve.as_json() | {
            "half_radius": half_radius(curve),
            "half_radius_random": half_radius(curve, "random") if self.draws else None,
            "compressed": compressed,
        }

    def cells(self, record: AnalysisRecord) -> list[Cells]:
        """A row for each corruption, with the metric and its difference to the clean one."""
        found, clean = record.found, float(record.found["clean_metric"])
        metrics: dict[str, str] = {"none": _shown(clean)}
        if found["higher_is_better"] and found["floor"]:
            metrics["a model that knows nothing"] = _shown(found["floor"])
        for point in found["points"]:
            for key, corruption in (("metric", "attack"), ("random_metric", "random")):
                if point[key] is not None:
                    change = _shown(float(point[key]) - clean, sign="+")
                    row = f"{norm_name(self.norm)}, {point['radius']:.3g}, {corruption}"
                    metrics[row] = f"{_shown(point[key])} ({change})"
        metrics |= {how: _shown(metric) for how, metric in found["compressed"].items()}
        metrics[f"half is lost, or doubled if lower is better ({norm_name(self.norm)}, attack)"] = _half(record)
        return [{"corruption": corruption, "metric": metric} for corruption, metric in metrics.items()]

    def table(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table:
        """A row for each corruption and a column for each run, as in Table 4."""
        plain = super().table(found, labels)
        rows: dict[str, Cells] = {}
        for cell in plain.rows:
            row = rows.setdefault(cell["corruption"], {"corruption": cell["corruption"]})
            row[cell["run"]] = cell["metric"]
        return Table(self.title, self._in_order(list(rows.values())), plain.notes, plain.values)

    def _in_order(self, rows: list[Cells]) -> list[Cells]:
        """The radii in ascending order between the clean metric and the compressions, also if runs differ in them."""
        ball = f"{norm_name(self.norm)}, "
        radii = [row for row in rows if row["corruption"].startswith(ball)]
        radii.sort(key=lambda row: float(row["corruption"].split(", ")[1]))
        first = next((place for place, row in enumerate(rows) if row in radii), 0)
        others = [row for row in rows if row not in radii]
        return others[:first] + radii + others[first:]

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        metrics = " and ".join(dict.fromkeys(_metric(each) for each in found))
        judged = "all" if self.judged is None else f"the first {self.judged}"
        return (
            f"The attack maximises the loss on {example_count(found)} of the {self.split} split by {self.steps} steps, "
            f"from the weights and from {self.restarts} random points; {metrics} is of {judged} test examples."
        )

    def chart(self, found: Sequence[AnalysisRecord], labels: Labels) -> Chart:
        """The metric against the radius, which begins at 0 with the clean metric."""
        run, first = found[0].run, found[0].found
        points = []
        for each in found:
            curve = {0.0: float(each.found["clean_metric"])}
            curve |= {point["radius"]: float(point["metric"]) for point in each.found["points"]}
            points += [{"label": labels[each.run.key], "seed": each.run.seed, "x": x, "y": y} for x, y in curve.items()]
        chance = first["higher_is_better"] and first["floor"]
        return lines(
            points,
            methods_of(found, labels),
            title=f"{run.task}, {run.size}: attacked in {norm_name(self.norm)}",
            x=f"radius in {norm_name(self.norm)}",
            y=_metric(found[0]),
            log="x" if first["higher_is_better"] else "xy",
            marks=[{"y": first["floor"], "text": f"chance: {_shown(first['floor'])}"}] if chance else [],
        )

    def measures(self, record: AnalysisRecord) -> dict[str, str]:
        """The radius at which half is lost, or without a search the metric under the largest attack."""
        ball = norm_name(self.norm)
        if self.radii:
            last = max(record.found["points"], key=lambda point: float(point["radius"]))
            return {f"the {record.run.metric.name} at {ball} radius {last['radius']:g}": _shown(last["metric"])}
        return {f"the {ball} radius at which {loss_of_half(record)}": _half(record)}


def loss_of_half(record: AnalysisRecord) -> str:
    """What happens at the radius of half, in words."""
    found, metric = record.found, record.run.metric.name
    if not found["higher_is_better"]:
        return f"{metric} is doubled"
    above = f" above the {_shown(found['floor'])} of a model that knows nothing" if found["floor"] else ""
    return f"half of the {metric}{above} is lost"


def _metric(record: AnalysisRecord) -> str:
    metric = record.run.metric
    return f"{metric.name}, {metric.unit}" if metric.unit else metric.name


def _shown(value: Any, sign: str = "") -> str:
    number = float(value)
    return f"{number:{sign}.2f}" if abs(number) < 1e4 else f"{number:{sign}.1e}"


def _half(record: AnalysisRecord) -> str:
    """The radius, or the bounds at which the search ended: `> 0.2` means larger than all radii that were tried."""
    half = record.found["half_radius"]
    if half["radius"] is not None:
        return f"{half['radius']:.3g}"
    low = f"> {half['low']:g}" if half["low"] else ""
    high = f"< {half['high']:g}" if half["high"] else ""
    return f"{low} {high}".strip() or str(half["reason"])
