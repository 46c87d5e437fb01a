"""The test of Proposition 3: |delta_i| of a group of weights is proportional to sqrt(n_i) / G_i."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from gasam.lab.theory.minimum import delta_of
from gasam.lab.theory.risk import Problem


@dataclass(frozen=True)
class GroupShift:
    """A group of n_i weights with its |delta_i| and its gradient strength G_i = E|grad_i l| / sqrt(n_i)."""

    name: str
    size: int
    delta: float
    strength: float


@dataclass(frozen=True)
class StrengthTrial:
    """|delta_i| against sqrt(n_i) / G_i, over the `compared` groups that have a gradient and move.

    `pearson` is the correlation of the logarithms, and `power` the exponent k of the best fit
    |delta_i| = c (sqrt(n_i) / G_i)^k; the proposition says 1. All are NaN if one of the two is the same in all groups.
    """

    groups: tuple[GroupShift, ...]
    compared: int
    pearson: float
    spearman: float
    power: float

    @property
    def sentence(self) -> str:
        return (
            f"over {self.compared} of {len(self.groups)} groups |delta_i| goes with (sqrt(n_i) / G_i)^"
            f"{self.power:.2f}: Pearson {self.pearson:.3f} of the logarithms, Spearman {self.spearman:.3f}"
        )


def strength_trial(problem: Problem, *, group: Callable[[str], str] = str) -> StrengthTrial:
    """Test Proposition 3: |delta_i| is proportional to sqrt(n_i) / G_i with G_i = E|grad_i l(theta)| / sqrt(n_i).

    The proof assumes that H is the Fisher matrix and block diagonal, so only a correlation can be expected. `group`
    gives the group of a weight by its name; by default each tensor is its own group.
    """
    from scipy.stats import linregress, spearmanr  # type: ignore[import-untyped]

    with problem.risks(0.0, 1.0) as [here, there]:
        group_of = [group(name) for name in here.names]
        names = list(dict.fromkeys(group_of))
        members = torch.tensor([[own == name for own in group_of] for name in names], dtype=torch.float64)
        moved = there.named(delta_of(there)).values()
        norms = here.example_mean(lambda squares: (members @ squares).sqrt())
    sizes = members @ torch.tensor([float(part.numel()) for part in moved], dtype=torch.float64)
    deltas = (members @ torch.tensor([float(part.square().sum()) for part in moved], dtype=torch.float64)).sqrt()
    strengths = norms / sizes.sqrt()
    rows = zip(names, sizes.tolist(), deltas.tolist(), strengths.tolist(), strict=True)
    groups = tuple(GroupShift(name, int(size), shift, strength) for name, size, shift, strength in rows)
    compared = [each for each in groups if each.strength > 0 and each.delta > 0]
    if len(compared) < 3:
        raise ValueError(f"at least 3 groups must have a gradient and move, got {len(compared)} of {len(groups)}")
    reach, shift = np.log([(math.sqrt(each.size) / each.strength, each.delta) for each in compared]).T
    if not np.ptp(reach) or not np.ptp(shift):
        return StrengthTrial(groups, len(compared), math.nan, math.nan, math.nan)
    fit, ranks = linregress(reach, shift), spearmanr(reach, shift)
    return StrengthTrial(groups, len(compared), float(fit.rvalue), float(ranks.statistic), float(fit.slope))
