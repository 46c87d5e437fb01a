"""The methods of the family with the options of their tests, and runs of gradient descent by their references."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from family_reference import Reference
from gasam import friendly_sam, gsam, look_sam, sam_on, wsam
from problems import batch
from tolerances import flat

OPTIONS = {
    "gsam": {"alpha": 0.3},
    "wsam": {"gamma": 0.8},
    "friendly_sam": {"sigma": 0.9, "decay": 0.7},
    "look_sam": {"alpha": 0.6},
    "sam_on": {},
}
PRESETS = {"gsam": gsam, "wsam": wsam, "friendly_sam": friendly_sam, "look_sam": look_sam, "sam_on": sam_on}
RATE = 0.1


def model_of(dtype=torch.float64):
    """A network with a normalisation layer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def moving(method, model):
    """The factor of T of each weight: SAM-ON moves the second module only."""
    if method != "sam_on":
        return 1.0
    return np.concatenate([np.full(p.numel(), float(name[0] == "1")) for name, p in model.named_parameters()])


def reference_of(method, model, **options):
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return Reference(method, shapes, moving=moving(method, model), **(OPTIONS[method] | options))


def expected_run(method, steps=20, data=batch, **options):
    """The weights and the mean of Friendly-SAM after plain gradient descent in NumPy."""
    model = model_of()
    parameters, reference = list(model.parameters()), reference_of(method, model, **options)

    def f(w, x, y):
        nn.utils.vector_to_parameters(torch.from_numpy(w), parameters)
        loss = cross_entropy(model(x), y)
        return loss.item(), flat(torch.autograd.grad(loss, parameters)).numpy()

    w = flat(parameters).numpy()
    for step in range(steps):
        x, y = data(seed=step)
        w = w - RATE * reference.gradient(w, lambda at, x=x, y=y: f(at, x, y))
    return w, reference
