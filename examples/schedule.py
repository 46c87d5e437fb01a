"""Schedules by the progress of the loss, by the step, or by your own function; and how to resume one."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Schedule, SharpBackward, ga_sam

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
x = torch.randn(256, 20)
y = x[:, :3].argmax(1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

# Full strength when the loss has fallen by 20 percent.
by_progress = SharpBackward(model, ga_sam(budget=0.1, cap=0.01), schedule=Schedule(progress=0.2))
# No walk in the first tenth of training, then a ramp over the next tenth.
by_steps = SharpBackward(model, ga_sam(budget=0.1, cap=0.01), schedule=Schedule(start=0.1, warmup=0.1), total_steps=200)
# A walk on every fourth step, with weight 2: 1.25 passes per step on average instead of 2.
by_fours = SharpBackward(model, ga_sam(budget=0.1, cap=0.01), schedule=Schedule(progress=0.2, every=4, weight=2))
# A function from the step to a strength in [0, 1].
by_hand = SharpBackward(model, ga_sam(budget=0.1, cap=0.01), schedule=lambda step: float(step % 2 == 0))

strengths = []
for _ in range(200):
    optimizer.zero_grad()
    by_progress(lambda: cross_entropy(model(x), y))
    optimizer.step()
    strengths.append(by_progress.last.strength)

checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sharp": by_progress.state_dict()}
resumed = SharpBackward(model, ga_sam(budget=0.1, cap=0.01), schedule=Schedule(progress=0.2))
resumed.load_state_dict(checkpoint["sharp"])

assert strengths[0] == 0
assert strengths[-1] == 1
assert resumed.clock.strength() == 1
assert by_steps.clock.strength() == 0
assert by_hand.clock.strength() == 1
assert by_fours.clock.weight == 2
