"""What the tests of the analyses share: a small problem, dense curvature matrices by torch.func, and small nets."""

import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from gasam.analysis import CrossEntropy, Objective
from problems import batch, network

OBJECTIVE = Objective(lambda model, batch: model(batch[0]), CrossEntropy())


def uneven(dtype=torch.float64):
    """Twelve examples in batches of five and seven."""
    x, y = batch(dtype, rows=12)
    return [(x[:5], y[:5]), (x[5:], y[5:])]


def bits(model):
    return [p.detach().clone() for p in model.parameters()]


def row_losses(z, y):
    """Squares where the targets are as the outputs, else cross-entropy: the mean over each row."""
    if y.shape == z.shape:
        return (z - y).square().flatten(1).mean(1)
    return cross_entropy(z.flatten(0, -2), y.flatten(), reduction="none").view(len(z), -1).mean(1)


def curvature(model, x, y, matrix):
    """The matrix over the weights that need a gradient, of the mean over the rows."""
    named = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    sizes = [p.numel() for p in named.values()]

    def outputs(w):
        parts = [part.view(p.shape) for part, p in zip(w.split(sizes), named.values(), strict=True)]
        return functional_call(model, dict(zip(named, parts, strict=True)), (x,))

    w = torch.cat([p.reshape(-1) for p in named.values()])
    mode = model.training
    model.eval()
    with sdpa_kernel(SDPBackend.MATH):
        if matrix == "empirical_fisher":
            slopes = jacrev(lambda w: row_losses(outputs(w), y))(w)
            found = slopes.T @ slopes / len(x)
        elif matrix == "fisher":
            slopes, z = jacrev(lambda w: outputs(w).flatten())(w), outputs(w)
            bend = jacrev(jacrev(lambda flat: row_losses(flat.view(z.shape), y).sum()))(z.flatten())
            found = slopes.T @ bend @ slopes / len(x)
        else:
            found = jacrev(jacrev(lambda w: row_losses(outputs(w), y).mean()))(w)
            if (found - found.T).abs().max() > 1e-9:  # torch.func is wrong for nn.LayerNorm, in torch 2.13
                found = torch.autograd.functional.hessian(lambda w: row_losses(outputs(w), y).mean(), w)
    model.train(mode)
    return found


def dense_values(model, x, y, matrix):
    return torch.linalg.eigvalsh(curvature(model, x, y, matrix)).flip(0)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.inner = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens):
        return self.out(self.inner(self.words(tokens)).tanh())


class Idle(nn.Module):
    """A part that is not used, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.net = network()
        self.idle = nn.Linear(2, 2).double()
        self.net[0].bias.requires_grad_(False)

    def forward(self, x):
        return self.net(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(6, 2, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        x = x[:, None] * torch.linspace(-1, 1, 3, dtype=x.dtype)[:, None]
        x = x + self.layer(x, x, x, need_weights=False)[0]
        return self.out(scaled_dot_product_attention(x, x, x.sin())).mean(1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 3, 2, batch_first=True)
        self.out = nn.Linear(3, 3)

    def forward(self, x):
        return self.out(self.lstm(x.view(len(x), 3, 2))[0][:, -1])


def convolutional():
    return nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 12, 2), nn.BatchNorm1d(12), nn.Flatten(), nn.Linear(24, 3)
    )


def wide():
    return nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 7), nn.Dropout(0.5), nn.Linear(7, 3))


NETS = {"small": network, "idle": Idle, "attention": Attention, "lstm": Recurrent, "cnn": convolutional, "wide": wide}
