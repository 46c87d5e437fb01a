"""The shift of the minimum against the share of shifted data: the experiment of the paper's Figure 2."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gasam.lab.analyses.definition import Cells, Found, Labels, Measurement
from gasam.lab.analyses.loading import LoadedRun
from gasam.lab.analyses.shift import Labelled, Shift, fine_tuned, length, on_the_cpu
from gasam.lab.record import AnalysisRecord
from gasam.lab.theory import mixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Mixtures(Shift):
    """|delta| for data of which a share eta is shifted: eta = 1/trials, 2/trials, .., 1, and 0 as a control."""

    trials: int = 100
    controls: int = 5

    kind = "mixtures"
    title = "|delta| against the share of shifted data"

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        """Measure with the paper's protocol on drawn mixtures, and with the regularised one on exact mixtures."""
        run = on_the_cpu(run)
        etas = [number / self.trials for number in range(1, self.trials + 1)]
        planned = {"controls": [0.0] * self.controls, "fine_tuned": etas, "regularised": etas}
        found: Found = {name: [] for name in planned} | measurement.kept
        model, train, test = self.problem(run)
        for name, shares in planned.items():
            for seed in range(len(found[name]), len(shares)):
                eta = shares[seed]
                if name == "regularised":
                    minimum = self.solved(run, model, mixture(train, test, eta))
                    delta, gradient = minimum.offset, minimum.gradient_norm
                else:
                    delta, gradient = fine_tuned(run, drawn_mixture(run, eta, seed), self.epochs, seed)
                stationary = gradient <= self.tolerance
                found[name].append({"eta": eta, "norm": length(delta), "gradient": gradient, "stationary": stationary})
                measurement.keep(found)
                measurement.report(f"{name.replace('_', '-')} {seed + 1}/{len(shares)}")
        control = statistics.fmean(trial["norm"] for trial in found["controls"])
        fits = {
            "fine-tuned": straight(found["fine_tuned"], control),
            "regularised": straight(found["regularised"], 0.0),  # it starts at its minimum
        }
        return found | {"fits": fits}

    def cells(self, record: AnalysisRecord, label: str) -> list[Cells]:
        return [
            {
                "run": label,
                "protocol": protocol,
                "intercept": f"{fit['intercept']:.4g}",
                "slope": f"{fit['slope']:.4g}",
                "R^2": f"{fit['r_squared']:.4g}",
                "|delta| at 1": f"{fit['at_one']:.4g}",
                "at 0": f"{fit['control']:.4g}",
                "stationary": f"{fit['stationary']} of {fit['trials']}",
            }
            for protocol, fit in record.found["fits"].items()
        ]

    def values(self, record: AnalysisRecord) -> None:
        return None

    def draw(self, found: Sequence[AnalysisRecord], labels: Labels) -> list[Figure]:
        from gasam.analysis.pictures import BASELINE, GA_SAM, OKABE_ITO, POINTS, PlotLine, draw_lines, in_sheets, sheet

        shown = [(each, protocol) for each in found for protocol in each.found["fits"]]
        figures = []
        for some in in_sheets(len(shown)):
            figure, axes = sheet(len(shown[some]))
            for panel, (each, protocol) in zip(axes, shown[some], strict=True):
                fit, trials = each.found["fits"][protocol], each.found[protocol.replace("-", "_")]
                etas, norms = ([trial[key] for trial in trials] for key in ("eta", "norm"))
                fitted = [fit["intercept"], fit["intercept"] + fit["slope"]]
                lines = [
                    PlotLine("measured", etas, norms, OKABE_ITO[0], POINTS),
                    PlotLine(f"fit, R^2 {fit['r_squared']:.3f}", [0, 1], fitted, GA_SAM),
                    PlotLine("no shift (control)", [0, 1], [fit["control"]] * 2, BASELINE, ":"),
                ]
                title = f"{each.run.task}, seed {each.run.seed}: {protocol}"
                draw_lines(panel, lines, title=title, x="eta, the share of shifted data", y="|delta|")
                panel.set_ylim(bottom=0)
            figures.append(figure)
        return figures

    def clause(self, record: AnalysisRecord, label: str) -> str:
        return "; ".join(
            f"{record.run.task}, seed {record.run.seed}, {protocol}: |delta| = {fit['intercept']:.3g} + "
            f"{fit['slope']:.3g} eta with R^2 {fit['r_squared']:.3f}, {fit['control']:.3g} without any shift and "
            f"{fit['at_one']:.3g} at eta = 1"
            for protocol, fit in record.found["fits"].items()
        )


def drawn_mixture(run: LoadedRun, eta: float, seed: int) -> Labelled:
    """Draw as many examples as the smaller of the two sets has, a share eta of them from the test data, none twice."""
    (train, train_labels), (test, test_labels) = (run.family.data[split] for split in ("train", "test"))
    generator = torch.Generator().manual_seed(seed)
    count = min(len(train_labels), len(test_labels))
    shifted = round(eta * count)
    old = torch.randperm(len(train_labels), generator=generator)[: count - shifted]
    new = torch.randperm(len(test_labels), generator=generator)[:shifted]
    return torch.cat([train[old], test[new]]), torch.cat([train_labels[old], test_labels[new]])


def straight(trials: Sequence[dict[str, Any]], control: float) -> dict[str, float]:
    """Fit |delta| = intercept + slope eta to the trials by least squares; `control` is |delta| at eta = 0."""
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
