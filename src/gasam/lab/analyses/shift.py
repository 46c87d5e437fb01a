"""The shift of the minimum between training and test data: the base of the experiments of Figures 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from gasam.analysis.objective import gradient
from gasam.lab import tasks
from gasam.lab.analyses.definition import Analysis
from gasam.lab.analyses.loading import LoadedRun
from gasam.lab.data.corpus import Split
from gasam.lab.errors import InputError
from gasam.lab.families.family import drawn
from gasam.lab.families.images import Brightness, ImageClassification
from gasam.lab.storage import Checkpoints, Weights
from gasam.lab.theory import Minimum, Problem, find_minimum, settle
from gasam.lab.theory.risk import Examples
from gasam.lab.training.loop import ignore_update
from gasam.lab.training.plan import make

Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Shift(Analysis):
    """Two protocols that find the minimum again on other data.

    Fine-tuned, the paper's protocol: the run is trained further for `epochs`, with its own optimizer, batch size and
    learning rate. Regularised: a softmax regression on `rows` examples of training and of test data, with
    `ridge`/2 |w|^2 added to the loss. It is strongly convex, as the propositions require, and solved until |gradient|
    is at most `tolerance`.
    """

    rows: int = 2000
    epochs: int = 5
    ridge: float = 1e-2
    tolerance: float = 1e-8

    def problem(self, run: LoadedRun) -> tuple[nn.Module, list[Labelled], list[Labelled]]:
        """The model at its regularised minimum on the training data, the training data, and the test data."""
        train, test = _in_double(whole(run, "train", self.rows)), _in_double(whole(run, "test", self.rows))
        model = _softmax_regression(run)
        found = settle(self._problem(run, model, train))
        if not found.stationary:
            raise ValueError(f"the regularised minimum was not found ({found.sentence}): raise ridge or tolerance")
        return model, train, test

    def solved(self, run: LoadedRun, model: nn.Module, examples: Examples) -> Minimum:
        """The regularised minimum on these examples, searched from the model's weights."""
        return find_minimum(self._problem(run, model, examples))

    def _problem(self, run: LoadedRun, model: nn.Module, examples: Examples) -> Problem:
        return Problem(model, run.objective, examples, ridge=self.ridge, tolerance=self.tolerance)


def check_images(task: str) -> None:
    if not issubclass(tasks.find(task).family, ImageClassification):
        raise InputError(f"shifts can be measured only on mnist and digits, got a run of {task}")


def on_the_cpu(run: LoadedRun) -> LoadedRun:
    """The run with its model on the CPU, because not every accelerator has double precision."""
    check_images(run.record.task)
    return replace(run, model=run.model.cpu())


def whole(run: LoadedRun, split: Split, rows: int) -> list[Labelled]:
    """Examples of a split in large batches; the results do not depend on the batch size."""
    inputs, labels = run.family.data[split]
    return [(inputs[some], labels[some]) for some in torch.split(drawn(rows, len(labels)), 5000)]


def fine_tuned(run: LoadedRun, data: Labelled, epochs: int, seed: int) -> tuple[Weights, float]:
    """Train the run's model further on other data; return the change of the weights, and |gradient| at the end.

    The last weights are used, not those that validation would choose.

    Args:
        run: The run to continue.
        data: The inputs and labels to train on.
        epochs: Number of epochs.
        seed: The seed of the order of the batches.
    """
    from accelerate import Accelerator

    from gasam.lab.training.loop import Training

    settings = dict(run.family.settings) | {"epochs": epochs}
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
    return delta, length(slopes)


def length(tensors: Weights) -> float:
    """The 2-norm of all tensors together."""
    return float(torch.stack([tensor.norm() for tensor in tensors.values()]).norm())


def _in_double(batches: list[Labelled]) -> list[Labelled]:
    return [(images.double(), labels) for images, labels in batches]


def _softmax_regression(run: LoadedRun) -> nn.Module:
    """A softmax regression with zero weights in double precision, on the same inputs as the run's model."""
    data = run.family.data.shared
    linear = nn.Linear(data["pixels"], len(data["classes"]), dtype=torch.float64)
    for weight in linear.parameters():
        nn.init.zeros_(weight)
    return nn.Sequential(Brightness(data["brightest"]), linear)
