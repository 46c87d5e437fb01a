"""Fifty eigenvalues of the curvature against PyHessian's ten, on the same trained net, data and type."""

from __future__ import annotations

import copy
import importlib.util
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.functional import cross_entropy

from benchmarks.measure import interleaved, ratio
from gasam.analysis.objective import CrossEntropy, Objective
from gasam.analysis.products import Matrix
from gasam.analysis.spectrum import top_eigenvalues

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
    model, x, y = problem(name)
    found: dict[str, list[Tensor]] = {}

    def peer(way: str) -> None:
        from pyhessian import hessian

        looked_at = hessian(model, nn.CrossEntropyLoss(), data=(x, y), cuda=False)
        values = looked_at.eigenvalues(top_n=THEIRS)[0]
        found.setdefault(way, []).append(torch.tensor(values, dtype=torch.float64))
        model.zero_grad()  # its graph hangs on the gradients and would stay

    def ours(way: str, k: int, matrix: Matrix, **options: Any) -> None:
        values = top_eigenvalues(model, OBJECTIVE, [(x, y)], k, matrix, **options).values
        found.setdefault(way, []).append(values)

    ways: dict[str, Callable[[str], None]] = {
        "PyHessian": peer,
        "hessian, 10 at 1e-3": partial(ours, k=THEIRS, matrix="hessian", tolerance=1e-3),
        "hessian, 50": partial(ours, k=OURS, matrix="hessian"),
        "empirical_fisher, 50": partial(ours, k=OURS, matrix="empirical_fisher"),
    }
    seconds = interleaved({way: partial(start, way) for way, start in ways.items()}, rounds, warm_up=0)
    exact = reference(model, x, y)
    weights = sum(weight.numel() for weight in model.parameters())
    return {
        "weights": weights,
        "examples": len(x),
        "ways": {way: summary(way, values, seconds, exact) for way, values in found.items()},
    }


def summary(
    way: str, found: list[Tensor], seconds: dict[str, list[float]], exact: dict[str, Tensor]
) -> dict[str, float]:
    """Medians over the rounds."""
    expected = exact["empirical_fisher" if "fisher" in way else "hessian"]
    own, share = (statistics.median(errors) for errors in zip(*(worst(v, expected) for v in found), strict=True))
    return {
        "values": len(found[0]),
        "s": statistics.median(seconds[way]),
        "error": own,
        "error, of the largest": share,
        "times faster": 1 / ratio(seconds, way, "PyHessian"),
    }


def reference(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """In double precision and by other means: ARPACK over products made here, and every example's gradient."""
    exact, x = copy.deepcopy(model).double(), x.double()
    weights = list(exact.parameters())
    slope = flat(grad(cross_entropy(exact(x), y), weights, create_graph=True))

    def product(vector: Any) -> Any:
        return flat(grad(slope, weights, torch.from_numpy(vector).reshape(-1), retain_graph=True)).numpy()

    whole = LinearOperator((len(slope), len(slope)), matvec=product, dtype=slope.detach().numpy().dtype)
    values = eigsh(whole, OURS, which="LA", ncv=3 * OURS, tol=1e-7, return_eigenvectors=False)
    lines = torch.empty(len(x), len(slope), dtype=torch.float64)
    for line, one, label in zip(lines, x, y, strict=True):
        line.copy_(flat(grad(cross_entropy(exact(one[None]), label[None]), weights)))
    return {
        "hessian": torch.from_numpy(values).sort(descending=True).values,
        "empirical_fisher": torch.linalg.eigvalsh(lines @ lines.T / len(x)).flip(0),
    }


def flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def worst(values: Tensor, exact: Tensor) -> tuple[float, float]:
    """The largest error of a value, relative to the value itself and to the largest of all."""
    errors = (values - exact[: len(values)]).abs()
    return float((errors / exact[: len(values)].abs()).max()), float(errors.max() / exact[0])


def run(rounds: int) -> dict[str, Any]:
    if importlib.util.find_spec("pyhessian") is None:
        raise ModuleNotFoundError("the spectrum's peer is not installed: pip install --no-deps PyHessian==0.1")
    return {name: compare(name, rounds) for name in NETS}
