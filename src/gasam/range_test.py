"""`range_test`, which measures the effect of 12 perturbation sizes on a model without training it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import torch

from gasam.backward import SharpBackward
from gasam.contexts import same_noise, together, unchanged_state
from gasam.schedule import Clock
from gasam.trace import Watch


class Row(NamedTuple):
    """Walks of one size: means over all batches, and the lowest cosine in any batch."""

    size: float  # epsilon or budget
    predicted: float  # first-order rise of the mean loss
    measured: float  # measured rise of the mean loss
    ratio: float  # |a|/|w|
    lowest_cosine: float  # between the clean and the displaced gradient of a group
    lowest: str  # the group with the lowest cosine


@dataclass(frozen=True)
class RangeTest:
    """The result of `range_test`: "budget" or "epsilon", and a row for each size. Printing it shows a table.

    Stay well below the first size at which the gradient of a group turns, so that its cosine is negative.
    """

    unit: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        lines = [f"{self.unit:>10}  predicted   measured    |a|/|w|  lowest cosine  of the group"]
        lines += ["{:10.3g} {:10.3g} {:10.3g} {:10.3g} {:14.3f}  {}".format(*row) for row in self.rows]
        return "\n".join(lines)


def range_test(
    sharp: SharpBackward,
    loss_function: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    sizes: Sequence[float] | None = None,
) -> RangeTest:
    """Run walks of several sizes on a few batches, and compare the clean with the displaced gradients.

    All passes of a batch use the same dropout masks. Afterwards everything is as before, running statistics only if
    `sharp` was given the model. Needs as much memory as `detailed=True`.

    Args:
        sharp: Its perturbation is tested, at full strength. Its cap applies; give a large one to see more.
        loss_function: A function from a batch to the loss.
        batches: Batches of training data; one to four are enough.
        sizes: Values of epsilon or budget. By default 12 from 1/64 to 32 times the perturbation's size.
    """
    plan, batches, rows, probe = sharp.perturbation, list(batches), list[Row](), copy.copy(sharp)
    sizes = [plan.size * 2.0**k for k in range(-6, 6)] if sizes is None else sorted(sizes)
    if not batches or not sizes or sizes[0] <= 0:
        raise ValueError(f"range_test needs at least one batch and sizes > 0, got {len(batches)} batches and {sizes}")
    if not plan.clean_pass:
        name = type(plan.method).__name__
        raise ValueError(f"range_test compares clean and displaced gradients, and {name} computes no clean one")
    if sharp.per_worker:
        raise ValueError("range_test compares gradients that are reduced: give a SharpBackward without per_worker")
    unit = "epsilon" if plan.budget is None else "budget"
    probe.enabled, probe.detailed, probe.clock, probe._watch = True, True, Clock(None, sharp.parameters), Watch()
    probe.kept = copy.deepcopy(sharp.kept, {id(parameter): parameter for parameter in sharp.parameters})
    probe.around = together(same_noise(), sharp.around)
    with unchanged_state(sharp.model, sharp.parameters):
        for size in sizes:
            step_size = None if plan.step_size is None else plan.step_size * size / plan.size
            changed: dict[str, Any] = {unit: size, "step_size": step_size, "needs_ascent": False}
            probe.perturbation = replace(plan, **changed)
            traces = []
            for batch in batches:
                probe(partial(loss_function, batch))
                traces.append(probe.last)
            rows.append(_row(size, traces))
    return RangeTest(unit, tuple(rows))


def _row(size: float, traces: Sequence[Any]) -> Row:
    lowest = 1.0, "no group"
    for groups in (trace.groups for trace in traces):
        # Gradients that are only rounding noise, relative to those of the whole model, have no meaningful cosine.
        usual = (groups.gradient_norms.square().sum() / groups.sizes.sum().clamp(min=1)).sqrt()
        has_signal = groups.gradient_norms > 1e-5 * usual * groups.sizes.sqrt()
        cosines = torch.where(has_signal, groups.cosines, 1.0).tolist()
        lowest = min(lowest, *zip(cosines, groups.labels, strict=True))
    predicted, measured, ratio = (
        fmean(trace.metrics()[name] for trace in traces) for name in ("predicted_rise", "rise", "perturbation_ratio")
    )
    return Row(size, predicted, measured, ratio, *lowest)
