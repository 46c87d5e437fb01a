"""A language model with a hidden state: every pass of a step starts from the same state."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward

torch.manual_seed(0)
VOCABULARY, WIDTH, LENGTH, TEXTS = 20, 32, 10, 4
text = torch.randint(VOCABULARY, (1, TEXTS)) + torch.arange(101).unsqueeze(1)  # each text counts upwards
text = text % VOCABULARY


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.words.weight, std=0.1)  # torch's standard deviation of 1 is large for embeddings
        self.layers = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.1)
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words, state):
        hidden, state = self.layers(self.words(words), state)
        return self.out(hidden), state


model = LanguageModel()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
sharp = SharpBackward(model)
zeros = torch.zeros(2, TEXTS, WIDTH)


def loss_and_state(words, targets, state):
    """Take the state before the batch and return the new one. Nothing is stored, so every pass starts equally."""
    logits, new_state = model(words, state)
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
    return loss, tuple(part.detach() for part in new_state)


losses = []
for epoch in range(12):
    state = (zeros, zeros)
    for start in range(0, 100, LENGTH):
        words, targets = text[start : start + LENGTH], text[start + 1 : start + LENGTH + 1]
        optimizer.zero_grad()
        loss, state = sharp(lambda: loss_and_state(words, targets, state))  # the next batch gets the clean pass's state
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    losses.append(loss.item())
    print(f"epoch {epoch}: loss {losses[-1]:.3f}")

assert losses[-1] < 0.5 * losses[0]
