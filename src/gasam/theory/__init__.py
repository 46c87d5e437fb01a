"""The paper's theory as trials: divergences, parameter shifts, bounds."""

from gasam.theory.distribution import Distribution, mixture, weighted
from gasam.theory.divergence import DIVERGENCES, Divergence
from gasam.theory.minimum import Minimum, find_minimum, settle
from gasam.theory.shift import (
    Agreement,
    MeasuredShift,
    PredictedShift,
    agreement,
    measured_shift,
    predicted_shift,
)

__all__ = [
    "DIVERGENCES",
    "Agreement",
    "Distribution",
    "Divergence",
    "MeasuredShift",
    "Minimum",
    "PredictedShift",
    "agreement",
    "find_minimum",
    "measured_shift",
    "mixture",
    "predicted_shift",
    "settle",
    "weighted",
]
