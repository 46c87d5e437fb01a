"""The small problem of classification that the tests of the analyses share."""

import torch

from gasam.analysis import CrossEntropy, Objective
from problems import batch

OBJECTIVE = Objective(lambda model, batch: model(batch[0]), CrossEntropy())


def uneven(dtype=torch.float64):
    """Twelve examples in batches of five and seven."""
    x, y = batch(dtype, rows=12)
    return [(x[:5], y[:5]), (x[5:], y[5:])]


def bits(model):
    return [p.detach().clone() for p in model.parameters()]
