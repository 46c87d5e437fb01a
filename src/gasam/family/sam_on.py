"""SAM-ON: SAM whose walk moves the normalisation layers only."""

import re
from typing import Any

from torch import nn

from gasam.perturbation import Perturbation, sam


def normalisation(module: nn.Module) -> bool:
    """Whether a module is a normalisation layer: its class, or one that it inherits from, is called ...Norm."""
    return any(re.search(r"Norm([123]d)?$", kind.__name__) for kind in type(module).__mro__)


def sam_on(epsilon: float | None = None, norm: float = 2.0, **options: Any) -> Perturbation:
    """SAM-ON: SAM whose walk moves the parameters of normalisation layers only; all parameters are trained.

    Mueller et al., "Normalization Layers Are All That Sharpness-Aware Minimization Needs", NeurIPS 2023. Give the
    model, not its parameters, and a larger radius than SAM's, because few weights move.
    """
    return sam(epsilon, norm, perturb=normalisation, **options)
