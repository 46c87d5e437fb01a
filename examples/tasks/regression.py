"""A task file: a regression with an optimizer of its own, a metric that is not a mean, and predictions."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.nn.functional import mse_loss

settings = {"epochs": 60, "batch": 32, "learning_rate": 0.01, "schedule": "cosine"}
metric_name, higher_is_better = "root mean squared error", False


def data():
    inputs, targets = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    inputs, targets = 20 * inputs[order], (targets[order, None] - 150) / 75
    return [(inputs[part], targets[part]) for part in (slice(0, 300), slice(300, 370), slice(370, None))]


def model(width=64, dropout=0.1):
    return nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, 1))


def loss(model, batch):
    inputs, targets = batch
    return mse_loss(model(inputs), targets)


def metric(model, batch):
    """The squared error of each example; `summary` turns those of a whole split into one number."""
    inputs, targets = batch
    return (model(inputs) - targets).square().flatten()


def summary(values):
    return values.mean().sqrt()


def losses(model, batch):
    """The loss of each example: optional, it makes analyses faster."""
    inputs, targets = batch
    return (model(inputs) - targets).square().mean(dim=1)


def optimizer(model, learning_rate):
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)


def predict(model, rows):
    """The progression of the disease for rows of ten numbers: optional, `gasam predict` calls it."""
    outputs = model(20 * torch.tensor(rows, dtype=torch.float32))
    return [{"progression": round(150 + 75 * float(output), 1)} for output in outputs]
