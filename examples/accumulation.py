"""Gradient accumulation in two ways: one walk for each micro-batch, or one walk for all of them."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, SharpnessAware, ga_sam

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
micro_batches = [(torch.randn(8, 20), torch.randint(3, (8,))) for _ in range(4)]
base = torch.optim.SGD(model.parameters(), lr=0.1)

# One walk for each micro-batch. The loss is divided in `backward`, so the walk sees the undivided loss.
sharp = SharpBackward(
    model,
    ga_sam(budget=0.1, cap=0.01),
    backward=lambda loss: (loss / len(micro_batches)).backward(),
    accumulation=len(micro_batches),
)
for x, y in micro_batches:
    sharp(lambda: cross_entropy(model(x), y))
base.step()
base.zero_grad()

# One walk for all micro-batches: the closure evaluates all of them.
optimizer = SharpnessAware(base, ga_sam(budget=0.1, cap=0.01), model=model)


def closure():
    total = torch.zeros(())
    for x, y in micro_batches:
        loss = cross_entropy(model(x), y) / len(micro_batches)
        loss.backward()
        total += loss.detach()
    return total


optimizer.step(closure)

assert sharp.last.sharpness > 0
assert optimizer.last.sharpness > 0
