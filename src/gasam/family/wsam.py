"""WSAM: the clean loss plus a weighted sharpness."""

from dataclasses import dataclass
from typing import Any

from gasam.family import Kept, Method, Tensors, add, scaled
from gasam.perturbation import Perturbation, check_at_least_zero, sam


@dataclass(frozen=True)
class WSAM(Method):
    gamma: float

    def fold(self, gradients: list[Any], kept: Kept, strength: float) -> Tensors:
        """g_0 + v (g_1 - g_0)"""
        g_0, *_, g_1 = gradients
        v = self.gamma / (1 - self.gamma)
        return add(scaled(g_1, v), g_0, 1 - v)


def wsam(epsilon: float | None = None, norm: float = 2.0, *, gamma: float = 0.9, **options: Any) -> Perturbation:
    """WSAM: the clean loss plus the sharpness L(w + a) - L(w), with the weight v = gamma / (1 - gamma).

    Yue et al., "Sharpness-Aware Minimization Revisited: Weighted Sharpness as a Regularization Term", KDD 2023, section
    3: the gradient is g_0 + v (g_1 - g_0), where g_1 is that of the last pass. The paper's decoupled form is the same
    for SGD without momentum. A large gamma multiplies the noise between the passes: in a model with dropout share the
    masks (`same_noise`) or lower gamma. Can't be used with `per_worker`.

    Args:
        gamma: Weight of the sharpness: 0 is plain training, 0.5 is SAM. Below 1; the paper recommends 0.8 to 0.95.
    """
    check_at_least_zero("gamma", gamma, below=1)
    return sam(epsilon, norm, method=WSAM(gamma), **options)
