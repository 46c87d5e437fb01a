"""SAM-ON: SAM whose walk moves the normalisation layers only."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from torch import nn

from gasam.perturbation import Perturbation, Size, sam


def normalisation(module: nn.Module) -> bool:
    """Whether a module is a normalisation layer: its class, or one that it inherits from, is called ...Norm."""
    names = [kind.__name__.removesuffix("1d").removesuffix("2d").removesuffix("3d") for kind in type(module).__mro__]
    return any(name.endswith("Norm") for name in names)


def sam_on(epsilon: float | None = None, norm: float = 2.0, **size: Unpack[Size]) -> Perturbation:
    """SAM-ON: SAM whose walk moves the parameters of normalisation layers only; all parameters are trained.

    Mueller et al., "Normalization Layers Are All That Sharpness-Aware Minimization Needs", NeurIPS 2023. Give the
    model, not its parameters, and a larger radius than SAM's, because few weights move. `epsilon`, `norm`, `budget` and
    `cap` are those of `Perturbation`.
    """
    return replace(sam(epsilon, norm, **size), perturb=normalisation)
