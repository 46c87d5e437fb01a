"""The paper's theory as trials: divergences, parameter shifts, bounds."""

from gasam.theory.bounds import CorruptionTrial, ShiftBound, corruption_trial, shift_bound
from gasam.theory.curvature import Curvature, curvature
from gasam.theory.distribution import Distribution, mixture, weighted
from gasam.theory.divergence import DIVERGENCES, Divergence
from gasam.theory.minimum import Minimum, find_minimum, settle
from gasam.theory.mixing import Mixed, MixtureTrial, mixture_trial
from gasam.theory.shift import (
    Agreement,
    MeasuredShift,
    PredictedShift,
    agreement,
    measured_shift,
    predicted_shift,
)
from gasam.theory.strengths import GroupShift, StrengthTrial, strength_trial

__all__ = [
    "DIVERGENCES",
    "Agreement",
    "CorruptionTrial",
    "Curvature",
    "Distribution",
    "Divergence",
    "GroupShift",
    "MeasuredShift",
    "Minimum",
    "Mixed",
    "MixtureTrial",
    "PredictedShift",
    "ShiftBound",
    "StrengthTrial",
    "agreement",
    "corruption_trial",
    "curvature",
    "find_minimum",
    "measured_shift",
    "mixture",
    "mixture_trial",
    "predicted_shift",
    "settle",
    "shift_bound",
    "strength_trial",
    "weighted",
]
