"""Proposition 3 as a trial: groups with weak gradients move far, |delta_i| in proportion to sqrt(n_i) / G_i."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gasam.analysis.objective import Objective
from gasam.lab.theory.bounds import measured
from gasam.lab.theory.distribution import Examples
from gasam.lab.theory.risk import Risk, risks


@dataclass(frozen=True)
class GroupShift:
    """A group of n_i weights, its |delta_i|, and G_i = E|grad_i l| / sqrt(n_i)."""

    name: str
    size: int
    delta: float
    strength: float

    @property
    def reach(self) -> float:
        """sqrt(n_i) / G_i, what |delta_i| should be proportional to; infinite without a gradient."""
        return math.sqrt(self.size) / self.strength if self.strength else math.inf


@dataclass(frozen=True)
class StrengthTrial:
    """|delta_i| against sqrt(n_i) / G_i. Groups that have no gradient or do not move take no part."""

    groups: tuple[GroupShift, ...]

    @property
    def compared(self) -> tuple[GroupShift, ...]:
        return tuple(group for group in self.groups if group.strength > 0 and group.delta > 0)

    @property
    def pearson(self) -> float:
        """Of the logarithms: a proportion of any power is a straight line."""
        return _correlation(*self._logarithms())

    @property
    def spearman(self) -> float:
        reach, delta = self._logarithms()
        return _correlation(_ranks(reach), _ranks(delta))

    @property
    def power(self) -> float:
        """k of the best |delta_i| = c (sqrt(n_i) / G_i)^k; the proposition says 1."""
        reach, delta = self._logarithms()
        reach = reach - reach.mean()
        square = float(reach @ reach)
        return float(reach @ delta) / square if square else math.nan

    @property
    def sentence(self) -> str:
        return (
            f"over {len(self.compared)} of {len(self.groups)} groups |delta_i| goes with (sqrt(n_i) / G_i)^"
            f"{self.power:.2f}: Pearson {self.pearson:.3f} of the logarithms, Spearman {self.spearman:.3f}"
        )

    def _logarithms(self) -> tuple[Tensor, Tensor]:
        pairs = torch.tensor([(group.reach, group.delta) for group in self.compared], dtype=torch.float64)
        reach, delta = pairs.log().unbind(1)
        return reach, delta


def strength_trial(
    model: nn.Module,
    objective: Objective,
    batches: Examples,
    shifted: Examples,
    *,
    delta: Mapping[str, Tensor] | None = None,
    group: Callable[[str], str] = str,
    ridge: float = 0.0,
) -> StrengthTrial:
    """Proposition 3: |delta_i| proportional to sqrt(n_i) / G_i with G_i = E|grad_i l(theta)| / sqrt(n_i).

    `group` makes the group's name of a weight's name; each tensor is a group of its own unless given. `delta` is
    measured when None. The proof takes H for the Fisher matrix and for block diagonal, so this is a correlation.
    """
    with risks(model, objective, batches, shifted, ridge=ridge) as (here, there):
        moved = there.named(measured(there, delta))
        members: dict[str, list[int]] = {}
        for number, name in enumerate(here.names):
            members.setdefault(group(name), []).append(number)
        if len(members) < 3:
            raise ValueError(
                f"group must make at least 3 groups for a correlation, got {len(members)}: {', '.join(members)}"
            )
        strengths = _strengths(here, members)
    found = []
    for name, numbers in members.items():
        parts = [moved[here.names[number]].reshape(-1) for number in numbers]
        size = sum(len(part) for part in parts)
        found.append(GroupShift(name, size, float(torch.cat(parts).norm()), strengths[name] / math.sqrt(size)))
    trial = StrengthTrial(tuple(found))
    if len(trial.compared) < 3:
        raise ValueError(f"at least 3 groups must have a gradient and move, got {len(trial.compared)} of {len(found)}")
    return trial


def _strengths(risk: Risk, members: Mapping[str, list[int]]) -> dict[str, float]:
    """E|grad_i l| of every group."""
    strengths = dict.fromkeys(members, 0.0)
    for probability, gradients in risk.example_gradients():
        squares = torch.stack([gradient.double().square().sum() for gradient in gradients]).tolist()
        for name, numbers in members.items():
            strengths[name] += probability * math.sqrt(sum(squares[number] for number in numbers))
    return strengths


def _correlation(a: Tensor, b: Tensor) -> float:
    """NaN where one of them is constant."""
    a, b = a - a.mean(), b - b.mean()
    spread = float(a.norm() * b.norm())
    return float(a @ b) / spread if spread else math.nan


def _ranks(values: Tensor) -> Tensor:
    """Equal values share the mean of their ranks."""
    below = (values[:, None] > values).sum(1)
    equal = (values[:, None] == values).sum(1)
    return below + (equal + 1).double() / 2
