"""Embeddings with sparse gradients: only the rows of the batch are saved, moved and restored."""

import torch
from torch import nn

from gasam import SharpBackward, ga_sam

torch.manual_seed(0)
words = nn.Embedding(1_000_000, 8, sparse=True)
nn.init.normal_(words.weight, std=0.1)  # torch's standard deviation of 1 is large for embeddings
out = nn.Linear(8, 1)
for_words, for_rest = torch.optim.SparseAdam(words.parameters()), torch.optim.Adam(out.parameters())
sharp = SharpBackward([*words.parameters(), *out.parameters()], ga_sam(budget=0.1, cap=0.01))

tokens = torch.randint(1_000_000, (4, 6))
sharp(lambda: out(words(tokens)).square().mean())
for_words.step()
for_rest.step()

assert words.weight.grad.is_sparse
