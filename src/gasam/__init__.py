"""gasam: sharpness-aware training for PyTorch, with GA-SAM, SAM, ASAM and related methods."""

from gasam.backward import SharpBackward
from gasam.ball import uniform_start
from gasam.contexts import frozen_batchnorm, per_worker, same_noise, shared_walk, together
from gasam.embeddings import FreeLB
from gasam.optimizer import SharpnessAware
from gasam.passes import Pass
from gasam.perturbation import Perturbation, asam, ga_sam, layer_sam, multi_step_defense, recommended, sam
from gasam.range_tests import RangeTest, range_test
from gasam.scales import SCALES, Group, Weight
from gasam.schedule import Schedule
from gasam.trace import Trace
from gasam.walk import Visit, climb
from gasam.weights import displaced

__version__ = "0.1.0"

__all__ = [
    "SCALES",
    "FreeLB",
    "Group",
    "Pass",
    "Perturbation",
    "RangeTest",
    "Schedule",
    "SharpBackward",
    "SharpnessAware",
    "Trace",
    "Visit",
    "Weight",
    "asam",
    "climb",
    "displaced",
    "frozen_batchnorm",
    "ga_sam",
    "layer_sam",
    "multi_step_defense",
    "per_worker",
    "range_test",
    "recommended",
    "sam",
    "same_noise",
    "shared_walk",
    "together",
    "uniform_start",
]
