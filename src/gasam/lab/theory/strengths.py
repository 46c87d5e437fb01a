"""The test of Proposition 3: |delta_i| of a group of weights is proportional to sqrt(n_i) / G_i."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gasam.lab.theory.minimum import found_or_given
from gasam.lab.theory.risk import Problem


@dataclass(frozen=True)
class GroupShift:
    """A group of n_i weights with its |delta_i| and its gradient strength G_i = E|grad_i l| / sqrt(n_i)."""

    name: str
    size: int
    delta: float
    strength: float

    @property
    def reach(self) -> float:
        """sqrt(n_i) / G_i, to which |delta_i| should be proportional; infinite without a gradient."""
        return math.sqrt(self.size) / self.strength if self.strength else math.inf


@dataclass(frozen=True)
class StrengthTrial:
    """|delta_i| against sqrt(n_i) / G_i. Groups that have no gradient or do not move are left out of the statistics."""

    groups: tuple[GroupShift, ...]

    @property
    def compared(self) -> tuple[GroupShift, ...]:
        return tuple(group for group in self.groups if group.strength > 0 and group.delta > 0)

    @property
    def pearson(self) -> float:
        """Pearson's correlation of the logarithms, in which a power law is a straight line; NaN if one is constant."""
        from scipy.stats import pearsonr  # type: ignore[import-untyped]

        return float(pearsonr(*self._logarithms()).statistic)

    @property
    def spearman(self) -> float:
        from scipy.stats import spearmanr

        return float(spearmanr(*self._logarithms()).statistic)

    @property
    def power(self) -> float:
        """The exponent k of the best fit |delta_i| = c (sqrt(n_i) / G_i)^k; the proposition says 1.

        NaN if sqrt(n_i) / G_i is the same for all groups.
        """
        reach, delta = self._logarithms()
        from scipy.stats import linregress

        return float(linregress(reach, delta).slope) if np.ptp(reach) else math.nan

    @property
    def sentence(self) -> str:
        return (
            f"over {len(self.compared)} of {len(self.groups)} groups |delta_i| goes with (sqrt(n_i) / G_i)^"
            f"{self.power:.2f}: Pearson {self.pearson:.3f} of the logarithms, Spearman {self.spearman:.3f}"
        )

    def _logarithms(self) -> Any:
        """The logarithms of sqrt(n_i) / G_i and of |delta_i|, one row each."""
        return np.log([(group.reach, group.delta) for group in self.compared]).T


def strength_trial(
    problem: Problem, *, delta: Mapping[str, Tensor] | None = None, group: Callable[[str], str] = str
) -> StrengthTrial:
    """Test Proposition 3: |delta_i| is proportional to sqrt(n_i) / G_i with G_i = E|grad_i l(theta)| / sqrt(n_i).

    The proof assumes that H is the Fisher matrix and block diagonal, so only a correlation can be expected.

    Args:
        problem: The model at theta, its loss, p and p*.
        delta: theta* - theta by name; None searches for the minimum on p*.
        group: Gives the group of a weight by its name; by default each tensor is its own group.
    """
    with problem.risks() as [here, there]:
        group_of = [group(name) for name in here.names]
        names = list(dict.fromkeys(group_of))
        if len(names) < 3:
            raise ValueError(
                f"group must give at least 3 groups for a correlation, got {len(names)}: {', '.join(names)}"
            )
        members = torch.tensor([[own == name for own in group_of] for name in names], dtype=torch.float64)
        moved = there.named(found_or_given(there, delta))
        norms = here.example_mean(lambda squares: (members @ squares).sqrt())
    sizes = members @ torch.tensor([part.numel() for part in moved.values()], dtype=torch.float64)
    squares = torch.tensor([float(part.square().sum()) for part in moved.values()], dtype=torch.float64)
    deltas, strengths = (members @ squares).sqrt(), norms / sizes.sqrt()
    found = [GroupShift(name, int(sizes[i]), float(deltas[i]), float(strengths[i])) for i, name in enumerate(names)]
    trial = StrengthTrial(tuple(found))
    if len(trial.compared) < 3:
        raise ValueError(f"at least 3 groups must have a gradient and move, got {len(trial.compared)} of {len(found)}")
    return trial
