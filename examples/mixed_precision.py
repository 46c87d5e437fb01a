"""Autocast with a loss scaler. The walk does not depend on the scale, and the scaler skips steps that overflow."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, ga_sam

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
batches = [(torch.randn(32, 20), torch.randint(3, (32,))) for _ in range(5)]
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

scaler = torch.amp.GradScaler("cpu")
sharp = SharpBackward(model, ga_sam(budget=0.1, cap=0.01), backward=lambda loss: scaler.scale(loss).backward())

for x, y in batches:
    with torch.autocast("cpu", torch.bfloat16):
        sharp(lambda: cross_entropy(model(x), y))
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()

assert sharp.last.climbed
