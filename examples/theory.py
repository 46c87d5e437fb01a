"""The paper's theory on your own model: how far a minimum moves when the data shifts, and bounds on that distance."""

import torch
from torch import nn

from gasam.analysis import CrossEntropy, Objective
from gasam.lab.theory import (
    DIVERGENCES,
    Problem,
    corruption_trial,
    curvature,
    mixture_trial,
    settle,
    shift_bound,
    shift_trial,
    strength_trial,
    weighted,
)

torch.manual_seed(0)
y = torch.randint(3, (200,))
x = (torch.randn(3, 5)[y] + torch.randn(200, 5)).double()
batches = [(x[i : i + 50], y[i : i + 50]) for i in range(0, 200, 50)]
model = nn.Linear(5, 3).double()

objective = Objective(lambda model, batch: model(batch[0]), CrossEntropy())
ratios = torch.where(y == 0, 1.2, 1.0)  # p*: class 0 becomes 1.2 times as frequent
problem = Problem(model, objective, batches, weighted(batches, ratios), ridge=0.01)
found = settle(problem)  # the model is now at theta
assert found.stationary

shift = shift_trial(problem)
print(shift.sentence)
assert shift.stationary
assert shift.converged
assert shift.relative_error < 0.15

trial = corruption_trial(problem, radii=(0.1, 0.01))
print(trial.sentence)
assert trial.verdict == "holds"

bound = shift_bound(problem, kind="kl")
print(bound.sentence)
assert bound.verdict == "holds"

unbounded = curvature(Problem(model, objective, batches))  # no ridge: adding a constant to all logits costs nothing
print(unbounded.sentence)
assert unbounded.verdict == "vacuous"

mixed = mixture_trial(problem, etas=(0.1, 0.5, 1.0))
print(mixed.sentence)
assert mixed.largest_deviation < 0.15

network = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
deep = Problem(network, objective, batches, weighted(batches, ratios), ridge=0.03)
settle(deep)
groups = strength_trial(deep)
print(groups.sentence)
assert groups.pearson > 0

kl = DIVERGENCES["kl"]
p, r = torch.tensor([0.2, 0.3, 0.5]).double(), torch.tensor([0.04, -0.06, 0.02]).double()
assert abs(kl.between(p * (1 + r), p) / (kl.a_2 * (p * r**2).sum()) - 1) < 0.02
assert kl.between([0.5, 0.5], [1.0, 0.0]) == torch.inf
