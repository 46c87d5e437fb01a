"""Cheaper steps: a part of the batch, one pass, a late start, and a finish for a model that is already trained."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import MovingAverage, SharpBackward, ga_sam, random_offsets, recommended
from gasam.analysis import quantised

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
x = torch.randn(2000, 20)
y = x[:, :3].argmax(1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def loss_of(rows):
    return cross_entropy(model(x[rows]), y[rows])


def train(sharp, steps, ascent=False):
    for _ in range(steps):
        rows = torch.randint(2000, (64,))
        optimizer.zero_grad()
        # The first quarter of the batch finds the direction.
        part = (lambda rows=rows: loss_of(rows[:16])) if ascent else None
        sharp(lambda rows=rows: loss_of(rows), ascent=part)
        optimizer.step()
    return sharp.last.passes


# One pass: random offsets of 1% of each tensor, which is the default; or along a moving average of the gradients.
one = train(SharpBackward(model), 100)
also_one = train(SharpBackward(model, ga_sam(budget=0.1, cap=0.003, method=MovingAverage(0.9))), 100)

# 1.25 passes: a quarter of the batch finds the direction. 1.1: the same in the last 40% of 100 steps.
quarter = train(SharpBackward(model, recommended(passes=1.25)), 100, ascent=True)
late = train(SharpBackward(model, recommended(passes=1.1), total_steps=100), 100, ascent=True)

# Two passes
two = train(SharpBackward(model, recommended(passes=2)), 100)

# Finish a trained model: a few more steps at a small rate, at random offsets of 10% of each tensor.
trained = copy.deepcopy(model.state_dict())
for name, walk in {"plain": random_offsets(0.0), "random offsets": random_offsets(0.1)}.items():
    model.load_state_dict(trained)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(SharpBackward(model, walk), 40)
    with torch.no_grad(), quantised(model, bits=3, by_row=True):
        rounded = loss_of(slice(None)).item()
    print(f"finished with {name}: loss {loss_of(slice(None)).item():.3f}, rounded to 3 bits {rounded:.3f}")

assert (one, also_one, quarter, late, two) == (1, 1, 2, 2, 2)
