"""gasam: sharpness-aware training for PyTorch, with GA-SAM, SAM, ASAM and related methods."""

from gasam.backward import SharpBackward
from gasam.contexts import frozen_batchnorm, same_noise, together
from gasam.distributed import per_worker, shared_walk
from gasam.embeddings import FreeLB
from gasam.family import Kept, Method
from gasam.family.friendly_sam import friendly_sam
from gasam.family.gsam import gsam
from gasam.family.look_sam import look_sam
from gasam.family.momentum_sam import MovingAverage, momentum_sam
from gasam.family.random_offsets import random_offsets
from gasam.family.sam_on import normalisation, sam_on
from gasam.family.wsam import wsam
from gasam.optimizer import SharpnessAware
from gasam.passes import Pass
from gasam.perturbation import Perturbation, asam, ga_sam, layer_sam, multi_step_defense, sam
from gasam.range_test import RangeTest, range_test
from gasam.recommended import recommended
from gasam.scales import SCALES, Group, Weight
from gasam.schedule import Schedule
from gasam.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "SCALES",
    "FreeLB",
    "Group",
    "Kept",
    "Method",
    "MovingAverage",
    "Pass",
    "Perturbation",
    "RangeTest",
    "Schedule",
    "SharpBackward",
    "SharpnessAware",
    "Trace",
    "Weight",
    "asam",
    "friendly_sam",
    "frozen_batchnorm",
    "ga_sam",
    "gsam",
    "layer_sam",
    "look_sam",
    "momentum_sam",
    "multi_step_defense",
    "normalisation",
    "per_worker",
    "random_offsets",
    "range_test",
    "recommended",
    "sam",
    "sam_on",
    "same_noise",
    "shared_walk",
    "together",
    "wsam",
]
