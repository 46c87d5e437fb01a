"""What a walk looks like: the record of its options, checked once, and the presets of the paper."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from gasam.groups import GRANULARITIES, Granularity
from gasam.scales import SCALES, Scale, Weight

Risk = Literal["mean", "final"]


@dataclass(frozen=True, kw_only=True)
class Perturbation:
    """A walk of `steps` steps in the ball |T^-1 a|_norm <= epsilon, and the risk that is minimised over it.

    Args:
        epsilon: Radius of the ball, in units of T^-1 a. 0 means plain training.
        norm: p of the ball's norm, > 1 or math.inf.
        scale: T: a name of `gasam.SCALES`, or a function of a `Group` with values >= 0.
        granularity: Which weights share a T: "element", "filter", "layer" (a parameter tensor), "module" or "model".
        steps: K, the number of ascent steps. A training step takes K+1 passes.
        step_size: eta, on the same scale as epsilon; None means 1.5 epsilon / steps.
        risk: "mean" of the losses at all K+1 points, or the "final" one.
        floor: The smallest root-mean-square gradient that a scale divides by.
    """

    epsilon: float
    norm: float = math.inf
    scale: str | Scale = "gradient_strength"
    granularity: Granularity = "layer"
    steps: int = 1
    step_size: float | None = None
    risk: Risk = "mean"
    floor: float = 1e-8

    def __post_init__(self) -> None:
        _check_at_least_zero("epsilon", self.epsilon)
        if not _is_number(self.norm) or not self.norm > 1:
            raise ValueError(f"norm must be a number > 1 or math.inf, got {self.norm!r}")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"steps must be a whole number >= 1, got {self.steps!r}")
        if self.step_size is not None and not (_is_finite(self.step_size) and self.step_size > 0):
            raise ValueError(
                f"step_size must be a finite number > 0, or None for 1.5 epsilon / steps, got {self.step_size!r}"
            )
        _check_at_least_zero("floor", self.floor)
        if not callable(self.scale):
            _check_choice("scale", self.scale, SCALES, " or a function of a Group")
        _check_choice("granularity", self.granularity, GRANULARITIES)
        _check_choice("risk", self.risk, get_args(Risk))
        if self.granularity in ("module", "model") and getattr(self.scale, "only_named", None) is not None:
            raise ValueError(f"only_named needs groups of one tensor, got granularity {self.granularity!r}")

    @property
    def scale_function(self) -> Scale:
        return self.scale if callable(self.scale) else SCALES[self.scale]

    @property
    def stride(self) -> float:
        """The step size divided by epsilon: the walk is done in a ball of radius one."""
        return 1.5 / self.steps if self.step_size is None or self.epsilon == 0 else self.step_size / self.epsilon


def sam(epsilon: float, norm: float = 2.0) -> Perturbation:
    """SAM: the loss after one ascent step in a plain ball."""
    return Perturbation(epsilon=epsilon, norm=norm, scale="one", granularity="model", risk="final")


def asam(
    epsilon: float,
    norm: float = 2.0,
    eta: float = 0.0,
    *,
    unit_vectors: bool = False,
    only_named: str | None = None,
) -> Perturbation:
    """Adaptive SAM: T = |w| + eta for each weight.

    Args:
        epsilon: Radius of the ball.
        norm: p of its norm.
        eta: Added to |w|, so that weights of zero can move (not the step size). ASAM's authors use 0.01.
        unit_vectors: T = 1 for biases and all other vectors.
        only_named: T = 1 for parameters whose name does not contain this text; "weight" is the rule in the code of
            ASAM's authors. It needs the parameters' names.
    """
    _check_at_least_zero("eta", eta)
    plain = not eta and not unit_vectors and only_named is None
    scale = "weight" if plain else Weight(constant=eta, unit_vectors=unit_vectors, only_named=only_named)
    return Perturbation(epsilon=epsilon, norm=norm, scale=scale, granularity="element", risk="final")


def layer_sam(epsilon: float, norm: float = 2.0) -> Perturbation:
    """Layer-SAM: T = |w_i| / |g_i| for each tensor."""
    return Perturbation(epsilon=epsilon, norm=norm, scale="weight_over_gradient", risk="final")


def multi_step_defense(epsilon: float, norm: float = math.inf, steps: int = 1) -> Perturbation:
    """Multi-step Defense: the mean loss over a walk of `steps` steps in a plain ball."""
    return Perturbation(epsilon=epsilon, norm=norm, scale="one", granularity="model", steps=steps)


def ga_sam(epsilon: float, norm: float = math.inf, steps: int = 1) -> Perturbation:
    """GA-SAM: the mean loss over a walk of `steps` steps, where tensors with weak gradients may go far."""
    return Perturbation(epsilon=epsilon, norm=norm, steps=steps)


def check_perturbation(value: object) -> None:
    if not isinstance(value, Perturbation):
        name = getattr(value, "__name__", repr(value))
        raise TypeError(f"perturbation must be a Perturbation such as ga_sam(1e-4), got {name}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return _is_number(value) and math.isfinite(value)  # type: ignore[arg-type]


def _check_at_least_zero(name: str, value: float) -> None:
    if not (_is_finite(value) and value >= 0):
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")


def _check_choice(name: str, value: object, choices: Collection[str], otherwise: str = "") -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}{otherwise}, got {value!r}")
