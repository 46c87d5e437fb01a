"""The closure form: a torch optimizer around any other, with clipping and a learning rate scheduler."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from gasam import SharpnessAware

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
x, y = torch.randn(32, 20), torch.randint(3, (32,))

optimizer = SharpnessAware(
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    model=model,
    before_step=lambda: clip_grad_norm_(model.parameters(), 0.25),  # clips the folded gradient
)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)


def closure():
    loss = cross_entropy(model(x), y)
    loss.backward()
    return loss


losses = []
for _ in range(20):
    losses.append(optimizer.step(closure).item())  # calls the closure K+1 times and returns the clean loss
    scheduler.step()

assert losses[-1] < losses[0]
