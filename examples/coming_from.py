"""Replaces another SAM optimizer, and adds SAM to a loop that divides its loss and to hand-written updates."""

import copy

import torch
from pytorch_optimizer import SAM
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, asam, ga_sam, sam

torch.manual_seed(0)
start = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
batches = [(torch.randn(32, 20), torch.randint(3, (32,))) for _ in range(20)]


def distance(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((p - q).abs().max().item() for p, q in pairs)


# first_step and second_step, as in davda54/sam and in pytorch_optimizer
before = model = copy.deepcopy(start)

optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, adaptive=False, lr=0.1, momentum=0.9)

for x, y in batches:
    cross_entropy(model(x), y).backward()
    optimizer.first_step(zero_grad=True)
    cross_entropy(model(x), y).backward()
    optimizer.second_step(zero_grad=True)

after = model = copy.deepcopy(start)

optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sharp = SharpBackward(model, sam(0.05))  # adaptive=True is asam(0.05)

for x, y in batches:
    loss = sharp(lambda: cross_entropy(model(x), y))
    optimizer.step()
    optimizer.zero_grad()

assert distance(before, after) < 1e-5 < distance(before, start)

# The same with adaptive=True
before = model = copy.deepcopy(start)
optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.5, adaptive=True, lr=0.1)
for x, y in batches:
    cross_entropy(model(x), y).backward()
    optimizer.first_step(zero_grad=True)
    cross_entropy(model(x), y).backward()
    optimizer.second_step(zero_grad=True)

after = model = copy.deepcopy(start)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sharp = SharpBackward(model, asam(0.5))
for x, y in batches:
    sharp(lambda: cross_entropy(model(x), y))
    optimizer.step()
    optimizer.zero_grad()

assert distance(before, after) < 1e-5 < distance(before, start)

# Accumulation with a divided loss, as in nanoGPT
model = copy.deepcopy(start)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
micro_batches = batches[:8]

sharp = SharpBackward(model, ga_sam(budget=0.1, cap=0.01), gradient_scale=1 / 8, accumulation=8)

for x, y in micro_batches:
    loss = sharp(lambda: cross_entropy(model(x), y) / 8)
optimizer.step()
optimizer.zero_grad(set_to_none=True)

# The same step, with the loss divided in `backward`
other = copy.deepcopy(start)
optimizer = torch.optim.AdamW(other.parameters(), lr=1e-3)
dividing = SharpBackward(
    other, ga_sam(budget=0.1, cap=0.01), backward=lambda loss: (loss / 8).backward(), accumulation=8
)
for x, y in micro_batches:
    dividing(lambda: cross_entropy(other(x), y))
optimizer.step()

assert distance(model, other) < 1e-6
assert distance(model, start) > 1e-4

# Updates written by hand
model = copy.deepcopy(start)
sharp = SharpBackward(model, ga_sam(budget=0.1, cap=0.01))

for x, y in batches:
    loss = sharp(lambda: cross_entropy(model(x), y))
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad = None

assert sharp.last.climbed
assert distance(model, start) > 1e-2
