"""A plain training loop in which one call replaces `loss.backward()`."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, recommended

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
x = torch.randn(2000, 20)
y = x[:, :3].argmax(1)

optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
sharp = SharpBackward(model, recommended(passes=2))  # or 1.25, 1.1, 1

for _ in range(5):
    for i in torch.randperm(2000).split(32):
        optimizer.zero_grad()
        # Instead of loss.backward():
        loss = sharp(lambda: cross_entropy(model(x[i]), y[i]))
        optimizer.step()

print(sharp.last)  # fine; step 300, loss 0.296, sharpness 0.0323, ...

assert sharp.last.climbed
assert sharp.last.sharpness > 0
