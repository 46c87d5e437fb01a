"""Other methods: presets, other options, your own scale, and weights that are not perturbed."""

import math
from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Perturbation, SharpBackward, asam, ga_sam, layer_sam, multi_step_defense, sam

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
x, y = torch.randn(32, 20), torch.randint(3, (32,))


def mean_weight(group):
    """T = |w_i|_2 / n_i, only as an example."""
    return group.weight / group.size


variants = {
    "SAM": sam(0.05),
    "ASAM whose weights of zero can move": asam(0.5, eta=0.01),
    "ASAM, filter by filter": replace(asam(0.5), granularity="filter"),
    "Layer-SAM": layer_sam(1e-3),
    "Multi-step Defense": multi_step_defense(1e-3, steps=3),
    "GA-SAM, as in the paper": ga_sam(1e-4),
    "GA-SAM with a loss budget and a cap": ga_sam(budget=0.1, cap=0.01),
    "GA-SAM, single-step risk": replace(ga_sam(1e-4), risk="final"),
    "GA-SAM, model-wise": replace(ga_sam(1e-4), granularity="model"),
    "all options given": Perturbation(
        epsilon=1e-3, norm=math.inf, scale="weight_rms", granularity="module", steps=2, step_size=1e-3, risk="mean"
    ),
    "your own scale": replace(sam(0.1), scale=mean_weight, granularity="layer"),
}
for name, perturbation in variants.items():
    sharp = SharpBackward(model, perturbation)
    sharp(lambda: cross_entropy(model(x), y))
    print(f"{name}: {sharp.last}")
    assert sharp.last.sharpness > 0

# The first layer is trained, but not perturbed.
groups = [{"params": model[0].parameters(), "perturb": False}, {"params": model[2].parameters()}]
sharp = SharpBackward(groups, ga_sam(1e-4), detailed=True)
sharp(lambda: cross_entropy(model(x), y))
print(sharp.last)  # also prints |a| / |w| of each group, and the share of the offset that rounding leaves
assert len(sharp.last.groups.labels) == 2
