"""Analyses of a trained model: attack, quantisation, robustness, sharpness, eigenvalues and loss landscape."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, ga_sam
from gasam.analysis import (
    CrossEntropy,
    GradientNorms,
    Objective,
    attack,
    half_radius,
    line,
    plain,
    plane,
    quantised,
    robustness,
    sharpness,
    spectral_density,
    top_eigenvalues,
)

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
train, test = (x[:400], y[:400]), (x[1000:1400], y[1000:1400])


def trained(perturbation):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    sharp = SharpBackward(model, perturbation)
    norms = GradientNorms(model)
    for step in range(150):
        optimizer.zero_grad()
        sharp(lambda: cross_entropy(model(train[0]), train[1]))
        norms.record(1 + step // 50)
        optimizer.step()
    return model, norms


plain_model, norms = trained(ga_sam(0.0))
model, _ = trained(ga_sam(budget=0.1, cap=0.01))
print([round(row.whole, 3) for row in norms.by_epoch()])  # mean gradient norm of each epoch

# An analysis needs a model, an objective that gives a loss for each example, and batches.
objective = Objective(lambda model, batch: model(batch[0]), CrossEntropy())
batches = [(train[0][i : i + 100], train[1][i : i + 100]) for i in range(0, 400, 100)]


def accuracy(model):
    return 100 * (model(test[0]).argmax(1) == test[1]).double().mean().item()


found = attack(model, objective, batches, plain(0.5, norm=2.0), restarts=2)
with found.applied(model):
    print(f"loss {found.clean_loss:.3f} -> {found.loss:.3f}, accuracy {accuracy(model):.1f}%")
with quantised(model, bits=4):
    print(f"4 bits: accuracy {accuracy(model):.1f}%")

curve = robustness(model, objective, batches, accuracy, radii=None, norm=2.0, higher_is_better=True, floor=10.0)
print(f"half of the accuracy above chance is lost at radius {half_radius(curve).radius:.2f}")

rises = sharpness(model, objective, batches, plain(0.1, norm=2.0))
print(f"worst rise {rises.worst.mean:.3f} {rises.worst.interval}, average {rises.average.mean:.4f}")

top = top_eigenvalues(model, objective, batches, k=50, matrix="empirical_fisher")  # or "fisher", "hessian"
density = spectral_density(model, objective, batches, matrix="hessian", probes=2, steps=30)
print(f"largest eigenvalue {top.values[0]:.2f}, trace of the Hessian {density.trace:.1f}")

between = line(model, objective, batches, alphas=(-0.5, 0, 0.5, 1, 1.5), other=plain_model.state_dict())
around = plane(model, objective, batches, radius=1.0, points=5)
print([round(loss, 3) for loss in between], around.losses[2][2])

assert found.loss > found.clean_loss
assert curve.points[-1].metric < curve.clean_metric
assert rises.worst.mean > rises.average.mean
assert bool(top.converged.all())
assert around.losses[2][2] == between[1] == found.clean_loss
