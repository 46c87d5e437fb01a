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
from gasam.trace import Measured, Watch

SIZES = tuple(2.0**k for k in range(-6, 6))
"""The sizes that are tested by default, as multiples of the perturbation's size."""


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
    """The result of `range_test`: `unit` ("budget" or "epsilon"), the names of all `groups`, and a `Row` for each size.

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
        unit = ("an " if self.unit == "epsilon" else "a ") + self.unit
        if turn := self.turning_point():
            lines.append(f"The gradient of {turn[1]} turns at {unit} of {turn[0]:.3g}: stay well below it.")
        else:
            lines.append(f"No group's gradient turns up to {unit} of {self.rows[-1].size:.3g}.")
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

    All passes of a batch use the same dropout masks. Weights, gradients, random number generators and the schedule are
    restored afterwards. Running statistics are restored if `sharp` was given the model. Needs as much memory as
    `detailed=True`.

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
            groups |= {name: None for _, measured in found for name in measured.labels}
            rows.append(_row(size, found))
    return RangeTest(unit, tuple(groups), tuple(rows))


def _walk(probe: SharpBackward, loss_function: Callable[[Any], Any], batch: Any) -> tuple[dict[str, float], Measured]:
    for parameter in probe.parameters:
        parameter.grad = None
    probe(lambda: loss_function(batch))
    trace: Any = probe.last
    return trace.metrics(), trace.detail


def _row(size: float, found: Sequence[tuple[dict[str, float], Measured]]) -> Row:
    cosines = dict[str, list[float]]()
    for _, measured in found:
        columns: Any = measured.labels, measured.cosines, _with_signal(measured)
        for name, cosine, has_signal in zip(*columns, strict=True):
            if has_signal:
                cosines.setdefault(name, []).append(float(cosine))
    names = ("predicted_rise", "rise", "perturbation_ratio", "capped")
    predicted, rise, whole, capped = (fmean(metrics[name] for metrics, _ in found) for name in names)
    largest, ratio = max((measured.largest_ratio() for _, measured in found), key=lambda each: each[1])
    return Row(size, predicted, rise, whole, ratio, largest, capped, {name: fmean(c) for name, c in cosines.items()})


def _with_signal(measured: Measured) -> Any:
    """Whether a group's clean gradient is more than rounding noise, relative to that of the whole model."""
    norms: Any = measured.gradient_norms
    usual = (norms.square().sum() / measured.sizes.sum().clamp(min=1)).sqrt()
    return norms > 1e-5 * usual * measured.sizes.sqrt()
