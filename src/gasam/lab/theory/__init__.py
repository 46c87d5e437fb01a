"""Numerical tests of the paper's theory: divergences, parameter shifts and bounds.

p is the distribution of the training data and p* the shifted one; theta and theta* are the minima of their losses, and
delta = theta* - theta. Every trial takes a `Problem` and returns a record with its numbers and a sentence.
"""

from gasam.lab.theory.bounds import CorruptionTrial, Curvature, ShiftBound, corruption_trial, curvature, shift_bound
from gasam.lab.theory.divergence import DIVERGENCES, Divergence
from gasam.lab.theory.minimum import settle
from gasam.lab.theory.risk import Distribution, Position, Problem, weighted
from gasam.lab.theory.shift import Mixed, MixtureTrial, ShiftTrial, mixture_trial, shift_trial
from gasam.lab.theory.strengths import GroupShift, StrengthTrial, strength_trial

__all__ = [
    "DIVERGENCES",
    "CorruptionTrial",
    "Curvature",
    "Distribution",
    "Divergence",
    "GroupShift",
    "Mixed",
    "MixtureTrial",
    "Position",
    "Problem",
    "ShiftBound",
    "ShiftTrial",
    "StrengthTrial",
    "corruption_trial",
    "curvature",
    "mixture_trial",
    "settle",
    "shift_bound",
    "shift_trial",
    "strength_trial",
    "weighted",
]
