"""A plain loop: one object, and one call in place of loss.backward()."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, ga_sam

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
batches = [(torch.randn(32, 20), torch.randint(3, (32,))) for _ in range(5)]

optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
sharp = SharpBackward(model.parameters(), ga_sam(1e-4))

for x, y in batches:
    optimizer.zero_grad()
    loss = sharp(lambda: cross_entropy(model(x), y))  # instead of loss.backward()
    optimizer.step()

print(sharp.last)  # climbed; losses 1.1, 1.1; |a| 0, 0.01; sharpness 0.001

assert sharp.last.sharpness > 0
