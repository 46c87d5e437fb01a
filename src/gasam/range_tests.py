"""`range_test`, which measures the effect of 12 perturbation sizes on a model without training it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from gasam.backward import SharpBackward
from gasam.contexts import same_noise, unchanged_state
from gasam.passes import Pass, back, call, now
from gasam.trace import Detail, Trace
from gasam.walk import traced_climb

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
    """The result of `range_test`. Printing it shows a table; `draw` makes a picture.

    Args:
        unit: The unit of the sizes, "budget" or "epsilon".
        groups: The names of all groups.
        rows: The measurements for each size, in ascending order.
    """

    unit: str
    groups: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def without_signal(self) -> list[str]:
        """Groups whose gradient is only rounding noise, so that they have no meaningful cosines."""
        judged = {name for row in self.rows for name in row.cosines}
        return [name for name in self.groups if name not in judged]

    def turning_point(self) -> tuple[float, str] | None:
        """The smallest size at which the gradient of a group turns (its cosine is below 0), and this group."""
        for row in self.rows:
            if row.lowest_cosine < 0:
                return row.size, min(row.cosines, key=lambda name: row.cosines[name])
        return None

    @property
    def _article(self) -> str:
        return "an" if self.unit == "epsilon" else "a"

    def summary(self) -> str:
        turn = self.turning_point()
        if turn is None:
            found = f"No group's gradient turns up to {self._article} {self.unit} of {self.rows[-1].size:.3g}."
            limited = [row.size for row in self.rows if row.capped == 1]
            if limited:
                found += f" All groups are capped from {limited[0]:.3g} on: give a larger cap to see more."
            return found
        return f"The gradient of {turn[1]} turns at {self._article} {self.unit} of {turn[0]:.3g}: stay well below it."

    def __str__(self) -> str:
        head = f"{self.unit:>10}  predicted   measured    |a|/|w|    largest  lowest cosine  group of the largest"
        lines = [
            f"{row.size:10.3g} {row.predicted:10.3g} {row.measured:10.3g} {row.ratio:10.3g} {row.largest_ratio:10.3g}"
            f" {row.lowest_cosine:14.3f}  {row.largest}"
            for row in self.rows
        ]
        if self.without_signal:
            names = ", ".join(self.without_signal[:3]) + (", ..." if len(self.without_signal) > 3 else "")
            lines.append(f"Left out, because their gradient is only rounding noise: {names}.")
        return "\n".join([head, *lines, self.summary()])

    def draw(self, file: str | Path) -> None:
        """Draw the rise, |a|/|w| and the cosines against the size. Needs matplotlib."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError("draw needs matplotlib: pip install matplotlib") from None
        figure = Figure(figsize=(11, 3.2), layout="constrained")
        rises, ratios, cosines = figure.subplots(1, 3)
        sizes = [row.size for row in self.rows]
        rises.plot(sizes, [row.predicted for row in self.rows], label="predicted")
        rises.plot(sizes, [row.measured for row in self.rows], label="measured")
        rises.set(ylabel="rise of the loss", yscale="symlog")
        rises.legend()
        ratios.plot(sizes, [row.ratio for row in self.rows], label="all weights")
        ratios.plot(sizes, [row.largest_ratio for row in self.rows], label="largest of a group")
        ratios.set(ylabel="|a| / |w|", yscale="log")
        ratios.legend()
        for name in self.groups:
            cosines.plot(sizes, [row.cosines.get(name, math.nan) for row in self.rows], lw=0.8)
        cosines.axhline(0, color="black", lw=0.6)
        cosines.set(ylabel="cosine of each group's gradients")
        for axes in (rises, ratios, cosines):
            axes.set(xscale="log", xlabel=self.unit)
        figure.savefig(file)


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
    unit = "epsilon" if sharp.perturbation.budget is None else "budget"
    if sharp.perturbation.size == 0:
        raise ValueError(f"range_test needs a perturbation with epsilon or budget > 0, got {sharp.perturbation}")
    if sizes is None:
        sizes = [sharp.perturbation.size * multiple for multiple in SIZES]
    batches = list(batches)
    if not batches or not sizes or min(sizes) <= 0:
        raise ValueError(f"range_test needs at least one batch and sizes > 0, got {len(batches)} batches and {sizes}")
    rows = list[Row]()
    groups = dict[str, None]()
    with unchanged_state(sharp.model, sharp.parameters):
        for size in sorted(sizes):
            strength = size / sharp.perturbation.size
            traces = [_walk(sharp, strength, partial(loss_function, batch)) for batch in batches]
            for trace in traces:
                groups |= dict.fromkeys(_detail(trace).labels)
            rows.append(_row(size, traces))
    return RangeTest(unit, tuple(groups), tuple(rows))


def _walk(sharp: SharpBackward, strength: float, function: Callable[[], Any]) -> Trace:
    noise = same_noise()

    def evaluate(k: int) -> Pass:
        for parameter in sharp.parameters:
            parameter.grad = None
        with noise(k, False), sharp.around(k, k == sharp.perturbation.steps):
            loss, _ = call(function)
            factor = back(loss, sharp.backward, 1.0)
        scale = now(sharp.gradient_scale)
        return Pass(loss.detach().clone().reshape(()), factor * scale, scale)

    state = sharp.method_state.unchanged()
    return traced_climb(sharp.weights, evaluate, sharp.perturbation, strength=strength, detailed=True, state=state)


def _detail(trace: Trace) -> Detail:
    assert trace.detail is not None
    return trace.detail


def _row(size: float, traces: Sequence[Trace]) -> Row:
    metrics = [trace.metrics() for trace in traces]
    name, largest = max((trace.groups.largest_ratio() for trace in traces if trace.groups), key=lambda each: each[1])
    cosines = dict[str, list[float]]()
    for detail in map(_detail, traces):
        assert detail.cosines is not None
        found = zip(detail.labels, detail.cosines.tolist(), detail.with_signal.tolist(), strict=True)
        for label, cosine, has_signal in found:
            if has_signal:
                cosines.setdefault(label, []).append(cosine)
    return Row(
        size=size,
        predicted=fmean([each["predicted_rise"] for each in metrics]),
        measured=fmean([float(trace.rise) for trace in traces if trace.rise is not None]),
        ratio=fmean([each["perturbation_ratio"] for each in metrics]),
        largest_ratio=largest,
        largest=name,
        capped=fmean([each["capped"] for each in metrics]),
        cosines={label: fmean(values) for label, values in cosines.items()},
    )
