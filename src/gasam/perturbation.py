"""`Perturbation`, which holds the options of a walk, and the presets SAM, ASAM, Layer-SAM, Multi-step and GA-SAM."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from torch import nn

from gasam.family import Method
from gasam.scales import SCALES, Scale, Weight
from gasam.schedule import Schedule, check, check_positive, is_number, is_whole

Risk = Literal["mean", "final"]
PerturbModule = Callable[[nn.Module], bool]
Granularity = Literal["element", "filter", "layer", "module", "model"]


@dataclass(frozen=True, kw_only=True)
class Perturbation:
    """A walk of `steps` ascent steps in the ball |T^-1 a|_norm <= epsilon, and the risk that training minimises.

    Give its size as either `epsilon` or `budget`: `sam(0.05)`, `ga_sam(budget=0.1, cap=0.01)`. 0 means plain training.

    Args:
        epsilon: Radius of the ball, in units of T^-1 a.
        budget: First-order rise of the mean loss: epsilon = budget / |T c|_q in each step, where q is the dual of the
            ball's norm and c what the walk climbs, usually the gradient. Epsilon grows as c vanishes: give a `cap`.
        cap: Largest offset of a group relative to its weights: |a_i|_2 <= cap max(|w_i|_2, 0.01 sqrt(n_i) rms(w)).
            With granularity "element" or "model" of each tensor. None means no cap.
        norm: p of the ball's norm, > 1 or math.inf.
        scale: T: a name in `gasam.SCALES`, or a function of a `Group` that returns values >= 0.
        granularity: Which weights share a T: "element", "filter", "layer" (a parameter tensor), "module" or "model".
        steps: K, the number of ascent steps. A training step takes K+1 passes, or K if the method has no clean pass.
        step_size: eta, in the unit of `epsilon` or `budget`; None means 1.5 times that size divided by `steps`.
        risk: "mean" minimises the mean of all passes of the loss function, "final" the last one. A method with a fold
            ignores it.
        floor: Smallest root-mean-square gradient that a scale divides by.
        method: What a published method changes: what the walk climbs, or how the gradients of the passes become one.
            T is computed from the gradient, or without a clean pass from what the walk climbs.
        perturb: A function of a module that says whether its own parameters move; it needs the model. None means all.
        needs_ascent: Refuse calls of SharpBackward without `ascent`, which would cost K+1 whole passes.
    """

    epsilon: float | None = None
    budget: float | None = None
    cap: float | None = None
    norm: float = math.inf
    scale: str | Scale = "gradient_strength"
    granularity: Granularity = "layer"
    steps: int = 1
    step_size: float | None = None
    risk: Risk = "mean"
    floor: float = 1e-8
    method: Method | None = None
    perturb: PerturbModule | None = None
    needs_ascent: bool = False

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.budget is None):
            raise ValueError(
                f"give either an epsilon or a budget, got epsilon={self.epsilon!r} and budget={self.budget!r}: write "
                "sam(0.05), for example, or ga_sam(budget=0.1, cap=0.01) with a budget in units of the loss"
            )
        check_at_least_zero("epsilon" if self.budget is None else "budget", self.size)
        check_at_least_zero("floor", self.floor)
        check_positive("cap", self.cap)
        check_positive("step_size", self.step_size)
        check("norm", self.norm, is_number(self.norm) and self.norm > 1, "a number > 1 or math.inf")
        check("steps", self.steps, is_whole(self.steps, at_least=1), "a whole number >= 1")
        if not callable(self.scale):
            _check_choice("scale", self.scale, SCALES, " or a function of a Group")
        _check_choice("granularity", self.granularity, get_args(Granularity))
        _check_choice("risk", self.risk, get_args(Risk))
        if self.perturb is not None and not callable(self.perturb):
            raise TypeError(f"perturb must be a function or None, got {self.perturb!r}")
        if not isinstance(self.method, Method | None):
            raise TypeError(f"method must be a gasam.Method or None, got {self.method!r}")
        if self.method is not None and self.method.only_steps not in (None, self.steps):
            name, only = type(self.method).__name__, self.method.only_steps
            raise ValueError(f"{name} is defined for {only} ascent step, got steps={self.steps}: leave steps out")

    @cached_property
    def scale_function(self) -> Scale:
        return self.scale if callable(self.scale) else SCALES[self.scale]

    @cached_property
    def clean_pass(self) -> bool:
        """Whether a walk begins with a pass at w."""
        return self.method is None or self.method.clean_pass

    @cached_property
    def own_fold(self) -> Method | None:
        """The method if it has a fold, else None."""
        return self.method if self.method is not None and self.method.has_fold else None

    @property
    def folds_between(self) -> bool:
        """Whether the method has a fold that is also called in the steps that a schedule leaves out."""
        return self.own_fold is not None and self.own_fold.between_walks

    @cached_property
    def size(self) -> float:
        """`epsilon` or `budget`, whichever was given."""
        return self.epsilon if self.budget is None else self.budget  # type: ignore[return-value]

    @cached_property
    def relative_step(self) -> float:
        """The step size divided by `size`, because the walk is computed in a ball of radius one."""
        return 1.5 / self.steps if self.step_size is None or self.size == 0 else self.step_size / self.size


def sam(epsilon: float | None = None, norm: float = 2.0, **options: Any) -> Perturbation:
    """SAM: the loss after one ascent step, with T = 1. Every preset accepts the other options of `Perturbation`."""
    return preset(options, epsilon=epsilon, norm=norm, scale="one", granularity="model", risk="final")


def asam(epsilon: float | None = None, norm: float = 2.0, eta: float = 0.0, **options: Any) -> Perturbation:
    """Adaptive SAM: T = |w| + eta for each weight. Other arguments are those of `Perturbation`.

    Args:
        eta: Added to |w|, so that weights of zero can move. It is not the step size. ASAM's authors use 0.01.
    """
    check_at_least_zero("eta", eta)
    scale = Weight(eta) if eta else "weight"
    return preset(options, epsilon=epsilon, norm=norm, scale=scale, granularity="element", risk="final")


def layer_sam(epsilon: float | None = None, norm: float = 2.0, **options: Any) -> Perturbation:
    """Layer-SAM: the loss after one ascent step, with T = |w_i| / |g_i| for each tensor."""
    return preset(options, epsilon=epsilon, norm=norm, scale="weight_over_gradient", risk="final")


def multi_step_defense(
    epsilon: float | None = None, norm: float = math.inf, steps: int = 1, **options: Any
) -> Perturbation:
    """Multi-step Defense: the mean loss over a walk of `steps` ascent steps, with T = 1."""
    return preset(options, epsilon=epsilon, norm=norm, steps=steps, scale="one", granularity="model")


def ga_sam(epsilon: float | None = None, norm: float = math.inf, steps: int = 1, **options: Any) -> Perturbation:
    """GA-SAM: the mean loss over a walk of `steps` ascent steps, in which tensors with weak gradients move further.

    The paper gives epsilon. `ga_sam(budget=0.1, cap=0.01)` is easier to choose.
    """
    return preset(options, epsilon=epsilon, norm=norm, steps=steps)


def preset(options: dict[str, Any], **usual: Any) -> Perturbation:
    """The usual options of a method, and those that the user gives instead."""
    if "rho" in options:
        raise TypeError(f"rho is called epsilon here: write sam(epsilon={options['rho']!r})")
    return Perturbation(**usual | options)


def check_perturbation(value: object) -> None:
    if not isinstance(value, Perturbation):
        name = getattr(value, "__name__", repr(value))
        raise TypeError(f"perturbation must be a Perturbation such as ga_sam(1e-4), got {name}")


def check_schedule(perturbation: Perturbation, schedule: object) -> None:
    """Raise if the method can't be used with this schedule."""
    method = perturbation.method
    leaves_out = isinstance(schedule, Schedule) and schedule.every >= 2 and schedule.weight == 1
    if method is not None and method.between_walks and not leaves_out:
        raise ValueError(
            f"{type(method).__name__} changes the steps between walks, got {schedule}: give a Schedule with every >= 2 "
            "and weight=1, as in Schedule(every=5, weight=1)"
        )


def check_at_least_zero(name: str, value: Any, below: float = math.inf) -> None:
    allowed = "a finite number >= 0" if below == math.inf else f"a number in [0, {below:g})"
    check(name, value, is_number(value) and 0 <= value < below, allowed)


def _check_choice(name: str, value: object, choices: Collection[str], otherwise: str = "") -> None:
    allowed = f"one of {', '.join(map(repr, choices))}{otherwise}"
    check(name, value, isinstance(value, str) and value in choices, allowed)
