"""A set-up, the variants that are compared, the training loop that both share, and the record of a run."""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from benchmarks.measure import commit
from gasam import Perturbation, Schedule, SharpBackward, asam, ga_sam, layer_sam, recommended, sam

Split = Literal["train", "valid", "test"]
Record = dict[str, Any]
MakeSharp = Callable[[nn.Module], SharpBackward | None]
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

    @abstractmethod
    def score(self, model: nn.Module, split: Split) -> float:
        """The metric on a split. The caller puts the model into evaluation mode and disables gradients."""


def shuffled(rows: int, batch: int, order: Generator) -> tuple[Tensor, ...]:
    """The indices of all rows in random order, one tensor for each batch."""
    return torch.split(torch.randperm(rows, generator=order), batch)


PLAIN, RECOMMENDED, SAM = "plain", "recommended", "sam"
BASE, SCHEDULE = recommended()


def _walk(perturbation: Perturbation, schedule: Schedule | None = SCHEDULE) -> MakeSharp:
    return lambda model: SharpBackward(model, perturbation, schedule=schedule)


VARIANTS: dict[str, MakeSharp] = {
    PLAIN: lambda model: None,
    RECOMMENDED: lambda model: SharpBackward(model),
    SAM: _walk(sam(budget=BASE.budget, cap=BASE.cap)),
    "cap 0.02": _walk(replace(BASE, cap=0.02)),
    "budget 0.3": _walk(replace(BASE, budget=0.3)),
    "norm 2": _walk(replace(BASE, norm=2.0)),
    "sign": _walk(replace(BASE, budget=1e3)),
    "layer_sam": _walk(layer_sam(budget=BASE.budget, cap=BASE.cap)),
    "asam": _walk(asam(budget=BASE.budget, cap=BASE.cap)),
    "paper": _walk(ga_sam(1e-4), schedule=None),
}
"""Each function takes the model and returns its `SharpBackward`, or None for plain training.

"sign" has a budget that is never reached: every layer moves by the cap along the sign of its gradient. "paper" is
GA-SAM as in the paper, without a cap and without a schedule.
"""


def train(setup: Setup, make_sharp: MakeSharp, seed: int, epochs: int) -> dict[str, list[float]]:
    """Train one model and evaluate it after each epoch.

    Args:
        setup: The training program.
        make_sharp: The variant, one of `VARIANTS`.
        seed: Decides the initial weights, the order of the batches and the dropout masks.
        epochs: Number of epochs.

    Returns:
        One value for each epoch of "validation", "test" and "passes" (forward and backward passes so far).
    """
    torch.manual_seed(seed)
    order = Generator().manual_seed(seed)
    model = setup.model()
    optimizer, sharp = setup.optimizer(model.parameters()), make_sharp(model)
    history: dict[str, list[float]] = {"validation": [], "test": [], "passes": []}
    passes = 0
    for _ in range(epochs):
        passes += _epoch(setup, model, optimizer, sharp, order)
        model.eval()
        with torch.no_grad():
            found = setup.score(model, "valid"), setup.score(model, "test"), passes
        for values, value in zip(history.values(), found, strict=True):
            values.append(value)
    return history


def _epoch(
    setup: Setup, model: nn.Module, optimizer: torch.optim.Optimizer, sharp: SharpBackward | None, order: Generator
) -> int:
    """The lines that a user has. Returns the number of passes."""
    model.train()
    passes, carried = 0, None
    for batch in setup.batches(order):
        optimizer.zero_grad()
        loss_function = partial(setup.loss, model, batch, carried)
        if sharp is None:
            loss, carried = loss_function()
            loss.backward()  # type: ignore[no-untyped-call]
            passes += 1
        else:
            _, carried = sharp(loss_function)
            passes += 1 if sharp.last is None else len(sharp.last.losses)
        if setup.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), setup.clip)
        optimizer.step()
    return passes


def run_once(setup: Setup, variant: str, seed: int, path: Path = RESULTS) -> Record | None:
    """Train one combination and append its record; None if it has one. Plain training takes 2E epochs.

    After a change of a set-up, delete its records.
    """
    identity: Record = {"setup": setup.name, "variant": variant, "seed": seed}
    if any(identity.items() <= record.items() for record in read(path)):
        return None
    start = time.process_time()
    history = train(setup, VARIANTS[variant], seed, setup.epochs * (2 if variant == PLAIN else 1))
    sharp = VARIANTS[variant](nn.Linear(1, 1))
    record = {
        **identity,
        "walk": None if sharp is None else f"{sharp.perturbation}, {sharp.clock.schedule}",
        "epochs": {name: [_rounded(value) for value in values] for name, values in history.items()},
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
