"""A range test: measure what walks of twelve sizes do to your model, without training it."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, ga_sam, range_test

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Dropout(0.2), nn.Linear(50, 3))
batches = [(torch.randn(64, 20), torch.randint(3, (64,))) for _ in range(2)]
sharp = SharpBackward(model, ga_sam(budget=0.1, cap=1.0))

found = range_test(sharp, lambda batch: cross_entropy(model(batch[0]), batch[1]), batches)
print(found)

assert len(found.rows) == 12
