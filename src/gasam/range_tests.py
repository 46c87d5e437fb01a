"""`range_test`, which measures the effect of 12 perturbation sizes on a model without training it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from gasam.backward import SharpBackward
from gasam.contexts import same_noise, together, unchanged_state
from gasam.family import Kept
from gasam.schedule import Clock
from gasam.trace import Trace, Watch

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
    walk, batches = sharp.perturbation, list(batches)
    if walk.size == 0:
        raise ValueError(f"range_test needs a perturbation with epsilon or budget > 0, got {walk}")
    sizes = [walk.size * multiple for multiple in SIZES] if sizes is None else sizes
    if not batches or not sizes or min(sizes) <= 0:
        raise ValueError(f"range_test needs at least one batch and sizes > 0, got {len(batches)} batches and {sizes}")
    unit = "epsilon" if walk.budget is None else "budget"
    probe = copy.copy(sharp)
    probe.enabled, probe.detailed, probe.clock, probe._watch = True, True, Clock(None, sharp.parameters), Watch()
    probe.kept, probe.around = Kept(), together(same_noise(), sharp.around)
    probe.kept.load_state_dict(sharp.kept.state_dict(sharp.parameters), sharp.parameters)
    rows, groups = list[Row](), dict[str, None]()
    with unchanged_state(sharp.model, sharp.parameters):
        for size in sorted(sizes):
            step_size = None if walk.step_size is None else walk.step_size * size / walk.size
            changed: dict[str, Any] = {unit: size, "step_size": step_size}
            probe.perturbation = replace(walk, **changed)
            traces = [_walk(probe, partial(loss_function, batch)) for batch in batches]
            groups |= {name: None for trace in traces for name, *_ in _groups(trace)}
            rows.append(_row(size, traces))
    return RangeTest(unit, tuple(groups), tuple(rows))


def _walk(probe: SharpBackward, function: Callable[[], Any]) -> Trace:
    for parameter in probe.parameters:
        parameter.grad = None
    probe(function)
    assert probe.last is not None
    return probe.last


def _groups(trace: Trace) -> list[tuple[str, float, float, bool]]:
    """The name, |a_i|/|w_i| and cosine of each group, and whether its gradient is more than rounding noise."""
    detail = trace.detail
    assert detail is not None
    assert detail.cosines is not None
    columns = (detail.ratios, detail.cosines, detail.with_signal)
    return list(zip(detail.labels, *(column.tolist() for column in columns), strict=True))


def _row(size: float, traces: Sequence[Trace]) -> Row:
    cosines = dict[str, list[float]]()
    for name, _, cosine, has_signal in (group for trace in traces for group in _groups(trace)):
        if has_signal:
            cosines.setdefault(name, []).append(cosine)
    largest, ratio = max(((name, ratio) for t in traces for name, ratio, *_ in _groups(t)), key=lambda each: each[1])
    names = ("predicted_rise", "rise", "perturbation_ratio", "capped")
    predicted, measured, whole, capped = (fmean(trace.metrics()[name] for trace in traces) for name in names)
    means = {name: fmean(values) for name, values in cosines.items()}
    return Row(size, predicted, measured, whole, ratio, largest, capped, means)
