"""What a set-up is: a model, its data, its optimizer and its metric, with every number in one place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

Split = Literal["train", "valid", "test"]


@dataclass(frozen=True)
class Metric:
    """The number that a run is judged by, on the validation split and on the test split."""

    name: str
    higher_is_better: bool
    digits: int = 2

    def best(self, values: list[float]) -> int:
        """The index of the best value; of equal values the first."""
        return values.index(max(values) if self.higher_is_better else min(values))

    def gain(self, new: float, old: float) -> float:
        """How much better `new` is than `old`; negative if it is worse."""
        return new - old if self.higher_is_better else old - new


ACCURACY = Metric("accuracy, %", higher_is_better=True)
PERPLEXITY = Metric("perplexity, lower is better", higher_is_better=False)


@dataclass(frozen=True, kw_only=True)
class Setup(ABC):
    """One ordinary training program. The fields of a subclass are its configuration, which every record repeats.

    Args:
        epochs: E, the ordinary number of epochs. Plain training runs 2E, all other variants E.
        batch: Rows of a batch.
        learning_rate: Constant during training.
        optimizer: "adam", "adamw" or "sgd".
        weight_decay: As in torch.optim.
        momentum: For "sgd" only.
        clip: Largest norm of the gradient; None means no clipping.
        dropout: Probability in every dropout layer of the model.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    metric: ClassVar[Metric]

    epochs: int
    batch: int
    learning_rate: float
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip: float | None = None
    dropout: float = 0.1

    def configuration(self) -> dict[str, Any]:
        return asdict(self)

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model; the global seed decides its initial weights."""

    @abstractmethod
    def batches(self, order: Generator) -> Iterable[Any]:
        """The training batches of one epoch, in the order that `order` draws."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, carried: Any) -> tuple[Tensor, Any]:
        """The mean loss of a batch, and a state for the next batch (None if the model has none).

        Args:
            model: The model, in training mode.
            batch: One of `batches`.
            carried: The state that the previous batch of this epoch returned; None for the first.
        """

    @abstractmethod
    def score(self, model: nn.Module, split: Split) -> float:
        """The metric on a split. The caller puts the model into evaluation mode and disables gradients."""

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if self.optimizer == "sgd":
            return torch.optim.SGD(
                trained, lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
            )
        kind = torch.optim.AdamW if self.optimizer == "adamw" else torch.optim.Adam
        return kind(trained, lr=self.learning_rate, weight_decay=self.weight_decay)


def shuffled(rows: int, batch: int, order: Generator) -> tuple[Tensor, ...]:
    """The indices of all rows in random order, one tensor for each batch."""
    return torch.split(torch.randperm(rows, generator=order), batch)
