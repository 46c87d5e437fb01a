"""Numerical tests of the paper's theory: divergences, parameter shifts and bounds.

p is the distribution of the training data and p* the shifted one; theta and theta* are the minima of their losses, and
delta = theta* - theta.
"""

from gasam.lab.theory.bounds import CorruptionTrial, ShiftBound, corruption_trial, shift_bound
from gasam.lab.theory.curvature import Curvature, curvature
from gasam.lab.theory.distribution import Distribution, mixture, weighted
from gasam.lab.theory.divergence import DIVERGENCES, Divergence
from gasam.lab.theory.minimum import Minimum, find_minimum, settle
from gasam.lab.theory.mixing import Mixed, MixtureTrial, mixture_trial
from gasam.lab.theory.shift import (
    Agreement,
    MeasuredShift,
    PredictedShift,
    agreement,
    measured_shift,
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
