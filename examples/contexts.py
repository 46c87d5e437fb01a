"""All passes of a step share their dropout masks, and BatchNorm counts only the clean pass."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, ga_sam, same_noise

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Dropout(0.5), nn.Linear(50, 3))
x, y = torch.randn(32, 20), torch.randint(3, (32,))

sharp = SharpBackward(model, ga_sam(budget=0.1, cap=0.01, steps=2), around=same_noise())
sharp(lambda: cross_entropy(model(x), y))

assert model[1].num_batches_tracked == 1  # three passes ran, and one was counted
