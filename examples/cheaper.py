"""Cheaper steps: a part of the batch, one pass, a late start, and a finish for a model that is already trained."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import MovingAverage, Schedule, SharpBackward, ga_sam, random_offsets, recommended
from gasam.analysis import quantised

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
x = torch.randn(2000, 20)
y = x[:, :3].argmax(1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def loss_of(rows):
    return cross_entropy(model(x[rows]), y[rows])


def train(sharp, steps):
    for _ in range(steps):
        rows = torch.randint(2000, (64,))
        optimizer.zero_grad()
        sharp(lambda rows=rows: loss_of(rows))
        optimizer.step()


# The first quarter of the batch finds the direction: 1.25 passes.
quarter = SharpBackward(model, recommended(1.25))
rows = torch.randint(2000, (64,))
loss = quarter(lambda: loss_of(rows), ascent=lambda: loss_of(rows[:16]))

# One pass: along the gradient of the last step, or a moving average of earlier ones.
train(SharpBackward(model, recommended(1)), 100)
train(SharpBackward(model, ga_sam(budget=0.1, cap=0.003, method=MovingAverage(0.9))), 100)

# Two passes in the last tenth of 100 steps, 1.1 on average.
train(SharpBackward(model, recommended(1.1), total_steps=100), 100)

# Finish a trained model: a few more steps at a small rate, at random offsets of 5% of each tensor.
trained = copy.deepcopy(model.state_dict())
for name, walk in {"plain": random_offsets(0.0), "random offsets": random_offsets(0.05)}.items():
    model.load_state_dict(trained)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(SharpBackward(model, walk, schedule=Schedule()), 40)
    with torch.no_grad(), quantised(model, bits=3, by_row=True):
        rounded = loss_of(slice(None)).item()
    print(f"finished with {name}: loss {loss_of(slice(None)).item():.3f}, rounded to 3 bits {rounded:.3f}")

assert loss.item() > 0
assert quarter.last.passes in (1, 2)
