"""SharpBackward: a drop-in for loss.backward() that folds the gradients of a whole walk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gasam.ascent import Pass
from gasam.contexts import warn_of_statistics
from gasam.fold import Fold, loss_factor
from gasam.parameters import Parameters, read, weights_of
from gasam.passes import (
    Around,
    Backward,
    GradientScale,
    back,
    call,
    check_around,
    check_kept,
    check_reached,
    check_untouched,
    now,
    plain_pass,
    plainly,
)
from gasam.perturbation import Perturbation, check_perturbation
from gasam.trace import Trace
from gasam.walk import traced_climb
from gasam.weights import run_again_if_interrupted


class SharpBackward:
    """Replaces `loss.backward()`: evaluates the loss K+1 times along the walk and adds the folded gradient to `.grad`.

    Call it with a function that returns the loss, or (loss, anything), and does not call backward itself. You get back
    what the function returned in the clean pass, with the loss detached. `enabled = False`, or epsilon 0, is one plain
    pass. `last` describes the last walk.

    Args:
        parameters: All parameters that are trained: `model.named_parameters()`, `model.parameters()`, or groups. Put
            those that should not move into a group with "perturb": False. Parameters that you leave out accumulate the
            gradients of all K+1 passes.
        perturbation: The walk, for example `ga_sam(1e-4)`.
        backward: Replaces `loss.backward()`, for example `accelerator.backward`. It gets the loss times 1 / (K+1) for
            the mean risk. Factors that it multiplies in, such as a loss scale, do not change the walk.
        around: A function of (k, last) that returns a context for pass k, for example `same_noise()`.
        gradient_scale: How many times the mean loss your loss is, for example the number of tokens of a sum: a number,
            or a function that returns one.
        detailed: Also measure |a|/|w| of each group and what rounding leaves of the offset.
    """

    def __init__(
        self,
        parameters: Parameters,
        perturbation: Perturbation,
        *,
        backward: Backward = torch.Tensor.backward,
        around: Around = plainly,
        gradient_scale: GradientScale = 1.0,
        detailed: bool = False,
    ) -> None:
        check_perturbation(perturbation)
        check_around(around)
        entries = read(parameters)
        self.perturbation = perturbation
        self.parameters = [entry.tensor for entry in entries]
        self.weights = weights_of(entries, perturbation)
        self.backward = backward
        self.around = around
        self.gradient_scale = gradient_scale
        self.detailed = detailed
        self.enabled = True
        self.last: Trace | None = None
        self._looked = False  # for running statistics, in the first displaced pass

    def __repr__(self) -> str:
        return f"SharpBackward({len(self.parameters)} parameters, {self.perturbation})"

    def __call__(self, function: Callable[[], Any]) -> Any:
        if not self.enabled or self.perturbation.epsilon == 0:
            returned, self.last = plain_pass(function, self.backward, self.around)
            return returned
        trained = [p for p in self.parameters if p.requires_grad]
        fold = Fold(trained, self.perturbation)
        clean: list[Any] = []

        def evaluate(k: int) -> Pass:
            fold.make_room(k)
            with self.around(k, k == self.perturbation.steps):
                held = any(parameter.grad is not None for parameter in trained)
                loss, returned = call(function)
                if held:
                    check_kept(trained)
                if k == 0:
                    clean.append(returned)
                    check_untouched(trained)
                elif not self._looked:
                    self._looked = True
                    warn_of_statistics(loss)
                factor = back(loss, self.backward, loss_factor(self.perturbation))
            if k == 0:
                check_reached(trained)
            return Pass(loss.detach().clone().reshape(()), factor * now(self.gradient_scale))

        try:
            fold.set_aside()
            self.last = traced_climb(self.weights, evaluate, self.perturbation, detailed=self.detailed)
        except BaseException:
            run_again_if_interrupted(fold.undo)
            raise
        return clean[0]
