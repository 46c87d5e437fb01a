"""The metric of a run under corrupted weights, as in the paper's Table 4, and the radius at which half is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from gasam.analysis.corruption import pruned, quantised
from gasam.analysis.objective import examined
from gasam.analysis.robustness import TABLE4, Point, half_radius, robustness
from gasam.lab.analyses.comparing import Measure, Plotted, example_count, norm_name
from gasam.lab.analyses.definition import Analysis, Found, Labels, Measurement, option
from gasam.lab.analyses.loading import LoadedRun
from gasam.lab.command_text import parsed_norm, parsed_numbers
from gasam.lab.errors import InputError
from gasam.lab.record import AnalysisRecord, Metric
from gasam.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPRESSIONS: dict[str, Callable[[nn.Module], AbstractContextManager[None]]] = {
    "8-bit weights": lambda model: quantised(model, 8),
    "4-bit weights": lambda model: quantised(model, 4),
    "half of the weights pruned": lambda model: pruned(model, 0.5),
    "nine tenths pruned": lambda model: pruned(model, 0.9),
}


def in_units(metric: Metric) -> str:
    return f"{metric.name}, {metric.unit}" if metric.unit else metric.name


@dataclass(frozen=True, kw_only=True)
class Robustness(Analysis):
    """Measure the metric under corrupted weights: attacked, random, quantised and pruned.

    Example: `gasam attack runs/A.json runs/B.json --norm inf --radii table4`
    """

    norm: float = option(2.0, help="Norm of the ball: 2, inf, or any number > 1.", text="2")
    radii: tuple[float, ...] = option(
        (),
        help="Radii: collapse (search until half of the metric is lost), table4 (the paper's), or numbers separated "
        "by commas.",
        text="collapse",
    )
    steps: int = option(10, help="Number of ascent steps of an attack, K.")
    restarts: int = option(1, help="Number of further attacks, from random points of the ball.")
    draws: int = option(1, help="Number of random corruptions at each radius.")
    judged: int | None = option(
        None, help="Number of test examples for the metric. Default: all.", panel="The examples"
    )

    kind = command = "attack"
    title = "Metric under corrupted weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judged is not None and self.judged < 1:
            raise InputError(f"judged must be a whole number >= 1, got {self.judged}")

    @classmethod
    def from_command(cls, **given: Any) -> Self:
        norm = parsed_norm(given["norm"])
        return cls(**given | {"norm": norm, "radii": _parsed_radii(given["radii"], norm)})

    @property
    def ball(self) -> str:
        return norm_name(self.norm)

    @property
    def filed(self) -> str:
        return f"{self.kind}-{self.ball}-listed" if self.radii else f"{self.kind}-{self.ball}"

    @property
    def manner(self) -> str:
        if not self.radii:
            return f"{self.ball}, up to collapse"
        return f"{self.ball}, {'the radii of Table 4' if self.radii == TABLE4.get(self.norm) else 'given radii'}"

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        points = [Point.from_json(point) for point in measurement.kept.get("points", ())]

        def keep_point(point: Point) -> None:
            points.append(point)
            measurement.keep({"points": points})

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
            watch=lambda done, of: measurement.report(f"{len(points)} radii done, the next {done}/{of}"),
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

    def table(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table:
        """A table with a row for each corruption and a column for each run, as in Table 4."""
        return self._table(found, labels, sorted({point["radius"] for each in found for point in each.found["points"]}))

    def page_table(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table:
        """Without the radii of a search for the collapse, which `series` has."""
        return self.table(found, labels) if self.radii else self._table(found, labels, [])

    def series(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table | None:
        """The loss and the metric at every radius of a search for the collapse, of all runs."""
        if self.radii:
            return None
        columns = ("radius", "loss", "metric", "random_loss", "random_metric")
        rows = [
            (label, str(each.run.seed), *(_exact(point[column]) for column in columns))
            for each, label in zip(found, labels, strict=True)
            for point in each.found["points"]
        ]
        return Table(self.title, ("run", "seed", *columns), tuple(rows))

    def _table(self, found: Sequence[AnalysisRecord], labels: Labels, radii: Sequence[float]) -> Table:
        rows = [("none", *(_shown(each.found["clean_metric"]) for each in found))]
        if any(each.found["floor"] for each in found):
            rows.append(("a model that knows nothing", *map(_floor, found)))
        for radius in radii:
            for key, corruption in (("metric", "attack"), ("random_metric", "random")):
                cells = [_metric_at(each, radius, key) for each in found]
                if any(cells):
                    rows.append((f"{self.ball}, {radius:.3g}, {corruption}", *cells))
        rows += [(how, *(_shown(each.found["compressed"][how]) for each in found)) for how in COMPRESSIONS]
        lost = "half is lost" if all(each.found["higher_is_better"] for each in found) else "half is lost or doubled"
        rows.append((f"{lost} at ({self.ball}, attack)", *(_half(each.found["half_radius"]) for each in found)))
        values = tuple({"run": each.run.name} | each.found for each in found)
        return Table(self.title, ("corruption", *labels), tuple(rows), (self.note(found),), values)

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        metrics = " and ".join(dict.fromkeys(in_units(each.run.metric) for each in found))
        judged = "all" if self.judged is None else f"the first {self.judged}"
        return (
            f"The attack maximises the loss on {example_count(found)} of the {self.split} split by {self.steps} steps, "
            f"from the weights and from {self.restarts} random points; {metrics} is of {judged} test examples."
        )

    def plotted(self, record: AnalysisRecord) -> Plotted:
        """The metric against the radius, which begins at 0 with the clean metric; the radius of half is marked."""
        found, metric = record.found, record.run.metric
        radii = [0.0, *(point["radius"] for point in found["points"])]
        metrics = [float(found["clean_metric"]), *(float(point["metric"]) for point in found["points"])]
        level = (float(found["floor"]), f"chance: {_shown(found['floor'])}") if found["higher_is_better"] else None
        return Plotted(
            f"attacked in {self.ball}",
            f"radius in {self.ball} (dotted: half is lost)" if found["higher_is_better"] else f"radius in {self.ball}",
            in_units(metric),
            radii,
            metrics,
            "x" if found["higher_is_better"] else "xy",
            marked=found["half_radius"]["radius"],
            level=level,
        )

    def draw(self, found: Sequence[AnalysisRecord], labels: Labels) -> list[Figure]:
        figures = super().draw(found, labels)
        for axes in (axes for figure in figures for axes in figure.axes):
            if axes.get_yscale() == "linear":
                axes.set_ylim(bottom=min(0, -0.03 * axes.get_ylim()[1]))
        return figures

    def measures(self, record: AnalysisRecord) -> Sequence[Measure]:
        half = record.found["half_radius"]
        name = f"the {self.ball} radius at which {loss_of_half(record)}"
        return [Measure(name, half["radius"], _half(half), more_is_flatter=True)]


def loss_of_half(record: AnalysisRecord) -> str:
    """What losing half means for this run's metric."""
    metric, found = record.run.metric.name, record.found
    if not found["higher_is_better"]:
        return f"{metric} is doubled"
    above = f" above the {_shown(found['floor'])} of a model that knows nothing" if found["floor"] else ""
    return f"half of the {metric}{above} is lost"


def _parsed_radii(text: str, norm: float) -> tuple[float, ...]:
    """Parse the radii: `collapse`, `table4`, or numbers separated by commas."""
    if text == "collapse":
        return ()
    if text == "table4":
        if norm not in TABLE4:
            raise InputError(f"--radii table4 needs --norm 2 or inf, got {norm:g}: give radii separated by commas")
        return TABLE4[norm]
    return parsed_numbers("--radii", text, "collapse, table4 or numbers separated by commas")


def _exact(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _shown(value: Any) -> str:
    number = float(value)
    return f"{number:.2f}" if abs(number) < 1e4 else f"{number:.1e}"


def _floor(record: AnalysisRecord) -> str:
    return _shown(record.found["floor"]) if record.found["higher_is_better"] else ""


def _metric_at(record: AnalysisRecord, radius: float, key: str) -> str:
    """The metric at a radius and its difference to the clean metric; empty if it was not measured."""
    for point in record.found["points"]:
        if point["radius"] == radius and point[key] is not None:
            value = float(point[key])
            difference = value - float(record.found["clean_metric"])
            sign = "" if difference < 0 else "+"
            return f"{_shown(value)} ({sign}{_shown(difference)})"
    return ""


def _half(half: dict[str, Any]) -> str:
    """The radius, or the bounds at which the search ended: `> 0.2` means larger than all radii that were tried."""
    if half["radius"] is not None:
        return f"{half['radius']:.3g}"
    low = f"> {half['low']:g}" if half["low"] else ""
    high = f"< {half['high']:g}" if half["high"] else ""
    return f"{low} {high}".strip() or str(half["reason"])
