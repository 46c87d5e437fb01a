"""The shift of the minimum between training and test data: the experiments of the paper's Figures 1 and 2."""

from __future__ import annotations

import math
import statistics
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gasam.analysis.corruption import length
from gasam.analysis.objective import gradient
from gasam.lab import tasks
from gasam.lab.analyses.analysis import Analysis, Found, Labels, Progress
from gasam.lab.data.corpus import Split
from gasam.lab.errors import InputError
from gasam.lab.families.family import drawn
from gasam.lab.families.images import Brightness, ImageClassification
from gasam.lab.output import Chart, lines
from gasam.lab.record import AnalysisRecord
from gasam.lab.storage import Checkpoints, Weights
from gasam.lab.theory import Minimum, Problem, find_minimum, mixture, settle
from gasam.lab.training.finished import FinishedRun
from gasam.lab.training.loop import ignore_update
from gasam.lab.training.plan import make

Labelled = tuple[Tensor, Tensor]
PROTOCOLS = ("fine-tuned", "regularised")


class Shift(Analysis):
    """Two protocols that find the minimum again on other data.

    Fine-tuned, the paper's protocol: the run is trained further for `epochs`, with its own optimizer, batch size and
    learning rate. Regularised: a softmax regression on `rows` examples of training and of test data, with
    `ridge`/2 |w|^2 added to the loss. It is strongly convex, as the propositions require, and solved until |gradient|
    is at most `tolerance`.
    """

    axes: ClassVar[dict[str, Any]]

    rows: int = 2000
    epochs: int = 5
    ridge: float = 1e-2
    tolerance: float = 1e-8

    def problem(self, run: FinishedRun) -> Problem:
        """The regularised problem with training and test data; its model is at the minimum on the training data."""
        train, test = (
            [(images.double(), labels) for images, labels in whole(run, split, self.rows)]
            for split in ("train", "test")
        )
        data = run.family.data.shared
        linear = nn.Linear(data["pixels"], len(data["classes"]), dtype=torch.float64)
        for weight in linear.parameters():
            nn.init.zeros_(weight)
        model = nn.Sequential(Brightness(data["brightest"]), linear)  # on the same inputs as the run's model
        problem = Problem(model, run.objective, train, test, ridge=self.ridge, tolerance=self.tolerance)
        _check_reached(settle(problem), "training")
        return problem

    @abstractmethod
    def curves(self, record: AnalysisRecord, protocol: str) -> dict[str, dict[float, float]]:
        """The lines of the chart of one run and protocol: y by x for each label."""

    def charts(self, found: Sequence[AnalysisRecord], labels: Labels) -> list[Chart]:
        """A chart for each run and protocol."""
        charts = []
        for each, protocol in product(found, PROTOCOLS):
            curves, run = self.curves(each, protocol), each.run
            points = [
                {"label": label, "seed": run.seed, "x": x, "y": y}
                for label, curve in curves.items()
                for x, y in curve.items()
            ]
            title = f"{run.task}, seed {run.seed}: {protocol}"
            charts.append(lines(points, {label: label for label in curves}, title=title, **self.axes))
        return charts


class ShiftedLine(Shift):
    """Figure 1: training loss, test loss and shifted training loss along the line through the two minima."""

    kind = "shifted-line"
    title = "The training loss beside the test loss"
    axes: ClassVar = {"x": "alpha (0 train, 1 test)", "y": "loss"}

    points: int = 31

    def measure(self, run: FinishedRun, progress: Progress) -> Found:
        move_to_cpu(run)
        progress.say("fine-tuning on the test data")
        delta, _ = fine_tuned(run, run.family.data["test"], self.epochs, seed=0)
        train, test = (whole(run, split, len(run.family.data[split][1])) for split in ("train", "test"))
        tuned = self._losses(Problem(run.model, run.objective, train, test), delta)
        progress.say("solving the regularised problem")
        problem = self.problem(run)
        minimum = find_minimum(replace(problem, batches=problem.p_star))
        _check_reached(minimum, "test")
        return {"fine-tuned": tuned, "regularised": self._losses(problem, minimum.offset)}

    def _losses(self, problem: Problem, delta: Weights) -> dict[str, Any]:
        """L(w; D), L(w; D*) and L(w - delta; D) + constant at the points w = theta + alpha delta."""
        alphas = [-1 + 3 * number / (self.points - 1) for number in range(self.points)]
        with problem.risks() as [train, test]:
            step = train.flat({name: delta[name] for name in train.names})
            constant = test.loss(step) - train.loss()
            lifted = test.loss(step) - train.loss(step)
            losses = {
                "train": [train.loss(alpha * step) for alpha in alphas],
                "test": [test.loss(alpha * step) for alpha in alphas],
                "shifted": [train.loss((alpha - 1) * step) + constant for alpha in alphas],
            }

        def gap(heights: list[float]) -> float:
            """The root mean square distance from the test loss near theta*."""
            rows = zip(alphas, heights, losses["test"], strict=True)
            return math.sqrt(statistics.fmean((y - test) ** 2 for alpha, y, test in rows if 0.5 <= alpha <= 1.5))

        gaps = {"shifted": gap(losses["shifted"]), "unshifted": gap([loss + lifted for loss in losses["train"]])}
        return {"alphas": alphas, "constant": constant, "delta": float(step.norm()), "gaps": gaps} | losses

    def curves(self, record: AnalysisRecord, protocol: str) -> dict[str, dict[float, float]]:
        losses = record.found[protocol]
        names = {"training loss": "train", "test loss": "test", "shifted training loss + constant": "shifted"}
        return {label: dict(zip(losses["alphas"], losses[name], strict=True)) for label, name in names.items()}

    def measures(self, record: AnalysisRecord) -> dict[str, str]:
        """Root mean square distances within half a shift of the minimum of the test loss, heights matched there."""
        return {
            f"({protocol}) the distance from the test loss near its minimum": (
                f"{losses['gaps']['shifted']:.3g} shifted and {losses['gaps']['unshifted']:.3g} not shifted"
            )
            for protocol, losses in record.found.items()
        }


class Mixtures(Shift):
    """Figure 2: |delta| for data of which a share eta is shifted: 1/trials, 2/trials, .., 1, and 0 as a control."""

    kind = "mixtures"
    title = "|delta| against the share of shifted data"
    axes: ClassVar = {"x": "eta, the share of shifted data", "y": "|delta|"}

    trials: int = 100
    controls: int = 5

    def measure(self, run: FinishedRun, progress: Progress) -> Found:
        """Measure with the paper's protocol on drawn mixtures, and with the regularised one on exact mixtures."""
        move_to_cpu(run)
        etas = [number / self.trials for number in range(1, self.trials + 1)]
        planned = {"controls": [0.0] * self.controls, "fine_tuned": etas, "regularised": etas}
        found: Found = {name: [] for name in planned} | progress.kept
        problem = self.problem(run)
        for name, shares in planned.items():
            for seed in range(len(found[name]), len(shares)):
                eta = shares[seed]
                if name == "regularised":
                    minimum = find_minimum(replace(problem, batches=mixture(problem.batches, problem.p_star, eta)))
                    delta, slope = minimum.offset, minimum.gradient_norm
                else:
                    delta, slope = fine_tuned(run, drawn_mixture(run, eta, seed), self.epochs, seed)
                stationary = slope <= self.tolerance
                found[name].append(
                    {"eta": eta, "norm": length(delta.values(), 2), "gradient": slope, "stationary": stationary}
                )
                progress.keep(found)
                progress.say(f"{name.replace('_', '-')} {seed + 1}/{len(shares)}")
        control = statistics.fmean(trial["norm"] for trial in found["controls"])
        fits = {
            "fine-tuned": straight(found["fine_tuned"], control),
            "regularised": straight(found["regularised"], 0.0),  # it starts at its minimum
        }
        return found | {"fits": fits}

    def curves(self, record: AnalysisRecord, protocol: str) -> dict[str, dict[float, float]]:
        fit = record.found["fits"][protocol]
        return {
            "measured": {trial["eta"]: trial["norm"] for trial in record.found[protocol.replace("-", "_")]},
            f"fit, R^2 {fit['r_squared']:.3f}": {0.0: fit["intercept"], 1.0: fit["intercept"] + fit["slope"]},
            "no shift (control)": {0.0: fit["control"], 1.0: fit["control"]},
        }

    def measures(self, record: AnalysisRecord) -> dict[str, str]:
        return {
            f"({protocol}) |delta|": f"{fit['intercept']:.3g} + {fit['slope']:.3g} eta with R^2 {fit['r_squared']:.3f} "
            f"and {fit['control']:.3g} without any shift"
            for protocol, fit in record.found["fits"].items()
        }


def check_images(task: str) -> None:
    if not issubclass(tasks.find(task).family, ImageClassification):
        raise InputError(f"shifts can be measured only on mnist and digits, got a run of {task}")


def move_to_cpu(run: FinishedRun) -> None:
    """Move the run's model to the CPU, because not every accelerator has double precision."""
    check_images(run.record.task)
    run.model.cpu()


def whole(run: FinishedRun, split: Split, rows: int) -> list[Labelled]:
    """Examples of a split in large batches; the results do not depend on the batch size."""
    inputs, labels = run.family.data[split]
    return [(inputs[some], labels[some]) for some in torch.split(drawn(rows, len(labels)), 5000)]


def fine_tuned(run: FinishedRun, data: Labelled, epochs: int, seed: int) -> tuple[Weights, float]:
    """Train the run's model further on other data; return the change of the weights, and |gradient| at the end.

    The last weights are used, not those that validation would choose. `seed` is that of the order of the batches.
    """
    from accelerate import Accelerator

    from gasam.lab.training.loop import Training

    settings = run.family.settings.model_dump() | {"epochs": epochs}
    plan = make(run.record.task, "baseline", run.record.size, seed, settings=settings)
    family = plan.family(run.family.data.with_train(data))
    with TemporaryDirectory() as folder:
        training = Training(plan, family, Checkpoints(Path(folder)), ignore_update, Accelerator(cpu=True))
        model = training.plain_model
        model.load_state_dict(run.model.state_dict())
        training.train()
    _, slopes = gradient(model, family.objective(), [data])
    before = run.model.state_dict()
    delta = {name: (weight.detach() - before[name]).double().cpu() for name, weight in model.named_parameters()}
    return delta, length(slopes.values(), 2)


def drawn_mixture(run: FinishedRun, eta: float, seed: int) -> Labelled:
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


def _check_reached(minimum: Minimum, data: str) -> None:
    if not minimum.stationary:
        raise ValueError(
            f"the regularised minimum on {data} data was not found ({minimum.sentence}): raise ridge or tolerance"
        )
