"""The question of a search: the task, the method, the range of its walks, and the number of trials and seeds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gasam import recommended
from gasam.lab import tasks
from gasam.lab.errors import InputError
from gasam.lab.methods import METHODS
from gasam.lab.search.finding import GRID
from gasam.lab.search.strategy import NORMS, Candidate, FullGrid, TwoStages
from gasam.lab.tasks import Origin
from gasam.lab.tasks.task import DEFAULT_SIZE
from gasam.lab.training import plan as plans
from gasam.lab.training.plan import Plan

TOLERANCE = 0.02
EXPONENTS = {"budget": (-2, -1), "epsilon": (-6, 0)}
SEED = 0
"""The default seed of searches; results use the seeds from 1."""
SEED_STEP = 1_000_000
"""Finalists are repeated with the seeds SEED + 1,000,000, SEED + 2,000,000 and so on."""
CAP = 0.1
"""Ten times the recommended cap. A search can try it because validation decides; on some tasks it triples the gain."""


def usual_quantity(method: str) -> str:
    """The quantity to search by default: a budget, or epsilon for methods that move embeddings."""
    return "epsilon" if method in METHODS and METHODS[method].moved == "embeddings" else "budget"


def usual_norms(method: str, quantity: str) -> tuple[float, ...]:
    """The norms to search by default: the method's own norm for a budget, both norms for epsilon."""
    return NORMS if quantity == "epsilon" or method not in METHODS else (METHODS[method].preset.norm,)


@dataclass(frozen=True)
class Question:
    """What to tune.

    Args:
        task: The name of the task, or the path of the Python file that defines it.
        method: The name of the method; not the baseline.
        size: The name of the size as records hold it.
        seed: The seed of the trials; results should use other seeds.
        origin: Where the data is.
        settings: Settings of the task to change.
        quantity: "budget", with a cap and the recommended schedule, or "epsilon", the paper's form.
        norms: The norms to search: inf, 2 or both.
        exponents: The smallest and the largest power of ten of the quantity.
        tolerance: A trial has collapsed if it loses more than this share of the baseline's worth, and more than the
            noise of the validation split.
        cap: The cap of the trials with a budget. The recommended walk, with its own cap, is always tried as well.
        trials: Maximum number of trials; None for no limit.
        seeds: Repeat the finalists and the baseline until they have this many seeds, and choose by the mean.
        full_grid: Run every point of the grid to completion (expensive).
    """

    task: str
    method: str
    size: str = DEFAULT_SIZE
    seed: int = SEED
    origin: Origin = field(default_factory=Origin)
    settings: Mapping[str, Any] = field(default_factory=dict)
    quantity: str = "budget"
    norms: tuple[float, ...] = (math.inf,)
    exponents: tuple[int, int] = EXPONENTS["budget"]
    tolerance: float = TOLERANCE
    cap: float = CAP
    trials: int | None = None
    seeds: int = 1
    full_grid: bool = False

    def __post_init__(self) -> None:
        """Raise `InputError` for invalid values before anything is run."""
        if self.method == "baseline":
            raise InputError("the baseline does not walk: name a method to tune")
        if self.quantity not in EXPONENTS:
            raise InputError(f"quantity must be budget, epsilon, settings or joint, got {self.quantity!r}")
        if self.quantity == "budget" and usual_quantity(self.method) == "epsilon":
            raise InputError(f"{self.method} moves embeddings and has no budget: use --quantity epsilon")
        if not self.norms or not set(self.norms) <= set(NORMS) or len(set(self.norms)) < len(self.norms):
            raise InputError(f"norms must be 2, inf or both, got {', '.join(f'{norm:g}' for norm in self.norms)}")
        low, high = self.exponents
        if not -30 <= low <= high <= 30:
            raise InputError(
                f"exponents must be two whole numbers, the smaller first, from -30 to 30, got {low},{high}"
            )
        if not 0 < self.tolerance < 1:
            raise InputError(f"tolerance must be a number between 0 and 1, got {self.tolerance:g}")
        if self.full_grid and self.seeds > 1:
            raise InputError(
                "a full grid chooses nothing, so there is nothing to repeat: leave out --seeds or --full-grid"
            )
        self.plan(Candidate(math.inf, 0), self.seeds - 1)

    def plan(self, candidate: Candidate | None, repetition: int = 0) -> Plan:
        """The plan of a trial, or of the baseline if the candidate is None. Repetition 0 has the seed of the search."""
        method, walk = "baseline", None
        if candidate is not None:
            method, walk = self.method, candidate.options(self.quantity, self.fixed())
        seed = self.seed + repetition * SEED_STEP
        return plans.make(self.task, method, self.size, seed, origin=self.origin, settings=self.settings, walk=walk)

    def described(self, candidate: Candidate | None) -> str:
        return "" if candidate is None else str(candidate)

    def fixed(self) -> dict[str, Any]:
        """The options of the walk that all trials share."""
        return {} if self.quantity == "epsilon" else {"cap": self.cap, "walk_progress": recommended()[1].progress}

    def strategy(self, noise: float) -> FullGrid | TwoStages:
        """The search strategy, given the noise of the validation split as a share of the baseline's worth."""
        if self.full_grid:
            return FullGrid(self.norms, *self.exponents)
        return TwoStages(self.norms, *self.exponents, self.tolerance, noise, self.always())

    def always(self) -> tuple[Candidate, ...]:
        """The candidates that are always tried: the recommended walk, if its norm is searched."""
        if self.quantity == "epsilon":
            return ()
        norm, perturbation = METHODS[self.method].preset.norm, recommended()[0]
        mantissa, exponent = f"{perturbation.budget:.0e}".split("e")
        cap = None if perturbation.cap == self.cap else perturbation.cap
        return (Candidate(norm, int(exponent), int(mantissa), cap),) if norm in self.norms else ()

    def name(self, data_hash: str) -> str:
        """The name of the search. It depends on the settings, the data and the seed, but not on the ranges."""
        config = self.plan(Candidate(math.inf, 0)).config()
        config["walk"] = {k: v for k, v in config["walk"].items() if k not in ("epsilon", "budget", "norm", "source")}
        text = json.dumps([config, data_hash, self.seed], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        task, grid = tasks.name_of(self.task), GRID if self.full_grid else ""
        return f"{task}-{self.size}-{self.method}-{self.seed}-{digest}{grid}"
