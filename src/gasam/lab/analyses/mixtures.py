"""How far the minimum moves when a share of the data is shifted: the trial of the paper's Figure 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gasam.lab.analyses.definition import Found, Labels, Measurement
from gasam.lab.analyses.loading import LoadedRun
from gasam.lab.analyses.shift import Labelled, Shift, fine_tuned, length, on_the_cpu
from gasam.lab.records import AnalysisRecord
from gasam.lab.tables import Table
from gasam.theory.distribution import mixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Mixtures(Shift):
    """|delta| for test sets of which a share eta is shifted: eta = 1/trials, 2/trials, .., 1, and 0 as a control."""

    trials: int = 100
    controls: int = 5

    kind = "mixtures"

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        run = on_the_cpu(run)
        found: Found = {"controls": [], "fine_tuned": [], "regularised": []} | measurement.kept
        etas = [number / self.trials for number in range(1, self.trials + 1)]
        unfinished = {
            "controls": self._fine_tuned(run, [0.0] * self.controls, len(found["controls"])),
            "fine_tuned": self._fine_tuned(run, etas, len(found["fine_tuned"])),
            "regularised": self._regularised(run, etas[len(found["regularised"]) :]),
        }
        for name, trials in unfinished.items():
            for trial in trials:
                found[name].append(trial)
                measurement.keep(found)
                count = self.controls if name == "controls" else self.trials
                measurement.report(f"{name.replace('_', '-')} {len(found[name])}/{count}")
        return found | {"fits": _fits(found)}

    def _fine_tuned(self, run: LoadedRun, etas: Sequence[float], done: int) -> Iterator[dict[str, Any]]:
        """The paper's protocol: training goes on from the run's weights on a mixed set, drawn with the trial's seed."""
        for seed in range(done, len(etas)):
            mixed = drawn_mixture(run, etas[seed], seed)
            delta, gradient = fine_tuned(run, mixed, self.epochs, seed)
            yield _trial(etas[seed], length(delta), gradient, gradient <= self.tolerance)

    def _regularised(self, run: LoadedRun, etas: Sequence[float]) -> Iterator[dict[str, Any]]:
        """A regularised problem solved on the exact mixture (1 - eta) p + eta p*, each from the training minimum."""
        if etas:
            model, train, test = self.problem(run)
        for eta in etas:
            found = self.solved(run, model, mixture(train, test, eta))
            yield _trial(eta, length(found.offset), found.gradient_norm, found.stationary)

    def table(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table:
        rows = []
        for each, label in zip(found, labels, strict=True):
            for name, fit in each.found["fits"].items():
                values = (f"{fit[key]:.4g}" for key in ("intercept", "slope", "r_squared", "at_one", "control"))
                rows.append((label, name, *values, f"{fit['stationary']} of {fit['trials']}"))
        columns = ("run", "protocol", "intercept", "slope", "R^2", "|delta| at 1", "at 0", "stationary")
        return Table("|delta| against the share of shifted data", columns, tuple(rows))

    def draw(self, found: Sequence[AnalysisRecord], labels: Labels) -> Figure:
        from gasam.analysis.pictures import BASELINE, GA_SAM, OKABE_ITO, POINTS, Line, draw_lines, sheet

        figure, axes = sheet(2 * len(found))
        shown = [(each, name, fit) for each in found for name, fit in each.found["fits"].items()]
        for panel, (each, name, fit) in zip(axes, shown, strict=True):
            trials = each.found[name.replace("-", "_")]
            fitted = [fit["intercept"], fit["intercept"] + fit["slope"]]
            lines = [
                Line("measured", [t["eta"] for t in trials], [t["norm"] for t in trials], OKABE_ITO[0], POINTS),
                Line(f"fit, R^2 {fit['r_squared']:.3f}", [0, 1], fitted, GA_SAM),
                Line("no shift (control)", [0, 1], [fit["control"]] * 2, BASELINE, ":"),
            ]
            title = f"{each.run.task}, seed {each.run.seed}: {name}"
            draw_lines(panel, lines, title=title, x="eta, the share of shifted data", y="|delta|")
            panel.set_ylim(bottom=0)
        return figure

    def sentence(self, found: Sequence[AnalysisRecord], labels: Labels) -> str:
        return "; ".join(
            f"{each.run.task}, seed {each.run.seed}, {name}: |delta| = {fit['intercept']:.3g} + "
            f"{fit['slope']:.3g} eta with R^2 {fit['r_squared']:.3f}, {fit['control']:.3g} without any shift and "
            f"{fit['at_one']:.3g} at eta = 1"
            for each in found
            for name, fit in each.found["fits"].items()
        )


def drawn_mixture(run: LoadedRun, eta: float, seed: int) -> Labelled:
    """As many examples as the smaller of the two sets has, a share eta of them from the test data, none twice."""
    (train, train_labels), (test, test_labels) = (run.family.data[split] for split in ("train", "test"))
    generator = torch.Generator().manual_seed(seed)
    count = min(len(train_labels), len(test_labels))
    shifted = round(eta * count)
    old = torch.randperm(len(train_labels), generator=generator)[: count - shifted]
    new = torch.randperm(len(test_labels), generator=generator)[:shifted]
    return torch.cat([train[old], test[new]]), torch.cat([train_labels[old], test_labels[new]])


def straight(trials: Sequence[dict[str, Any]], control: float) -> dict[str, float]:
    """|delta| = intercept + slope eta by least squares over the trials; `control` is |delta| at eta = 0."""
    from scipy.stats import linregress  # type: ignore[import-untyped]

    norms = [trial["norm"] for trial in trials]
    fit = linregress([trial["eta"] for trial in trials], norms)
    return {
        "intercept": float(fit.intercept),
        "slope": float(fit.slope),
        "r_squared": float(fit.rvalue**2),
        "at_one": norms[-1],
        "control": control,
        "stationary": sum(trial["stationary"] for trial in trials),
        "trials": len(trials),
    }


def _fits(found: Found) -> dict[str, dict[str, float]]:
    """Without a shift the regularised problem, solved from its own minimum, has |delta| = 0 by construction."""
    control = sum(trial["norm"] for trial in found["controls"]) / len(found["controls"])
    return {"fine-tuned": straight(found["fine_tuned"], control), "regularised": straight(found["regularised"], 0.0)}


def _trial(eta: float, norm: float, gradient: float, stationary: bool) -> dict[str, Any]:
    return {"eta": eta, "norm": norm, "gradient": gradient, "stationary": stationary}
