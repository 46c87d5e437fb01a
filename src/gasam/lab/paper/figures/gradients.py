"""Figures 4 and 5: gradient norms over the epochs of training, and of the layers of encoder and decoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gasam.lab.paper.figures import FigureStudy, Finding, Setting
from gasam.lab.records import RunRecord


class Phases(FigureStudy):
    """The norms come from the records of training itself."""

    tasks = ("en-vi",)
    methods = ("baseline",)
    gradient_norms = True


class Figure4(Phases):
    title = "Figure 4: gradient norms over training"

    def find(self, runs: Sequence[Path], found: Sequence[RunRecord], setting: Setting) -> Finding:
        from gasam.analysis.pictures import PlotLine, draw_lines, sheet

        figure, [axes] = sheet(1)
        norms = {f"{r.task}, seed {r.seed}": [row["gradient_norm"] for row in r.curve] for r in found}
        lines = [PlotLine(label, range(1, len(values) + 1), values) for label, values in norms.items()]
        draw_lines(axes, lines, title="gradient norm over training", x="epoch", y="mean |g| of an epoch's steps")
        first, last = (values_at(norms, place) for place in (0, -1))
        sentence = (
            f"the mean gradient norm is {first:.3g} in the first epoch and {last:.3g} in the last, "
            f"{last / first:.2f} times as large; the largest is in epoch {peak(norms)}"
        )
        return Finding(self.title, {"norms": norms, "runs": [r.identity for r in found]}, figure, sentence)


class Figure5(Phases):
    title = "Figure 5: gradient norms of the layers of encoder and decoder"

    def find(self, runs: Sequence[Path], found: Sequence[RunRecord], setting: Setting) -> Finding:
        from gasam.analysis.pictures import PlotLine, draw_lines, sheet

        shown = {f"{r.task}, seed {r.seed}: {side}": part for r in found for side, part in sides_of(r).items()}
        figure, panels = sheet(len(shown))
        for panel, (title, layers) in zip(panels, shown.items(), strict=True):
            lines = [PlotLine(name, range(1, len(values) + 1), values) for name, values in layers.items()]
            draw_lines(panel, lines, title=title, x="epoch", y="mean |g| of an epoch's steps")
        means = {title: {name: sum(v) / len(v) for name, v in layers.items()} for title, layers in shown.items()}
        words = [
            f"{title}: the mean norm is {', '.join(f'{value:.3g} in {name}' for name, value in layers.items())}"
            for title, layers in means.items()
        ]
        data = {"norms": shown, "means": means, "runs": [r.identity for r in found]}
        return Finding(self.title, data, figure, "; ".join(words))


def sides_of(record: RunRecord) -> dict[str, dict[str, list[float]]]:
    """The layers of encoder and decoder; all of them where a model has neither."""
    sides = {side: layers_of(record, side) for side in ("encoder", "decoder")}
    return {side: layers for side, layers in sides.items() if layers} or {"layers": layers_of(record, "")}


def layers_of(record: RunRecord, side: str) -> dict[str, list[float]]:
    """The norms of the side's layers by epoch, in the model's order, from the lowest to the highest layer."""
    rows = [row["layer_gradient_norms"] for row in record.curve]
    names = [name for name in rows[0] if name.startswith(side) and rows[0][name] is not None]
    return {name: [row[name] for row in rows] for name in names}


def values_at(norms: dict[str, list[Any]], place: int) -> float:
    """The mean over runs."""
    return float(sum(values[place] for values in norms.values()) / len(norms))


def peak(norms: dict[str, list[Any]]) -> int:
    epochs = [values_at(norms, place) for place in range(min(map(len, norms.values())))]
    return 1 + epochs.index(max(epochs))
