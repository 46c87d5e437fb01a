"""An attack on the weights of a model: follow a walk, keep its worst point, and evaluate the model there."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Pass, Perturbation
from gasam.analysis import climb, displaced, uniform_start

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
x, y = torch.randn(64, 20), torch.randint(3, (64,))


worst, worst_offset = -1.0, []


def evaluate(k, offset):
    """Compute the loss at the current weights, leave its gradient in `.grad`, and remember the worst point."""
    global worst, worst_offset
    model.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    if loss > worst:
        worst, worst_offset = loss.item(), offset()
    return Pass(loss.detach())


ball = Perturbation(epsilon=0.5, norm=2.0, scale="one", granularity="model", steps=10)
climb(model.parameters(), evaluate, ball, start=uniform_start(2.0))

with displaced(list(model.parameters()), worst_offset), torch.no_grad():
    assert abs(cross_entropy(model(x), y).item() - worst) < 1e-4
assert worst > cross_entropy(model(x), y).item()
