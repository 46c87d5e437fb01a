"""The metric of a run under corrupted weights, as in the paper's Table 4, and the radius at which half is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import nn

from gasam.analysis.corruption import pruned, quantised
from gasam.analysis.objective import examined
from gasam.analysis.robustness import TABLE4, Point, half_radius, robustness
from gasam.lab.analyses.analysis import Analysis, Cells, Found, Progress, as_numbers, example_count
from gasam.lab.methods import in_words
from gasam.lab.record import AnalysisRecord
from gasam.lab.training.finished import FinishedRun

COMPRESSIONS: dict[str, Callable[[nn.Module], AbstractContextManager[None]]] = {
    "8-bit weights": partial(quantised, bits=8),
    "4-bit weights": partial(quantised, bits=4),
    "half of the weights pruned": partial(pruned, fraction=0.5),
    "nine tenths pruned": partial(pruned, fraction=0.9),
}


class Attack(Analysis):
    """Measure the metric under corrupted weights: attacked, random, quantised and pruned.

    Example: `gasam attack runs/A.json runs/B.json --norm inf --radii table4`
    """

    kind = command = "attack"
    title = "Metric under corrupted weights"

    norm: float = Field(2.0, description="Norm of the ball: 2, inf, or any number > 1.", strict=False)
    radii: tuple[float, ...] = Field(
        "collapse",
        validate_default=True,
        description="Radii: collapse (search until half of the metric is lost), table4 (the paper's), or numbers "
        "separated by commas.",
    )
    steps: int = Field(10, description="Number of ascent steps of an attack, K.")
    restarts: int = Field(1, description="Number of further attacks, from random points of the ball.")
    draws: int = Field(1, description="Number of random corruptions at each radius.")
    judged: int | None = Field(None, description="Number of test examples for the metric. Default: all.", ge=1)

    @field_validator("radii", mode="before")
    @classmethod
    def _parse_radii(cls, value: object, info: ValidationInfo) -> tuple[float, ...]:
        norm = info.data.get("norm", 2.0)
        if value == "table4" and norm not in TABLE4:
            raise ValueError(f"--radii table4 needs --norm 2 or inf, got {norm:g}: give radii separated by commas")
        return () if value == "collapse" else TABLE4[norm] if value == "table4" else as_numbers(value, info)

    def measure(self, run: FinishedRun, progress: Progress) -> Found:
        points = [Point.from_json(point) for point in progress.kept.get("points", ())]

        def keep(point: Point) -> None:
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
            keep=keep,
        )
        compressed = {}
        for name, compress in COMPRESSIONS.items():
            with torch.no_grad(), examined(run.model), compress(run.model):
                compressed[name] = run.score(run.model, "test", self.judged)
        return vars(curve) | {"half_radius": half_radius(curve), "compressed": compressed}

    def table_rows(self, found: Mapping[str, AnalysisRecord]) -> list[Cells]:
        """A row for each corruption and a column for each run, as in Table 4."""
        metrics = {name: self._metrics(each) for name, each in found.items()}
        return [
            {"corruption": key[-1]} | {name: own[key] for name, own in metrics.items() if key in own}
            for key in sorted({key for own in metrics.values() for key in own})
        ]

    def _metrics(self, record: AnalysisRecord) -> dict[tuple[int, float, str], str]:
        """The metric under each corruption, and its difference to the clean one. The keys sort as the rows do."""
        found, clean, ball = record.found, float(record.found["clean_metric"]), in_words("norm", self.norm)
        metrics = {(0, 0.0, "none"): _shown(clean)}
        if found["higher_is_better"] and found["floor"]:
            metrics[0, 1.0, "a model that knows nothing"] = _shown(found["floor"])
        for point in found["points"]:
            for name, how in (("metric", "attack"), ("random_metric", "random")):
                if point[name] is not None:
                    change = _shown(float(point[name]) - clean, sign="+")
                    key = (1, float(point["radius"]), f"{ball}, {point['radius']:.3g}, {how}")
                    metrics[key] = f"{_shown(point[name])} ({change})"
        metrics |= {(2, float(i), how): _shown(value) for i, (how, value) in enumerate(found["compressed"].items())}
        return metrics | {(3, 0.0, f"half is lost, or doubled if lower is better ({ball}, attack)"): _half(record)}

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        metrics = " and ".join(dict.fromkeys(_metric(each) for each in found))
        judged = "all" if self.judged is None else f"the first {self.judged}"
        return (
            f"The attack maximises the loss on {example_count(found)} of the {self.split} split by {self.steps} steps, "
            f"from the weights and from {self.restarts} random points; {metrics} is of {judged} test examples."
        )

    def curve(self, record: AnalysisRecord) -> list[tuple[float, float]]:
        clean = {"radius": 0.0, "metric": record.found["clean_metric"]}
        return [(point["radius"], float(point["metric"])) for point in (clean, *record.found["points"])]

    def style(self, record: AnalysisRecord) -> dict[str, Any]:
        floor, higher, ball = record.found["floor"], record.found["higher_is_better"], in_words("norm", self.norm)
        marks = [{"y": floor, "text": f"chance: {_shown(floor)}"}] if higher and floor else []
        axes = {"x": f"radius in {ball}", "y": _metric(record), "log": "x" if higher else "xy"}
        return axes | {"title": f"attacked in {ball}", "marks": marks}


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
