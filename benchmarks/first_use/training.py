"""A set-up, the variants that are compared, the training loop that both share, and the record of a run."""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.measure import commit
from gasam import SharpBackward, recommended
from gasam.analysis import quantised
from gasam.recommended import Setting

Split = Literal["train", "valid", "test"]
Record = dict[str, Any]
History = dict[str, list[float]]
RESULTS = Path(__file__).with_name("results.jsonl")


@dataclass(frozen=True)
class Metric:
    """The number that a run is judged by, on the validation split and on the test split."""

    name: str
    higher_is_better: bool
    digits: int = 2


ACCURACY = Metric("accuracy, %", higher_is_better=True)
PERPLEXITY = Metric("perplexity, lower is better", higher_is_better=False)


class Setup(ABC):
    """One ordinary training program.

    `epochs` is E, the ordinary number of epochs: plain training runs 2E, all other variants E. `batch` is the number of
    rows of a batch, and `clip` the largest norm of the gradient; None means no clipping.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    metric: ClassVar[Metric]
    epochs: ClassVar[int]
    batch: ClassVar[int]
    clip: ClassVar[float | None] = None

    @cached_property
    @abstractmethod
    def data(self) -> dict[Split, Any]:
        """The examples of each split."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model; the global seed decides its initial weights."""

    @abstractmethod
    def optimizer(self, weights: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer, with a constant learning rate."""

    @abstractmethod
    def batches(self, order: Generator) -> Iterable[Any]:
        """The training batches of one epoch, in the order that `order` draws."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, carried: Any) -> tuple[Tensor, Any]:
        """The mean loss of a batch and a state for the next one; `carried` is that of the previous batch, or None."""

    def part(self, batch: Any, carried: Any) -> tuple[Any, Any]:
        """The first quarter of a batch, rounded up, and of the state of the previous one."""
        parts = [each[: math.ceil(len(each) / 4)] for each in (batch if isinstance(batch, tuple) else [batch])]
        return tuple(parts) if isinstance(batch, tuple) else parts[0], carried

    @abstractmethod
    def score(self, model: nn.Module, split: Split) -> float:
        """The metric on a split. The caller puts the model into evaluation mode and disables gradients."""


def shuffled(rows: int, batch: int, order: Generator) -> tuple[Tensor, ...]:
    """The indices of all rows in random order, one tensor for each batch."""
    return torch.split(torch.randperm(rows, generator=order), batch)


PLAIN, AVERAGE = "plain", "weights averaged"
"""An exponential moving average of the weights of plain training, with decay 0.99, is a control."""
PRECISIONS = {"": None, " 4 bits": 4, " 3 bits": 3}
"""Suffixes of the names of scores, and the bits to which each row of the weights is rounded."""
VARIANTS: dict[str, Setting | None] = {
    PLAIN: None,
    "2 passes": recommended(2),
    "1.25 passes": recommended(1.25),
    "1.1 passes": recommended(1.1),
    "1 pass": recommended(1),
    "rounding": recommended("rounding"),
}
"""The perturbation and the schedule of each variant, or None for plain training."""


def train(setup: Setup, variant: str, seed: int, epochs: int) -> dict[str, History]:
    """Train one model and evaluate it after each epoch.

    Args:
        setup: The training program.
        variant: A name in `VARIANTS`.
        seed: Decides the initial weights, the order of the batches and the dropout masks.
        epochs: Number of epochs.

    Returns:
        "epochs", and for plain training "averaged", the same for the moving average of its weights. Each has one value
        for each epoch of "passes" (forward and backward passes so far), and of "validation" and "test", each at full
        precision and with rounded weights.
    """
    torch.manual_seed(seed)
    order = Generator().manual_seed(seed)
    model = setup.model()
    optimizer, setting = setup.optimizer(model.parameters()), VARIANTS[variant]
    steps = epochs * sum(1 for _ in setup.batches(Generator()))
    sharp = None if setting is None else SharpBackward(model, setting, total_steps=steps)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
    judged = {"epochs": model} | ({"averaged": averaged.module} if variant == PLAIN else {})
    histories: dict[str, History] = {name: {"passes": []} for name in judged}
    passes = 0.0
    for _ in range(epochs):
        passes += _epoch(setup, model, optimizer, sharp, order, averaged if variant == PLAIN else None)
        for name, history in histories.items():
            history["passes"].append(passes)
            judged[name].eval()
            for suffix, bits in PRECISIONS.items():
                with torch.no_grad(), nullcontext() if bits is None else quantised(judged[name], bits, by_row=True):
                    history.setdefault(f"validation{suffix}", []).append(setup.score(judged[name], "valid"))
                    history.setdefault(f"test{suffix}", []).append(setup.score(judged[name], "test"))
    return histories


def _epoch(
    setup: Setup,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    sharp: SharpBackward | None,
    order: Generator,
    averaged: AveragedModel | None,
) -> float:
    """The lines that a user has. Returns the number of passes."""
    model.train()
    passes, carried = 0.0, None
    for batch in setup.batches(order):
        optimizer.zero_grad()
        loss_function = partial(setup.loss, model, batch, carried)
        if sharp is None:
            loss, carried = loss_function()
            loss.backward()  # type: ignore[no-untyped-call]
            passes += 1
        else:
            part = partial(setup.loss, model, *setup.part(batch, carried)) if sharp.perturbation.needs_ascent else None
            _, carried = sharp(loss_function, ascent=part)
            assert sharp.last is not None
            passes += len(sharp.last.losses) + (sharp.last.ascent_loss is not None) / 4
        if setup.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), setup.clip)
        optimizer.step()
        if averaged is not None:
            averaged.update_parameters(model)
    return passes


def run_once(setup: Setup, variant: str, seed: int, path: Path = RESULTS) -> Record | None:
    """Train one combination and append its record; None if it has one. Plain training takes 2E epochs.

    After a change of a set-up, delete its records.
    """
    identity: Record = {"setup": setup.name, "variant": variant, "seed": seed}
    if any(identity.items() <= record.items() for record in read(path)):
        return None
    start = time.process_time()
    histories = train(setup, variant, seed, setup.epochs * (2 if variant == PLAIN else 1))
    record = {
        **identity,
        "walk": str(VARIANTS[variant]),
        **{key: {name: [*map(_rounded, values)] for name, values in each.items()} for key, each in histories.items()},
        "seconds": round(time.process_time() - start, 1),
        "torch": torch.__version__,
        "commit": commit("src", "benchmarks/first_use/*.py"),
    }
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record, allow_nan=False) + "\n")
    return record


def read(path: Path = RESULTS) -> list[Record]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line] if path.exists() else []


def _rounded(value: float) -> float | None:
    """Six significant digits; None for a number that is not finite."""
    if not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")
