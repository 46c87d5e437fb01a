"""When to walk, and how far, is the loop's decision: a late start, every second step, a growing radius."""

from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, ga_sam

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
batches = [(torch.randn(32, 20), torch.randint(3, (32,))) for _ in range(4)]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sharp = SharpBackward(model.parameters(), ga_sam(1e-3))
passes = 0

for epoch in range(6):
    sharp.perturbation = replace(sharp.perturbation, epsilon=1e-3 * min(1, epoch / 4))
    for step, (x, y) in enumerate(batches):
        sharp.enabled = epoch >= 2 and step % 2 == 0  # off is one plain pass
        optimizer.zero_grad()
        sharp(lambda: cross_entropy(model(x), y))
        optimizer.step()
        passes += len(sharp.last.losses)

assert passes == 6 * 4 + 4 * 2
