"""The shift of the minimum between training and test data: the experiments of the paper's Figures 1 and 2.

The minimum on other data is found as in the paper: the run's model is trained further on it.
"""

from __future__ import annotations

import copy
import math
import statistics
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gasam.analysis.corruption import length
from gasam.analysis.landscape import line
from gasam.lab import tasks
from gasam.lab.analyses.analysis import Analysis, Cells, Found, Labels, Progress
from gasam.lab.errors import InputError
from gasam.lab.families.images import ImageClassification
from gasam.lab.output import Chart, lines
from gasam.lab.record import AnalysisRecord
from gasam.lab.storage import Weights
from gasam.lab.training.finished import FinishedRun
from gasam.lab.training.loop import optimizer_for

Labelled = tuple[Tensor, Tensor]


class Shift(Analysis):
    """Train the run's model further for `epochs`, with its own optimizer, batch size and learning rate."""

    axes: ClassVar[dict[str, Any]]

    rows: int = 60_000
    epochs: int = 5

    @abstractmethod
    def curves(self, found: Found) -> dict[str, dict[float, float]]:
        """The lines of the chart of one run: y by x for each label."""

    def charts(self, found: Sequence[AnalysisRecord], labels: Labels) -> list[Chart]:
        """A chart for each run."""
        charts = []
        for each in found:
            curves, run = self.curves(each.found), each.run
            points = [
                {"label": label, "seed": run.seed, "x": x, "y": y}
                for label, curve in curves.items()
                for x, y in curve.items()
            ]
            title = f"{run.task}, seed {run.seed}"
            charts.append(lines(points, {label: label for label in curves}, title=title, **self.axes))
        return charts


class ShiftedLine(Shift):
    """Figure 1: training loss, test loss and shifted training loss along the line through the two minima."""

    kind = "shifted-line"
    title = "The training loss beside the test loss"
    axes: ClassVar = {"x": "alpha (0 train, 1 test)", "y": "loss"}

    points: int = 10  # on each length of delta

    def measure(self, run: FinishedRun, progress: Progress) -> Found:
        """L(w; D), L(w; D*) and L(w - delta; D) + constant at the points w = theta + alpha delta."""
        check_images(run.record.task)
        progress.say("fine-tuning on the test data")
        delta, unit = fine_tuned(run, run.family.data["test"], self.epochs, seed=0), self.points

        def losses(split: str, alphas: Sequence[float]) -> list[float]:
            watch = progress.counting(f"{split} loss, point")
            return line(*run.on(split, self.rows), alphas, direction=delta, watch=watch)

        alphas = [number / unit for number in range(-2 * unit, 2 * unit + 1)]
        earlier = losses("train", alphas)
        alphas, train, test = alphas[unit:], earlier[unit:], losses("test", alphas[unit:])
        theta, star = alphas.index(0), alphas.index(1)
        constant = test[star] - train[theta]
        shifted = [loss + constant for loss in earlier[:-unit]]
        unshifted = [loss + test[star] - train[star] for loss in train]  # as high as the test loss at theta*

        def gap(heights: Sequence[float]) -> float:
            """The root mean square distance from the test loss within half a shift of theta*."""
            rows = zip(alphas, heights, test, strict=True)
            return math.sqrt(statistics.fmean((y - test) ** 2 for alpha, y, test in rows if 0.5 <= alpha <= 1.5))

        found = {"alphas": alphas, "train": train, "test": test, "shifted": shifted, "constant": constant}
        gaps = {"shifted": gap(shifted), "unshifted": gap(unshifted)}
        return found | {"delta": length(delta.values(), 2), "gaps": gaps}

    def curves(self, found: Found) -> dict[str, dict[float, float]]:
        names = {"training loss": "train", "test loss": "test", "shifted training loss + constant": "shifted"}
        return {label: dict(zip(found["alphas"], found[name], strict=True)) for label, name in names.items()}

    def cells(self, record: AnalysisRecord) -> list[Cells]:
        gaps = record.found["gaps"]
        distances = {"shifted": f"{gaps['shifted']:.3g}", "not shifted": f"{gaps['unshifted']:.3g}"}
        return [{"|delta|": f"{record.found['delta']:.3g}"} | distances]

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        return (
            "The last columns are the training loss's root mean square distances from the test loss within half a "
            "shift of its minimum, with equal heights there."
        )


class Mixtures(Shift):
    """Figure 2: |delta| for data of which a share eta is shifted: 1/trials, 2/trials, .., 1, and 0 as a control."""

    kind = "mixtures"
    title = "|delta| against the share of shifted data"
    axes: ClassVar = {"x": "eta, the share of shifted data", "y": "|delta|"}

    trials: int = 100
    controls: int = 5

    def measure(self, run: FinishedRun, progress: Progress) -> Found:
        check_images(run.record.task)
        etas = [0.0] * self.controls + [number / self.trials for number in range(1, self.trials + 1)]
        norms = list(progress.kept.get("norms", ()))
        for seed in range(len(norms), len(etas)):
            delta = fine_tuned(run, drawn_mixture(run, etas[seed], seed), self.epochs, seed)
            norms.append(length(delta.values(), 2))
            progress.keep({"norms": norms})
            progress.say(f"trial {seed + 1}/{len(etas)}")
        control, shifted = norms[: self.controls], norms[self.controls :]
        return {"etas": etas, "norms": norms, "control": statistics.fmean(control)} | straight(
            etas[self.controls :], shifted
        )

    def curves(self, found: Found) -> dict[str, dict[float, float]]:
        start, end = found["intercept"], found["intercept"] + found["slope"]
        pairs = zip(found["etas"], found["norms"], strict=True)
        return {
            "measured": {eta: norm for eta, norm in pairs if eta},
            f"fit, R^2 {found['r_squared']:.3f}": {0.0: start, 1.0: end},
            "no shift (control)": {0.0: found["control"], 1.0: found["control"]},
        }

    def cells(self, record: AnalysisRecord) -> list[Cells]:
        found = record.found
        fit = f"{found['intercept']:.3g} + {found['slope']:.3g} eta"
        return [{"fit": fit, "R^2": f"{found['r_squared']:.3f}", "without any shift": f"{found['control']:.3g}"}]


def check_images(task: str) -> None:
    if not issubclass(tasks.find(task).family, ImageClassification):
        raise InputError(f"shifts can be measured only on mnist and digits, got a run of {task}")


def fine_tuned(run: FinishedRun, data: Labelled, epochs: int, seed: int) -> Weights:
    """Train the run's model further on other data, and return the change of its weights at the end of the last epoch.

    `seed` is that of the order of the batches and of dropout.
    """
    model, order = copy.deepcopy(run.model).train(), torch.Generator().manual_seed(seed)
    settings, device = run.family.settings, next(model.parameters()).device
    inputs, labels = (part.to(device) for part in data)
    optimizer = optimizer_for(model, settings)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for _ in range(epochs):
            for chosen in torch.randperm(len(labels), generator=order).split(settings.batch):  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
                run.objective(model, (inputs[chosen], labels[chosen])).mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    before = dict(run.model.named_parameters())
    return {name: weight.detach() - before[name].detach() for name, weight in model.named_parameters()}


def drawn_mixture(run: FinishedRun, eta: float, seed: int) -> Labelled:
    """Draw as many examples as the smaller of the two sets has, a share eta of them from the test data, none twice."""
    (train, train_labels), (test, test_labels) = (run.family.data[split] for split in ("train", "test"))
    generator = torch.Generator().manual_seed(seed)
    count = min(len(train_labels), len(test_labels))
    shifted = round(eta * count)
    old = torch.randperm(len(train_labels), generator=generator)[: count - shifted]
    new = torch.randperm(len(test_labels), generator=generator)[:shifted]
    return torch.cat([train[old], test[new]]), torch.cat([train_labels[old], test_labels[new]])


def straight(etas: Sequence[float], norms: Sequence[float]) -> dict[str, float]:
    """Fit |delta| = intercept + slope eta by least squares."""
    from scipy.stats import linregress  # type: ignore[import-untyped]

    fit = linregress(etas, norms)
    return {"intercept": float(fit.intercept), "slope": float(fit.slope), "r_squared": float(fit.rvalue**2)}
