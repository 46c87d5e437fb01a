"""How far the minimum moves when a share of the data is shifted: the trial of the paper's Figure 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gasam.lab.analyses import Found, Watch
from gasam.lab.analyses.shift import Shift, drawn_mixture, fine_tuned, on_the_cpu
from gasam.lab.analyses.subjects import Subject
from gasam.lab.records import AnalysisRecord
from gasam.lab.tables import Table
from gasam.lab.training.checkpoints import Weights
from gasam.theory.distribution import mixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Mixtures(Shift):
    """|delta| for test sets of which a share eta is shifted: eta = 1/trials, 2/trials, .., 1, and 0 as a control."""

    trials: int = 100
    controls: int = 5

    kind = "mixtures"

    def measure(self, subject: Subject, known: Found, keep: Callable[[Found], None], watch: Watch) -> Found:
        subject = on_the_cpu(subject)
        found: Found = {"controls": [], "fine_tuned": [], "regularised": []} | known
        etas = [number / self.trials for number in range(1, self.trials + 1)]

        def go_on(name: str, values: Iterator[Any], count: int) -> None:
            for value in values:
                found[name].append(value)
                keep(found)
                watch(f"{name.replace('_', '-')} {len(found[name])}/{count}")

        go_on("controls", self._tuned(subject, [0.0] * self.controls, len(found["controls"])), self.controls)
        go_on("fine_tuned", self._tuned(subject, etas, len(found["fine_tuned"])), self.trials)
        go_on("regularised", self._solved(subject, etas, len(found["regularised"])), self.trials)
        return found | {"fits": fits(found)}

    def _tuned(self, subject: Subject, etas: Sequence[float], done: int) -> Iterator[dict[str, float]]:
        """The paper's protocol: a mixed set is drawn, and training goes on there from the run's weights."""
        for number, eta in list(enumerate(etas))[done:]:
            mixed = drawn_mixture(subject, eta, seed=number)
            delta, gradient = fine_tuned(subject, mixed, self.epochs, seed=number)
            yield {"eta": eta, "norm": length(delta), "gradient": gradient, "stationary": gradient <= self.tolerance}

    def _solved(self, subject: Subject, etas: Sequence[float], done: int) -> Iterator[dict[str, Any]]:
        """A regularised problem solved on the exact mixture (1 - eta) p + eta p*, each from the training minimum."""
        if done == len(etas):
            return
        model, here, there = self.problem(subject)
        for eta in etas[done:]:
            found = self.solved(subject, model, mixture(here, there, eta))
            reached = {"gradient": found.gradient_norm, "stationary": found.stationary}
            yield {"eta": eta, "norm": length(found.offset)} | reached

    def table(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Table:
        rows = []
        for each, label in zip(found, labels, strict=True):
            for name, fit in each.found["fits"].items():
                values = (f"{fit[key]:.4g}" for key in ("intercept", "slope", "r_squared", "at_one", "control"))
                rows.append((label, name, *values, f"{fit['stationary']} of {fit['trials']}"))
        columns = ("run", "protocol", "intercept", "slope", "R^2", "|delta| at 1", "at 0", "stationary")
        return Table("|delta| against the share of shifted data", columns, tuple(rows))

    def draw(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Figure:
        from gasam.analysis.pictures import BASELINE, GA_SAM, OKABE_ITO, POINTS, Line, draw_lines, sheet

        figure, axes = sheet(2 * len(found))
        shown = [(each, name, fit) for each in found for name, fit in each.found["fits"].items()]
        for panel, (each, name, fit) in zip(axes, shown, strict=True):
            points = each.found[name.replace("-", "_")]
            etas = [point["eta"] for point in points]
            fitted = [fit["intercept"], fit["intercept"] + fit["slope"]]
            lines = [
                Line("measured", etas, [point["norm"] for point in points], OKABE_ITO[0], POINTS),
                Line(f"fit, R^2 {fit['r_squared']:.3f}", [0, 1], fitted, GA_SAM),
                Line("no shift (control)", [0, 1], [fit["control"]] * 2, BASELINE, ":"),
            ]
            title = f"{each.run.task}, seed {each.run.seed}: {name}"
            draw_lines(panel, lines, title=title, x="eta, the share of shifted data", y="|delta|")
            panel.set_ylim(bottom=0)
        return figure

    def sentence(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> str:
        return "; ".join(
            f"{each.run.task}, seed {each.run.seed}, {name}: |delta| = {fit['intercept']:.3g} + "
            f"{fit['slope']:.3g} eta with R^2 {fit['r_squared']:.3f}, {fit['control']:.3g} without any shift and "
            f"{fit['at_one']:.3g} at eta = 1"
            for each in found
            for name, fit in each.found["fits"].items()
        )


def length(delta: Weights) -> float:
    return float(torch.stack([part.norm() for part in delta.values()]).norm())


def fits(found: Found) -> dict[str, dict[str, float]]:
    """|delta| = intercept + slope eta by least squares over eta > 0. The control is the mean at eta = 0; there the
    regularised problem, solved from its own minimum, has 0 by construction."""
    control = sum(point["norm"] for point in found["controls"]) / len(found["controls"])
    return {
        "fine-tuned": straight(found["fine_tuned"], control),
        "regularised": straight(found["regularised"], 0.0),
    }


def straight(points: Sequence[dict[str, Any]], control: float) -> dict[str, float]:
    x, y = (torch.tensor([point[key] for point in points], dtype=torch.float64) for key in ("eta", "norm"))
    columns = torch.stack([torch.ones_like(x), x], dim=1)
    solved = torch.linalg.lstsq(columns, y).solution
    rest = (y - columns @ solved).square().sum() / (y - y.mean()).square().sum()
    stationary = sum(point["stationary"] for point in points)
    values = {"intercept": solved[0], "slope": solved[1], "r_squared": 1 - rest, "at_one": y[-1]}
    return {name: float(value) for name, value in values.items()} | {
        "control": control, "stationary": stationary, "trials": len(points),
    }  # fmt: skip
