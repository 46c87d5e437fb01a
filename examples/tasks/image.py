"""A task file: an image classifier. Compare methods on it with `gasam compare examples/tasks/image.py`."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

settings = {"epochs": 20, "batch": 64}
metric_name, metric_unit, higher_is_better = "accuracy", "%", True


def data():
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 16
    train, valid, test = slice(0, 1000), slice(1000, 1300), slice(1300, None)
    return [(images[part], labels[part]) for part in (train, valid, test)]


def model(width=16):
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36 * width, 10))


def loss(model, batch):
    images, labels = batch
    return cross_entropy(model(images), labels)


def metric(model, batch):
    images, labels = batch
    return 100.0 * (model(images).argmax(dim=1) == labels)
