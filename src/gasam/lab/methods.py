"""The methods that can be compared, each with its preset of the core; the sizes of their walks are in the tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Literal

from gasam import Perturbation, asam, ga_sam, layer_sam, multi_step_defense, sam
from gasam.family import members
from gasam.lab.errors import InputError

Moved = Literal["nothing", "weights", "embeddings"]


@dataclass(frozen=True)
class Method:
    """A method that can be compared.

    Args:
        name: The name on the command line and in records.
        title: The name in tables.
        about: What the method minimises, in a few words.
        preset: Every option of the walk except its size.
        moved: What a walk moves.
        make: The function that makes the preset, for a method of `gasam.family`; its own options belong to a run.
    """

    name: str
    title: str
    about: str
    preset: Perturbation
    moved: Moved = "weights"
    make: Callable[..., Perturbation] | None = None

    def __post_init__(self) -> None:
        """A run has its own size of the walk and number of steps, so a preset can't set more than these options."""
        if self.make is not None:
            return
        options = {name: getattr(self.preset, name) for name in ("scale", "granularity", "risk", "norm")}
        if not isinstance(self.preset.scale, str) or self.preset != Perturbation(epsilon=0, **options):
            raise ValueError(f"the preset of {self.name} may set a named scale, granularity, risk and norm, no more")

    @property
    def has_many_steps(self) -> bool:
        """Whether a task may choose K. The other methods take one step."""
        return self.preset.risk == "mean"

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options with their defaults, such as GSAM's alpha."""
        known = {} if self.make is None else signature(self.make).parameters
        return {name: each.default for name, each in known.items() if name not in ("epsilon", "norm", "size")}


TABLE1 = ("baseline", "sam", "asam", "layer-sam", "multi-step-defense", "ga-sam")
ABLATIONS = (
    "single-step",
    "element-wise",
    "model-wise",
    "scale-weight-over-gradient",
    "scale-inverse-gradient",
    "scale-weight-rms",
    "scale-weight",
)
"""The methods of the paper's Table 2 that change one part of GA-SAM."""

_ALL = (
    Method("baseline", "Baseline", "plain training", sam(0), moved="nothing"),
    Method("sam", "SAM", "the loss at the worst point of a plain ball", sam(0)),
    Method("asam", "ASAM", "SAM with T = |w| for each weight", asam(0)),
    Method("asam-filter", "ASAM (filter)", "SAM with T = |w| for each filter", replace(asam(0), granularity="filter")),
    Method("layer-sam", "Layer-SAM", "SAM with T = |w| / |g| for each tensor", layer_sam(0)),
    Method(
        "multi-step-defense",
        "Multi-step Defense",
        "the mean loss over a walk in a plain ball; Table 2's T = 1",
        multi_step_defense(0),
    ),
    Method("ga-sam", "GA-SAM", "the mean loss over a walk with T = sqrt(n_i) / (|g_i| sqrt(n))", ga_sam(0)),
    Method(
        "freelb",
        "FreeLB",
        "the mean loss over a walk of noise on word embeddings",
        multi_step_defense(0),
        moved="embeddings",
    ),
    Method(
        "single-step",
        "Single-step",
        "GA-SAM's scale with SAM's risk: only the last point",
        replace(ga_sam(0), risk="final"),
    ),
    Method(
        "element-wise",
        "Element-wise",
        "GA-SAM with one T for each element",
        replace(ga_sam(0), granularity="element"),
    ),
    Method("model-wise", "Model-wise", "GA-SAM with one T for each model", replace(ga_sam(0), granularity="model")),
    Method(
        "scale-weight-over-gradient",
        "T = |w| / |g|",
        "GA-SAM with T = |w| / |g|",
        replace(ga_sam(0), scale="weight_over_gradient"),
    ),
    Method(
        "scale-inverse-gradient",
        "T = 1 / |g|",
        "GA-SAM with T = 1 / |g|",
        replace(ga_sam(0), scale="inverse_gradient"),
    ),
    Method(
        "scale-weight-rms",
        "T = |w| / sqrt(n)",
        "GA-SAM with T = |w| / sqrt(n)",
        replace(ga_sam(0), scale="weight_rms"),
    ),
    Method("scale-weight", "T = |w|", "GA-SAM with T = |w|", replace(ga_sam(0), scale="weight")),
)
_FOUND = tuple(
    Method(name.replace("_", "-"), member.title, member.about, member.preset(0), make=member.preset)
    for name, member in members().items()
)
METHODS = {method.name: method for method in (*_ALL, *_FOUND)}
FAMILY = (*TABLE1, *(method.name for method in _FOUND))
"""The methods of `--methods family`."""


def find_method(name: str) -> Method:
    if name not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    return METHODS[name]
