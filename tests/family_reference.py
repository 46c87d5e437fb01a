"""The methods of the family in NumPy on one flat float64 vector, written from their papers, and runs by them.

Only the ball of a norm p and the scales T come from `gasam.reference`, which imports nothing of the fast code.
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import friendly_sam, gsam, look_sam, reference, sam_on, wsam
from problems import batch, function_of, shapes_of
from tolerances import flat


class Reference:
    """Steps of one method: `gradient(w, f)` returns the gradient for the optimizer, where f(w) = (loss, gradient).

    `moving` holds a factor of T for each weight. `every` is LookSAM's k.
    """

    def __init__(
        self, method, shapes, *, p=2.0, epsilon=None, budget=None, cap=None, scale="one", granularity="model",
        moving=1.0, every=5, **options,
    ) -> None:  # fmt: skip
        self.method, self.options, self.every = method, options, every
        self.groups = reference.groups_of(shapes, granularity)
        self.tensors = reference.capped_groups_of(shapes, granularity)
        self.p, self.epsilon, self.budget, self.cap, self.scale, self.moving = p, epsilon, budget, cap, scale, moving
        self.t = 0
        self.mean = 0.0  # of Friendly-SAM
        self.kept = None  # of LookSAM
        self.rise = self.offset = 0.0

    def ascended(self, w, g, climbed):
        """w + a for one ascent step along `climbed`, in the ball of T(w, g). Weights that do not move do not count."""
        here = np.broadcast_to(self.moving, w.shape) > 0
        own, climbed = w[here], climbed[here]
        scale = reference.scales_of(self.scale, own, g[here], self.groups[here])
        scale = scale * np.broadcast_to(self.moving, w.shape)[here]
        epsilon = self.epsilon
        if epsilon is None:
            epsilon = reference.radius(self.budget, scale, climbed, self.p)
        step = reference.project(reference.update(climbed, scale, self.p, 1.5 * epsilon), scale, self.p, epsilon)
        if self.cap is not None:
            step = reference.capped(step, own, self.tensors[here], self.cap)
        a = np.zeros_like(w)
        a[here] = step
        self.offset, self.rise = a, g @ a
        return w + a

    def gradient(self, w, f):
        found = getattr(self, self.method)(w, f, **self.options)
        self.t += 1
        return found

    def sam(self, w, f):
        g = f(w)[1]
        return f(self.ascended(w, g, g))[1]

    sam_on = sam

    def gsam(self, w, f, alpha):
        """Algorithm 1 of Zhuang et al.: g^p - alpha g_perpendicular, g = g_parallel + g_perpendicular."""
        g = f(w)[1]
        perturbed = f(self.ascended(w, g, g))[1]
        unit = perturbed / np.linalg.norm(perturbed)
        parallel = (g @ unit) * unit
        return perturbed - alpha * (g - parallel)

    def wsam(self, w, f, gamma):
        """(1 - 2 gamma) / (1 - gamma) L(w) + gamma / (1 - gamma) L_SAM(w), the paper's second form."""
        g = f(w)[1]
        return (1 - 2 * gamma) / (1 - gamma) * g + gamma / (1 - gamma) * f(self.ascended(w, g, g))[1]

    def friendly_sam(self, w, f, sigma, decay):
        """Algorithm 1 of Li et al., with m_{-1} = 0."""
        g = f(w)[1]
        self.mean = decay * self.mean + (1 - decay) * g
        return f(self.ascended(w, g, g - sigma * self.mean))[1]

    def look_sam(self, w, f, alpha):
        """Algorithm 1 of Liu et al.: g_v = g_s - |g_s| cos(theta) g / |g|."""
        g = f(w)[1]
        if self.t % self.every:
            return g + alpha * np.linalg.norm(g) / np.linalg.norm(self.kept) * self.kept
        sharp = f(self.ascended(w, g, g))[1]
        cosine = g @ sharp / (np.linalg.norm(g) * np.linalg.norm(sharp))
        self.kept = sharp - np.linalg.norm(sharp) * cosine * g / np.linalg.norm(g)
        return sharp


OPTIONS = {
    "gsam": {"alpha": 0.3},
    "wsam": {"gamma": 0.8},
    "friendly_sam": {"sigma": 0.9, "decay": 0.7},
    "look_sam": {"alpha": 0.6},
    "sam_on": {},
}
PRESETS = {"gsam": gsam, "wsam": wsam, "friendly_sam": friendly_sam, "look_sam": look_sam, "sam_on": sam_on}
RATE = 0.1


def model_of(dtype=torch.float64):
    """A network with a normalisation layer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def moving(method, model):
    """The factor of T of each weight: SAM-ON moves the second module only."""
    if method != "sam_on":
        return 1.0
    return np.concatenate([np.full(p.numel(), float(name[0] == "1")) for name, p in model.named_parameters()])


def reference_of(method, model, **options):
    return Reference(method, shapes_of(model), moving=moving(method, model), **(OPTIONS[method] | options))


def expected_run(method, steps=20, data=batch, **options):
    """The weights after plain gradient descent in NumPy, and the reference with its state."""
    model = model_of()
    reference, w = reference_of(method, model, **options), flat(model.parameters()).numpy()
    for step in range(steps):
        x, y = data(seed=step)
        w = w - RATE * reference.gradient(w, function_of(model, lambda m, x=x, y=y: cross_entropy(m(x), y)))
    return w, reference
