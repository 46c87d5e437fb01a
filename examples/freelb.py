"""FreeLB: the same call perturbs word embeddings instead of weights."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import FreeLB

torch.manual_seed(0)
words = nn.Embedding(100, 16, padding_idx=0)
nn.init.normal_(words.weight[1:], std=0.1)  # torch's standard deviation of 1 is large for embeddings
out = nn.Linear(16, 2)
tokens, labels = torch.randint(1, 100, (8, 12)), torch.randint(2, (8,))
tokens[:, 9:] = 0  # padding gets no noise
optimizer = torch.optim.Adam([*words.parameters(), *out.parameters()])

noisy = FreeLB(words, epsilon=0.005, steps=3)  # the GA-SAM paper's setting for De-En, in the infinity norm
loss = noisy(lambda: cross_entropy(out(words(tokens).mean(1)), labels))
optimizer.step()

assert noisy.last.sharpness > 0
