"""The paper's theory as trials: divergences, parameter shifts, bounds.

These arguments mean the same in every function:
    model: its weights are theta; `settle` moves them to the minimum. Every other function leaves the model as it was.
    objective: gives the loss of each example, see `gasam.analysis.objective`.
    batches: examples of p, a list of batches or a `Distribution`. Where each example's own gradient is needed, small
        batches cost less.
    shifted: examples of p*, of the same kind: other batches, or the same ones with other weights, see `weighted`.
    ridge: ridge/2 |w|^2 is a part of every loss. Give the same one to every function.
    delta: theta* - theta by name; the minimum on `shifted` is searched when None.
    tolerance: of |gradient| at a minimum; 4e-11 for float64 and 2e-5 for float32 weights when None.
    iterations: of a search for a minimum at most; Hessian products of Newton's method count as one each.
    products: Hessian products of Lanczos' method at most.
    seed: of random vectors.
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
