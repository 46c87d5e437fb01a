"""Fifty eigenvalues of the curvature against PyHessian's ten, on the same trained net, data and type."""

from __future__ import annotations

import importlib.util
import statistics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.measure import interleaved, ratio
from gasam.analysis.likelihoods import CrossEntropy
from gasam.analysis.objective import Objective
from gasam.analysis.spectrum import Eigenvalues, top_eigenvalues

OURS, THEIRS = 50, 10
OBJECTIVE = Objective(lambda model, batch: model(batch[0]), CrossEntropy())


def problem(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Ten classes of noisy patterns, learnt in a few steps; as many rows as PyHessian's own example takes."""
    torch.manual_seed(0)
    rows, patterns = 200, torch.randn(10, 1, 16, 16)
    y = torch.randint(10, (rows,))
    x = patterns[y] + 2 * torch.randn(rows, 1, 16, 16)
    model = NETS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(60):
        chosen = torch.randint(rows, (100,))
        optimizer.zero_grad()
        cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    return model.eval(), x, y


def layered() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(256, 800), nn.Tanh(), nn.Linear(800, 1000), nn.Tanh(), nn.Linear(1000, 10)
    )


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


NETS = {"fully connected": layered, "convolutional": convolutional}


def compare(name: str, rounds: int) -> dict[str, Any]:
    from pyhessian import hessian

    model, x, y = problem(name)
    found: dict[str, Any] = {}

    def peer() -> None:
        found["peer"] = hessian(model, nn.CrossEntropyLoss(), data=(x, y), cuda=False).eigenvalues(top_n=THEIRS)[0]
        model.zero_grad()  # its graph hangs on the gradients and would stay

    def ours(matrix: Any) -> Any:
        def run() -> None:
            found[matrix] = top_eigenvalues(model, OBJECTIVE, [(x, y)], OURS, matrix)

        return run

    seconds = interleaved(
        {"peer": peer, "hessian": ours("hessian"), "empirical_fisher": ours("empirical_fisher")}, rounds, warm_up=0
    )
    exact = top_eigenvalues(model, OBJECTIVE, [(x, y)], OURS, "hessian", tolerance=1e-6).values
    mine: Eigenvalues = found["hessian"]
    theirs = torch.tensor(found["peer"], dtype=torch.float64)
    return {
        "weights": mine.weights,
        "examples": mine.examples,
        "PyHessian, s": statistics.median(seconds["peer"]),
        "hessian, s": statistics.median(seconds["hessian"]),
        "empirical_fisher, s": statistics.median(seconds["empirical_fisher"]),
        "hessian: times faster": 1 / ratio(seconds, "hessian", "peer"),
        "empirical_fisher: times faster": 1 / ratio(seconds, "empirical_fisher", "peer"),
        "hessian: products": mine.work,
        "hessian: error": worst(mine.values, exact),
        "PyHessian: error": worst(theirs, exact[:THEIRS]),
    }


def worst(values: Tensor, exact: Tensor) -> float:
    """The largest error of a value, relative to the value itself."""
    return float(((values - exact).abs() / exact.abs()).max())


def run(rounds: int) -> dict[str, Any]:
    if importlib.util.find_spec("pyhessian") is None:
        raise SystemExit("the spectrum's peer is not installed: pip install --no-deps PyHessian==0.1")
    return {name: compare(name, rounds) for name in NETS}
