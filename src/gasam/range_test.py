"""`range_test`, which measures the effect of 12 perturbation sizes on a model without training it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from gasam.backward import SharpBackward
from gasam.contexts import same_noise, together, unchanged_state
from gasam.schedule import Clock
from gasam.trace import Watch

SIZES = tuple(2.0**k for k in range(-6, 6))
"""Sizes that are tested by default, as multiples of the perturbation's own."""


@dataclass(frozen=True)
class Row:
    """The means over all batches for walks of one size."""

    size: float  # epsilon or budget
    predicted: float  # first-order rise of the mean loss
    measured: float  # measured rise of the mean loss
    ratio: float  # |a|/|w|
    largest_ratio: float  # largest |a_i|/|w_i| of a group
    largest: str  # the group with the largest ratio
    capped: float  # share of the groups that the cap limits
    cosines: dict[str, float]  # between the clean and the displaced gradient, by group; without rounding noise

    @property
    def lowest_cosine(self) -> float:
        return min(self.cosines.values(), default=1.0)


@dataclass(frozen=True)
class RangeTest:
    """The result of `range_test`: "budget" or "epsilon", the names of all groups, and a row for each size.

    Printing it shows a table.
    """

    unit: str
    groups: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def without_signal(self) -> list[str]:
        """Groups whose gradient is only rounding noise, so that they have no meaningful cosines."""
        return [name for name in self.groups if not any(name in row.cosines for row in self.rows)]

    def turning_point(self) -> tuple[float, str] | None:
        """The smallest size at which the gradient of a group turns (its cosine is below 0), and this group."""
        turned = [row for row in self.rows if row.lowest_cosine < 0]
        return (turned[0].size, min(turned[0].cosines, key=turned[0].cosines.__getitem__)) if turned else None

    def __str__(self) -> str:
        lines = [f"{self.unit:>10}  predicted   measured    |a|/|w|    largest  lowest cosine  group of the largest"]
        for row in self.rows:
            numbers = (row.size, row.predicted, row.measured, row.ratio, row.largest_ratio)
            lines.append(" ".join(f"{n:10.3g}" for n in numbers) + f" {row.lowest_cosine:14.3f}  {row.largest}")
        if names := self.without_signal:
            lines.append(f"Left out, because their gradient is only rounding noise: {', '.join(names)}.")
        if turn := self.turning_point():
            lines.append(f"The gradient of {turn[1]} turns at {self.unit} {turn[0]:.3g}: stay well below it.")
        else:
            lines.append(f"No group's gradient turns up to {self.unit} {self.rows[-1].size:.3g}.")
            if capped := [row.size for row in self.rows if row.capped == 1]:
                lines.append(f"All groups are capped from {capped[0]:.3g} on: give a larger cap to see more.")
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
        sizes: The values of epsilon or budget to test, in the unit of the perturbation. By default 12 sizes from 1/64
            to 32 times the perturbation's size.
    """
    plan, batches = sharp.perturbation, list(batches)
    if plan.size == 0:
        raise ValueError(f"range_test needs a perturbation with epsilon or budget > 0, got {plan}")
    sizes = [plan.size * multiple for multiple in SIZES] if sizes is None else sizes
    if not batches or not sizes or min(sizes) <= 0:
        raise ValueError(f"range_test needs at least one batch and sizes > 0, got {len(batches)} batches and {sizes}")
    unit, groups, rows = "epsilon" if plan.budget is None else "budget", dict[str, None](), list[Row]()
    probe = copy.copy(sharp)
    probe.enabled, probe.detailed, probe.clock, probe._watch = True, True, Clock(None, sharp.parameters), Watch()
    probe.kept, probe.around = copy.deepcopy(sharp.kept), together(same_noise(), sharp.around)
    with unchanged_state(sharp.model, sharp.parameters):
        for size in sorted(sizes):
            step_size = None if plan.step_size is None else plan.step_size * size / plan.size
            changed: dict[str, Any] = {unit: size, "step_size": step_size}
            probe.perturbation = replace(plan, **changed)
            found = [_walk(probe, loss_function, batch) for batch in batches]
            groups |= {name: None for trace in found for name in trace.detail.labels}
            rows.append(_row(size, found))
    return RangeTest(unit, tuple(groups), tuple(rows))


def _walk(probe: SharpBackward, loss_function: Callable[[Any], Any], batch: Any) -> Any:
    for parameter in probe.parameters:
        parameter.grad = None
    probe(lambda: loss_function(batch))
    return probe.last


def _row(size: float, traces: Sequence[Any]) -> Row:
    cosines = dict[str, list[float]]()
    for trace in traces:
        details = trace.detail
        # Gradients that are only rounding noise, relative to those of the whole model, have no meaningful cosine.
        usual = (details.gradient_norms.square().sum() / details.sizes.sum().clamp(min=1)).sqrt()
        has_signal = details.gradient_norms > 1e-5 * usual * details.sizes.sqrt()
        for name, cosine, counts in zip(details.labels, details.cosines.tolist(), has_signal, strict=True):
            if counts:
                cosines.setdefault(name, []).append(cosine)
    names = ("predicted_rise", "rise", "perturbation_ratio", "capped")
    metrics = [trace.metrics() for trace in traces]
    predicted, rise, whole, capped = (fmean(each[name] for each in metrics) for name in names)
    largest, ratio = max((trace.detail.largest_ratio() for trace in traces), key=lambda each: each[1])
    return Row(size, predicted, rise, whole, ratio, largest, capped, {name: fmean(c) for name, c in cosines.items()})
