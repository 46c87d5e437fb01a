"""The metric of a run under corrupted weights: the paper's Table 4, and on to the radius where half of it is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gasam.analysis.corruption import pruned, quantised
from gasam.analysis.curve import Point, half_radius
from gasam.analysis.objective import examined
from gasam.analysis.robustness import TABLE4, robustness
from gasam.analysis.values import plain_value
from gasam.lab.analyses import Analysis, Found, Measure, Watch
from gasam.lab.analyses.showing import counted, flatness, norm_name, panels
from gasam.lab.analyses.subjects import Subject
from gasam.lab.errors import InputError
from gasam.lab.records import AnalysisRecord
from gasam.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPRESSIONS: dict[str, Callable[[nn.Module], AbstractContextManager[None]]] = {
    "8-bit weights": lambda model: quantised(model, 8),
    "4-bit weights": lambda model: quantised(model, 4),
    "half of the weights pruned": lambda model: pruned(model, 0.5),
    "nine tenths pruned": lambda model: pruned(model, 0.9),
}


@dataclass(frozen=True, kw_only=True)
class Robustness(Analysis):
    """`radii` empty: searched for, up to collapse. `judged` limits the test examples that the metric is taken on."""

    norm: float = 2.0
    radii: tuple[float, ...] = ()
    steps: int = 10
    restarts: int = 1
    draws: int = 1
    judged: int | None = None

    kind = "attack"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judged is not None and self.judged < 1:
            raise InputError(f"judged must be a whole number >= 1, got {self.judged}")

    @property
    def ball(self) -> str:
        return norm_name(self.norm)

    @property
    def filed(self) -> str:
        return f"{self.kind}-{self.ball}{'-listed' if self.radii else ''}"

    @property
    def manner(self) -> str:
        paper = self.norm in TABLE4 and self.radii == TABLE4[self.norm]
        return f"{self.ball}, {'the radii of Table 4' if paper else 'given radii' if self.radii else 'up to collapse'}"

    def options(self) -> dict[str, Any]:
        return super().options() | {"norm": plain_value(self.norm)}

    def measure(self, subject: Subject, known: Found, keep: Callable[[Found], None], watch: Watch) -> Found:
        points = [Point.from_json(point) for point in known.get("points", ())]

        def keep_point(point: Point) -> None:
            points.append(point)
            keep({"points": [point.as_json() for point in points]})

        curve = robustness(
            subject.model,
            subject.objective,
            subject.examples(self.split, self.rows),
            lambda model: subject.score(model, "test", self.judged),
            self.radii or None,
            self.norm,
            higher_is_better=subject.family.metric.higher_is_better,
            floor=subject.family.worthless("test", self.judged),
            steps=self.steps,
            restarts=self.restarts,
            draws=self.draws,
            known=list(points),
            seed=self.seed,
            watch=lambda done, of: watch(f"{len(points)} radii done, the next {done}/{of}"),
            keep=keep_point,
        )
        return curve.as_json() | {
            "half_radius": half_radius(curve).as_json(),
            "half_radius_random": half_radius(curve, "random").as_json() if self.draws else None,
            "compressed": {name: self._compressed(subject, hold) for name, hold in COMPRESSIONS.items()},
        }

    @torch.no_grad()
    def _compressed(self, subject: Subject, hold: Callable[[nn.Module], AbstractContextManager[None]]) -> Any:
        with examined(subject.model), hold(subject.model):
            return plain_value(subject.score(subject.model, "test", self.judged))

    def table(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Table:
        """Corruptions in the rows, runs in the columns, as Table 4 has it."""
        rows = [("none", *(shown(each.found["clean_metric"]) for each in found))]
        if any(each.found["floor"] for each in found):
            floors = [each.found["floor"] if each.found["higher_is_better"] else None for each in found]
            rows.append(("a model that knows nothing", *("" if floor is None else shown(floor) for floor in floors)))
        radii = sorted({point["radius"] for each in found for point in each.found["points"]})
        for radius in radii:
            for kind, words in (("metric", "attack"), ("random_metric", "random")):
                cells = [_at(each, radius, kind) for each in found]
                if any(cells):
                    rows.append((f"{self.ball}, {radius:.3g}, {words}", *cells))
        rows += [(how, *(shown(each.found["compressed"][how]) for each in found)) for how in COMPRESSIONS]
        lost = "half is lost" if all(each.found["higher_is_better"] for each in found) else "half is lost or doubled"
        rows.append((f"{lost} at ({self.ball}, attack)", *(_half(each.found["half_radius"]) for each in found)))
        metrics = " and ".join(dict.fromkeys(each.run.metric for each in found))
        judged = "all" if self.judged is None else f"the first {self.judged}"
        notes = (
            f"The attack maximises the loss on {counted(found)} of the {self.split} split by {self.steps} steps, "
            f"from the weights and from {self.restarts} random points; {metrics} is of {judged} test examples.",
        )
        values = tuple({"run": each.run.name} | each.found for each in found)
        return Table("Metric under corrupted weights", ("corruption", *labels), tuple(rows), notes, values)

    def draw(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Figure:
        from gasam.analysis.pictures import Line

        def line(each: AnalysisRecord, **style: Any) -> Line:
            points = each.found["points"]
            heights = [float(point["metric"]) for point in points]
            half = each.found["half_radius"]["radius"]
            return Line(x=[point["radius"] for point in points], y=heights, marked=half, **style)

        figure = panels(
            found,
            labels,
            line,
            title=f"attacked in {self.ball}",
            x="radius",
            y=lambda each: str(each.run.metric),
            log=lambda each: "x" if each.found["higher_is_better"] else "xy",
        )
        for axes in figure.axes:
            if axes.get_yscale() == "linear":
                axes.set_ylim(bottom=0)
        return figure

    def measures(self, each: AnalysisRecord) -> Sequence[Measure]:
        half = each.found["half_radius"]
        name = f"the {self.ball} radius at which {loss_of_half(each)}"
        return [Measure(name, half["radius"], _half(half), more_is_flatter=True)]

    def sentence(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> str:
        return flatness(self.measures, found, labels)


def radii_named(text: str, norm: float) -> tuple[float, ...]:
    """The radii that a word stands for, or that are listed with commas."""
    if text == "collapse":
        return ()
    if text == "table4":
        if norm not in TABLE4:
            raise InputError(f"--radii table4 is for the norms 2 and inf, got {norm:g}: name radii with commas")
        return TABLE4[norm]
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--radii must be collapse, table4 or numbers with commas, got {text!r}") from None


def loss_of_half(each: AnalysisRecord) -> str:
    """What it means for this run's metric."""
    metric, found = each.run.metric, each.found
    if not found["higher_is_better"]:
        return f"{metric} is doubled"
    above = f" above the {shown(found['floor'])} of a model that knows nothing" if found["floor"] else ""
    return f"half of the {metric}{above} is lost"


def shown(value: Any) -> str:
    number = float(value)
    return f"{number:.2f}" if abs(number) < 1e4 else f"{number:.1e}"


def _at(each: AnalysisRecord, radius: float, kind: str) -> str:
    for point in each.found["points"]:
        if point["radius"] == radius and point[kind] is not None:
            clean, value = float(each.found["clean_metric"]), float(point[kind])
            return f"{shown(value)} ({shown(value - clean) if value < clean else '+' + shown(value - clean)})"
    return ""


def _half(half: dict[str, Any]) -> str:
    """A radius, or between which the search ended: `> 0.2` is beyond all that was tried."""
    if half["radius"] is not None:
        return f"{half['radius']:.3g}"
    bounds = (f"> {half['low']:g}" if half["low"] else "", f"< {half['high']:g}" if half["high"] else "")
    return " ".join(filter(None, bounds)) or str(half["reason"])
