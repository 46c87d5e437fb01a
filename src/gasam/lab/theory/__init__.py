"""Numerical tests of the paper's theory: divergences, parameter shifts and bounds.

p is the distribution of the training data and p* the shifted one; theta and theta* are the minima of their losses, and
delta = theta* - theta.
"""

from gasam.lab.theory.bounds import CorruptionTrial, Curvature, ShiftBound, corruption_trial, curvature, shift_bound
from gasam.lab.theory.divergence import DIVERGENCES, Divergence
from gasam.lab.theory.minimum import Minimum, find_minimum, settle
from gasam.lab.theory.risk import Distribution, Problem, mixture, weighted
from gasam.lab.theory.shift import (
    Agreement,
    MeasuredShift,
    Mixed,
    MixtureTrial,
    PredictedShift,
    agreement,
    measured_shift,
    mixture_trial,
    predicted_shift,
)
from gasam.lab.theory.strengths import GroupShift, StrengthTrial, strength_trial

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
    "Problem",
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
