"""The presets: SAM, ASAM, Layer-SAM, Multi-step Defense and GA-SAM as `Perturbation`s, and the recommended settings."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ParamSpec

from gasam.perturbation import Perturbation, check_at_least_zero
from gasam.scales import Weight
from gasam.schedule import Schedule, StrengthOfStep

Options = ParamSpec("Options")


def without_rho(preset: Callable[Options, Perturbation]) -> Callable[Options, Perturbation]:
    """Raise an error that says that other libraries' rho is called epsilon here."""

    @functools.wraps(preset)
    def checked(*args: Options.args, **kwargs: Options.kwargs) -> Perturbation:
        if "rho" in kwargs:
            name = preset.__name__
            raise TypeError(f"{name} has no rho, because the radius is called epsilon: write {name}({kwargs['rho']!r})")
        return preset(*args, **kwargs)

    return checked


@without_rho
def sam(
    epsilon: float | None = None, norm: float = 2.0, *, budget: float | None = None, cap: float | None = None
) -> Perturbation:
    """SAM: the loss after one ascent step, with T = 1.

    Args:
        epsilon: Radius of the ball.
        norm: p of the ball's norm.
        budget: First-order rise of the loss, in units of the loss, instead of `epsilon`.
        cap: Largest |a_i| relative to |w_i|, for each tensor. None means no cap.
    """
    return Perturbation(
        epsilon=epsilon, budget=budget, cap=cap, norm=norm, scale="one", granularity="model", risk="final"
    )


@without_rho
def asam(
    epsilon: float | None = None,
    norm: float = 2.0,
    eta: float = 0.0,
    *,
    unit_vectors: bool = False,
    only_named: str | None = None,
    budget: float | None = None,
    cap: float | None = None,
) -> Perturbation:
    """Adaptive SAM: T = |w| + eta for each weight.

    Args:
        epsilon: Radius of the ball.
        norm: p of the ball's norm.
        eta: Added to |w|, so that weights of zero can move. It is not the step size. ASAM's authors use 0.01.
        unit_vectors: Use T = 1 for biases and all other vectors.
        only_named: Use T = 1 for parameters whose name does not contain this text. The code of ASAM's authors uses
            "weight". Needs the parameters' names. None means that all parameters are scaled.
        budget: First-order rise of the loss, in units of the loss, instead of `epsilon`.
        cap: Largest |a_i| relative to |w_i|, for each tensor. None means no cap.
    """
    check_at_least_zero("eta", eta)
    plain = not eta and not unit_vectors and only_named is None
    scale = "weight" if plain else Weight(constant=eta, unit_vectors=unit_vectors, only_named=only_named)
    return Perturbation(
        epsilon=epsilon, budget=budget, cap=cap, norm=norm, scale=scale, granularity="element", risk="final"
    )


@without_rho
def layer_sam(
    epsilon: float | None = None, norm: float = 2.0, *, budget: float | None = None, cap: float | None = None
) -> Perturbation:
    """Layer-SAM: the loss after one ascent step, with T = |w_i| / |g_i| for each tensor.

    Args:
        epsilon: Radius of the ball.
        norm: p of the ball's norm.
        budget: First-order rise of the loss, in units of the loss, instead of `epsilon`.
        cap: Largest |a_i| relative to |w_i|, for each tensor. None means no cap.
    """
    return Perturbation(epsilon=epsilon, budget=budget, cap=cap, norm=norm, scale="weight_over_gradient", risk="final")


@without_rho
def multi_step_defense(
    epsilon: float | None = None,
    norm: float = math.inf,
    steps: int = 1,
    *,
    budget: float | None = None,
    cap: float | None = None,
) -> Perturbation:
    """Multi-step Defense: the mean loss over a walk of `steps` ascent steps, with T = 1.

    Args:
        epsilon: Radius of the ball.
        norm: p of the ball's norm.
        steps: K, the number of ascent steps.
        budget: First-order rise of the loss, in units of the loss, instead of `epsilon`.
        cap: Largest |a_i| relative to |w_i|, for each tensor. None means no cap.
    """
    return Perturbation(
        epsilon=epsilon, budget=budget, cap=cap, norm=norm, scale="one", granularity="model", steps=steps
    )


@without_rho
def ga_sam(
    epsilon: float | None = None,
    norm: float = math.inf,
    steps: int = 1,
    *,
    budget: float | None = None,
    cap: float | None = None,
) -> Perturbation:
    """GA-SAM: the mean loss over a walk of `steps` ascent steps, in which tensors with weak gradients move further.

    Args:
        epsilon: Radius of the ball, as in the paper: `ga_sam(1e-4)`.
        norm: p of the ball's norm.
        steps: K, the number of ascent steps.
        budget: First-order rise of the loss, in units of the loss, instead of `epsilon`:
            `ga_sam(budget=0.1, cap=0.01)`.
        cap: Largest |a_i| relative to |w_i|, for each tensor. None means no cap.
    """
    return Perturbation(epsilon=epsilon, budget=budget, cap=cap, norm=norm, steps=steps)


def recommended() -> tuple[Perturbation, Schedule]:
    """The default settings, which SharpBackward and SharpnessAware use if you give no perturbation.

    They are GA-SAM with a loss budget of 0.1, a cap of 1 percent, and full strength once the loss has fallen by 20
    percent. `benchmarks/first_use choose` compares them with other candidates on validation data, and the guide has the
    results on test data. No candidate was clearly better. With norm 2, classifiers gained and language models lost. A
    cap of 0.02 or a budget of 0.3 made no clear difference.
    """
    return ga_sam(budget=0.1, cap=0.01), Schedule(progress=0.2)


def or_recommended(
    perturbation: Perturbation | None, schedule: Schedule | StrengthOfStep | None
) -> tuple[Perturbation, Schedule | StrengthOfStep | None]:
    """The user's choice, or the recommended perturbation, with its schedule unless the user gave one.

    A risk function may have a usual schedule as well.
    """
    if perturbation is not None:
        return perturbation, getattr(perturbation, "usual_schedule", None) if schedule is None else schedule
    perturbation, usual = recommended()
    return perturbation, usual if schedule is None else schedule
