"""Texts of task files: a straight line, and what makes its training slow until a file exists."""

LINE = """
import torch
from torch import nn

higher_is_better = False
settings = {"epochs": 2, "batch": 4, "learning_rate": 0.1}

def data():
    x = torch.linspace(-1, 1, 24)[:, None]
    return [(x[i::3], 2 * x[i::3] + 1) for i in range(3)]

def model(width=1):
    return nn.Linear(1, width)

def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()

def metric(model, batch):
    return (model(batch[0]) - batch[1]).abs().flatten()
"""

SLOWLY = """
import time
from pathlib import Path

settings = {{"epochs": 60, "batch": 4, "learning_rate": 0.1}}
quick = loss

def loss(model, batch):
    time.sleep(0 if Path({released!r}).exists() else 0.25)
    return quick(model, batch)
"""
