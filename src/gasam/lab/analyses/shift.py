"""The shift of the minimum between training and test data: what the trials of the paper's Figures 1 and 2 share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from gasam.analysis.objective import gradient
from gasam.lab import tasks
from gasam.lab.analyses import Analysis
from gasam.lab.analyses.subjects import Subject, checked
from gasam.lab.errors import InputError
from gasam.lab.families import drawn
from gasam.lab.families.images import Brightness, ImageClassification
from gasam.lab.theory.distribution import Examples
from gasam.lab.theory.minimum import Minimum, find_minimum, settle
from gasam.lab.training.checkpoints import Checkpoints, Weights
from gasam.lab.training.loop import Training
from gasam.lab.training.plan import make

Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Shift(Analysis):
    """What both trials share: two protocols for finding the minimum again on other data.

    The paper's: the run is fine-tuned for `epochs`, with its own optimizer, batch and rate. It ends where it ends.
    Regularised: a softmax regression on `rows` examples of training and of test data, with `ridge`/2 |w|^2 beside the
    loss: strongly convex, as the propositions want it, and solved until |gradient| is at most `tolerance`.
    """

    rows: int = 2000
    epochs: int = 5
    ridge: float = 1e-2
    tolerance: float = 1e-8

    def problem(self, subject: Subject) -> tuple[nn.Module, list[Labelled], list[Labelled]]:
        """The model at its regularised minimum on training data, training data and test data."""
        here, there = ([as_double(b) for b in whole(subject, split, self.rows)] for split in ("train", "test"))
        model = softmax_regression(subject)
        found = settle(model, subject.objective, here, **self._search())
        if not found.stationary:
            raise ValueError(f"the regularised minimum was not found: {found.sentence}; raise ridge or tolerance")
        return model, here, there

    def solved(self, subject: Subject, model: nn.Module, examples: Examples) -> Minimum:
        """The regularised minimum on these examples, from where the model is."""
        return find_minimum(model, subject.objective, examples, **self._search())

    def _search(self) -> dict[str, Any]:
        return {"ridge": self.ridge, "tolerance": self.tolerance, "iterations": 2_000}


def check_images(task: str) -> None:
    if not issubclass(tasks.find(task).family, ImageClassification):
        raise InputError(f"shifts are measured on mnist and digits, got a run of {task}")


def on_the_cpu(subject: Subject) -> Subject:
    """Small models, in double precision, which not every accelerator has."""
    check_images(subject.record.task)
    return replace(subject, model=subject.model.cpu())


def softmax_regression(subject: Subject) -> nn.Module:
    """From zero, in double precision, on brightness as the run's own model has it."""
    images, classes = subject.family.data["train"][0], subject.family.data.shared["classes"]
    linear = nn.Linear(images.shape[1], len(classes), dtype=torch.float64)
    for weight in linear.parameters():
        nn.init.zeros_(weight)
    return nn.Sequential(Brightness(subject.family.data.shared["brightest"]), linear)


def whole(subject: Subject, split: str, rows: int) -> Iterator[Labelled]:
    """Large batches: nothing here depends on how examples are batched."""
    inputs, labels = subject.family.data[checked(split)]
    for some in torch.split(drawn(rows, len(labels)), 5000):
        yield inputs[some], labels[some]


def as_double(batch: Labelled) -> Labelled:
    return batch[0].double(), batch[1]


def drawn_mixture(subject: Subject, eta: float, seed: int) -> Labelled:
    """As many examples as the smaller of the two sets has, a share eta of them from the test data, none twice."""
    (train, train_labels), (test, test_labels) = subject.family.data["train"], subject.family.data["test"]
    generator = torch.Generator().manual_seed(seed)
    count = min(len(train_labels), len(test_labels))
    shifted = round(eta * count)
    old = torch.randperm(len(train_labels), generator=generator)[: count - shifted]
    new = torch.randperm(len(test_labels), generator=generator)[:shifted]
    return torch.cat([train[old], test[new]]), torch.cat([train_labels[old], test_labels[new]])


def fine_tuned(subject: Subject, data: Labelled, epochs: int, seed: int) -> tuple[Weights, float]:
    """delta when the training loop goes on from the run's weights on other data, and |gradient| at its end.

    The last weights, not those that validation would choose: where training is, not where it was best.
    """
    config = subject.record.config
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in config["settings"].items()}
    plan = make(config["task"], "baseline", config["size"], seed, settings=settings | {"epochs": epochs})
    family = plan.family(subject.family.data.with_train(data))
    with TemporaryDirectory() as folder:
        training = Training(plan, family, Checkpoints(Path(folder)), lambda update: None, Accelerator(cpu=True))
        training.plain_model.load_state_dict(subject.model.state_dict())
        training.train()
        _, slopes = gradient(training.plain_model, family.objective(), [data])
        steepness = float(torch.stack([slope.norm() for slope in slopes.values()]).norm())
        home = subject.model.state_dict()
        ends = training.plain_model.named_parameters()
        return {name: (end.detach() - home[name]).double().cpu() for name, end in ends}, steepness
