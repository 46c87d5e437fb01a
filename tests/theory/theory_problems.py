"""Problems whose p and p* are known exactly, and a Newton solver in NumPy that knows nothing of gasam."""

import functools

import numpy as np
import torch
from torch import nn

from gasam.analysis.objective import CrossEntropy, Objective
from gasam.lab.theory import Problem, settle, weighted

RIDGE = 0.1
NETWORK_RIDGE = 0.02
CLASSIFIER = Objective(lambda model, batch: model(batch[0]), CrossEntropy())


class Points:
    """Finitely many points with probabilities p, labels +-1 of a noisy rule, and a direction r of shift, E_p[r] = 0."""

    def __init__(self, count: int = 24, features: int = 4, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.x = random.normal(size=(count, features))
        self.y = np.where(self.x @ random.normal(size=features) + random.normal(size=count) > 0, 1.0, -1.0)
        self.p = random.dirichlet(np.full(count, 3.0))
        r = random.normal(size=count)
        r -= self.p @ r
        self.r = r / np.abs(r).max()
        half = count // 2
        x, y = torch.tensor(self.x), torch.tensor(self.y)
        self.batches = [(x[:half], y[:half]), (x[half:], y[half:])]

    def shifted(self, size: float) -> np.ndarray:
        return self.p * (1 + size * self.r)

    def derivatives(self, p: np.ndarray, w: np.ndarray, ridge: float = RIDGE) -> tuple[np.ndarray, np.ndarray]:
        """Of log(1 + exp(-y x.w)) + ridge/2 |w|^2: the gradient of each point, and the Hessian of the mean over p."""
        s = 1 / (1 + np.exp(self.y * (self.x @ w)))
        hessian = (self.x.T * (p * s * (1 - s))) @ self.x + ridge * np.eye(len(w))
        return -(s * self.y)[:, None] * self.x + ridge * w, hessian

    def newton(self, p: np.ndarray) -> np.ndarray:
        """The minimum of the mean over p, full steps to rounding."""
        w = np.zeros(self.x.shape[1])
        for _ in range(30):
            gradients, hessian = self.derivatives(p, w)
            w = w - np.linalg.solve(hessian, p @ gradients)
        return w


def logistic(features: int = 4) -> nn.Linear:
    model = nn.Linear(features, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    return model


LOGISTIC = Objective(
    lambda model, batch: model(batch[0]).squeeze(1), lambda z, batch: nn.functional.softplus(-batch[1] * z)
)


POINTS = Points()


def logistic_problem(size=None, *, points=POINTS, **options) -> Problem:
    """The logistic regression at its minimum under p; p* is shifted by `size` along r, or p itself."""
    p = weighted(points.batches, points.p)
    model = logistic()
    settle(Problem(model, LOGISTIC, p, ridge=RIDGE, tolerance=1e-12))
    shifted = p if size is None else weighted(points.batches, points.shifted(size))
    return Problem(model, LOGISTIC, p, shifted, RIDGE, **options)


class Vector(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))


def quadratic(matrix) -> Objective:
    """l(w; z) = w.A w / 2 - z.w: the minimum under p is A^-1 E_p[z], and H is A everywhere."""
    return Objective(lambda model, z: model.w, lambda w, z: w @ matrix @ w / 2 - z @ w)


def tanh_network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)
    ).double()


@functools.cache
def _settled_state():
    model = tanh_network()
    settle(Problem(model, CLASSIFIER, clouds(), ridge=NETWORK_RIDGE))
    return model.state_dict()


def settled_network() -> nn.Sequential:
    """At its minimum on `clouds()` with `NETWORK_RIDGE`, found once."""
    model = tanh_network()
    model.load_state_dict(_settled_state())
    return model


def clouds(rows: int = 60, features: int = 8, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (rows,), generator=generator)
    centres = torch.randn(3, features, generator=generator, dtype=torch.float64)
    x = centres[y] + 1.5 * torch.randn(rows, features, generator=generator, dtype=torch.float64)
    return [(x[: rows // 2], y[: rows // 2]), (x[rows // 2 :], y[rows // 2 :])]


def blocks(scales):
    """l = sum over blocks of c_i |w_i - z_i|^2 / 2: gradients c_i (w - z), so delta_i is the same shift of the mean."""
    model = nn.ParameterDict({f"block{i}": torch.zeros(4, dtype=torch.float64) for i in range(len(scales))})

    def losses(values, z):
        return sum(
            c * (value - z[:, i]).square().sum(1) / 2 for i, (c, value) in enumerate(zip(scales, values, strict=True))
        )

    return model, Objective(lambda model, z: [model[f"block{i}"] for i in range(len(scales))], losses)
