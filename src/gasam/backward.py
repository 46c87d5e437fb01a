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
    check_reached,
    check_untouched,
    now,
    plain_pass,
    plainly,
)
from gasam.perturbation import Perturbation, check_perturbation
from gasam.trace import Trace
from gasam.walk import traced_climb


class SharpBackward:
    """Calls a loss function K+1 times along the walk and adds the folded gradient to `.grad`, as backward does.

    The function returns the loss, or (loss, anything), and does not call backward. The call returns the same of the
    clean pass, the loss detached. `backward` replaces `loss.backward()`, e.g. `accelerator.backward` or
    `lambda loss: scaler.scale(loss).backward()`; it gets each pass's share of the loss, and the factors it multiplies
    in are read off the loss and do not change the walk. If the loss itself is not the mean, `gradient_scale`, a number
    or a function that returns one, says how many times the mean it is, e.g. the number of tokens of a sum.
    `around(k, last)` gives a context for pass k. `enabled = False`, or epsilon 0, is one plain pass.

    Pass every parameter that is trained, and put those that should not move into a group with "perturb": False.
    Parameters that you leave out accumulate the gradients of all K+1 passes.
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
                loss, returned = call(function)
                if k == 0:
                    clean.append(returned)
                    check_untouched(trained)
                elif not self._looked:
                    self._looked = True
                    warn_of_statistics(loss)
                factor = back(loss, self.backward, loss_factor(self.perturbation))
            if k == 0:
                check_reached(trained)
            return Pass(loss.detach().reshape(()), factor * now(self.gradient_scale))

        try:
            fold.set_aside()
            self.last = traced_climb(self.weights, evaluate, self.perturbation, detailed=self.detailed)
        except BaseException:
            fold.undo()
            raise
        return clean[0]
