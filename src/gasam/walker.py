"""What SharpBackward and SharpnessAware have in common: the options of their walks, the schedule and the last trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from gasam.contexts import Statistics, freezing, frozen_batchnorm, includes, per_worker
from gasam.defaults import or_recommended
from gasam.fold import Overflow, check_overflow
from gasam.passes import Around, GradientScale, check_around, plainly
from gasam.perturbation import Perturbation, check_perturbation
from gasam.schedule import Schedule, Strength, StrengthOfStep, group_of
from gasam.trace import BETWEEN, OFF, WAITING, Trace
from gasam.watch import Watch


class Walker:
    """Options, checked once. Change `enabled` and `perturbation` between steps. `last` describes the last one."""

    def _set_up(
        self,
        model: nn.Module | None,
        tensors: Sequence[Tensor],
        perturbation: Perturbation | None,
        schedule: Schedule | StrengthOfStep | None,
        *,
        around: Around | None,
        gradient_scale: GradientScale,
        batchnorm: Statistics,
        on_overflow: Overflow,
        detailed: bool,
        total_steps: int | None,
        process_group: Any,
        accumulation: int = 1,
    ) -> None:
        around = plainly if around is None else around
        self.perturbation, schedule = or_recommended(perturbation, schedule)
        check_perturbation(self.perturbation)
        check_around(around)
        self._per_worker = includes(around, per_worker)
        check_overflow(on_overflow, self._per_worker)
        group = process_group or group_of(model, tensors)
        self.strength = Strength(
            schedule, tensors, accumulation=accumulation, total_steps=total_steps, process_group=group
        )
        self.model = model
        self.around = freezing(model, batchnorm, around)
        self.gradient_scale = gradient_scale
        self.on_overflow = on_overflow
        self.detailed = detailed
        self.enabled = True
        self.last: Trace | None = None
        # Whether displaced passes were searched for running statistics that count them; not needed if they are kept.
        self._searched = model is not None or includes(around, frozen_batchnorm)
        self._knows_function = False  # until the first call has succeeded
        self._watch = Watch()

    @property
    def could_walk(self) -> bool:
        """Whether there is a walk whenever the schedule's strength is above 0."""
        return self.enabled and self.perturbation.size > 0

    def _reason_for_no_walk(self) -> int:
        if not self.could_walk:
            return OFF
        return BETWEEN if self.strength.between_walks else WAITING

    def metrics(self) -> dict[str, float]:
        """Plain numbers of the last step, for loggers. Reading them synchronises."""
        return {} if self.last is None else self.last.metrics()
