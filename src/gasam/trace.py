"""`Trace`, the report of one step, computed from sums on the device when somebody reads it; and one warning a run."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gasam.scales import SMALLEST_WEIGHTS, comparable_norms

OFF = "off: one plain pass"
WAITING = "waiting: one plain pass, because the schedule's strength is 0"
LEARNING = "waiting: one plain pass, because no gradient has been seen yet"
BETWEEN = "between walks: one plain pass"
NO_MOVE = "did not move: the gradient, the scale or all weights are zero"
NOT_FINITE = "not finite: a loss, gradient or scale was NaN or infinite"
TOO_FAR = "too large: {} moved by {:.2g} times its norm"
TOO_STEEP = "too large: the loss rises by more than 10 times what was predicted"
TOO_SMALL = "too small to matter: the predicted rise is below the rounding of the loss"
UNSEEN = "without effect: the weights moved, and the loss did not change by one bit"
SMALLER = "give a cap and Schedule(progress=0.2), as in recommended(2), or a smaller epsilon or budget"
CURES = {
    NOT_FINITE: "check plain training first, and with float16 the loss scale",
    TOO_FAR: SMALLER,
    TOO_STEEP: SMALLER,
    TOO_SMALL: "give a larger budget or epsilon",
    UNSEEN: "if the model reads its weights by another name, such as a view of a flat buffer, give in_place=True",
}
SAMPLED = 20  # the first walks are measured, and then one in as many; a warning judges as many measured walks together
ENOUGH = {NOT_FINITE: 11, TOO_FAR: 5}  # so many of them for a warning; of other findings all, as chance may explain one


@dataclass(eq=False, repr=False)
class Measured:
    """What a measured walk knows of each group in its last pass; of each tensor with granularity "element" or "model".

    The last three fields have only detailed walks, and not with per_worker, whose last gradient is not alone.
    """

    labels: list[str]  # the names of the groups
    offsets: Tensor  # |a_i|
    weights: Tensor  # |w_i|
    sizes: Tensor  # n_i
    capped: Tensor  # whether the cap limited the offset
    predicted_rise: Tensor  # first-order rise of the mean loss along what the first step climbs; NaN for noise
    gradient_norms: Tensor | None = None  # |g_0,i|
    gradient_ratios: Tensor | None = None  # |g_K,i| / |g_0,i|
    cosines: Tensor | None = None  # between the clean and the last gradient

    def ratios(self, least: float = SMALLEST_WEIGHTS) -> Tensor:
        """|a_i| / max(|w_i|, least sqrt(n_i) rms(w)); by default of weights close to zero as in the cap."""
        return self.offsets / comparable_norms(self.weights, self.sizes, least)

    def largest_ratio(self) -> tuple[str, float]:
        """The name of the group with the largest ratio, and this ratio."""
        ratios = self.ratios().nan_to_num(0.0, posinf=0.0).tolist()
        return max(zip(self.labels, ratios, strict=True), key=lambda each: each[1], default=("no group", 0.0))

    def table(self) -> str:
        """A row for each group of a detailed walk; nothing for other walks."""
        if self.cosines is None or self.gradient_ratios is None:
            return ""
        text = "\n       |a|    |a|/|w|  cosine  |g'|/|g|  (of the last and the clean gradient)"
        columns = self.offsets, self.ratios(), self.cosines, self.gradient_ratios
        for label, *row in zip(self.labels, *(column.tolist() for column in columns), strict=True):
            text += "\n{:10.3e} {:10.3e} {:7.3f} {:8.3f}  {}".format(*row, label)
        return text


@dataclass(eq=False, repr=False)
class Trace:
    """The report of one training step. Its tensors stay on the device; printing it synchronises.

    Always known are the losses, |a| and whether everything was finite. The rest is measured in the first 20 walks, then
    in one of 20, and with `detailed=True`; `verdict()` and `metrics()` report the last measured walk and its step.

    Attributes:
        losses: L(w + a_k) for k = `first`..K, as the loss function returned them.
        offsets: |a_i| of each group for k = 1..K. FreeLB's noise has a length for k = 0 as well.
        finite: Whether the losses of a walk, what it climbed and its scales were finite; the last gradient is not read.
        plain: The reason for a plain pass; None for a walk.
        strength: The strength of the schedule in this step.
        loss_scale: The losses divided by the mean loss; None if it is not known.
        step: The number of the optimizer step.
        groups: What was measured; None in other steps.
        first: 0, or the first k at which the loss function was run if it was not run at the weights w.
        ascent_loss: What `ascent` returned at w; None if it was not given.
        passes: The number of forward and backward passes, those of `ascent` included.
    """

    losses: list[Tensor]
    offsets: list[Tensor] = field(default_factory=list)
    finite: Tensor | bool = True
    plain: str | None = None
    strength: float = 1.0
    loss_scale: Tensor | float | None = 1.0
    step: int = 0
    groups: Measured | None = None
    first: int = 0
    ascent_loss: Tensor | None = None
    passes: int = 1
    sampled: Trace | None = None  # of the last measured walk, if this one was not measured
    too_steep: bool = False  # whether the last 20 measured walks were

    @property
    def norms(self) -> list[Tensor]:
        """|a_k|_2 for each of the losses."""
        norms = [offsets.norm() for offsets in self.offsets[-len(self.losses) :]]
        return [torch.zeros_like((norms or self.losses)[0])] * (len(self.losses) - len(norms)) + norms

    @property
    def sharpness(self) -> Tensor:
        """L(w + a_K) - L(w); NaN if the loss function was not run at w."""
        return self.losses[-1] - self.losses[0] + (math.nan if self.first else 0.0)

    @property
    def rise(self) -> Tensor:
        """The measured rise of the mean loss in the first step; NaN if the unit of the losses is not known."""
        return self._of_mean(self.losses[:2][-1] - self.losses[0] + (math.nan if self.first else 0.0))

    @property
    def not_finite(self) -> Tensor:
        return ~torch.as_tensor(self.finite)

    @property
    def climbed(self) -> Tensor:
        """Whether the weights moved and everything was finite."""
        return ~self.not_finite & (self.norms[-1] > 0)

    @property
    def between_walks(self) -> bool:
        """Whether the schedule's `every` skipped the walk of this step."""
        return self.plain == BETWEEN

    def verdict(self) -> str:
        """One sentence: fine, waiting, between walks, too small, too large, not finite, or why nothing moved."""
        if self.plain is not None:
            return self.plain
        # One walk may be steep because of its dropout masks; it is a fact if 20 are.
        for finding, is_true in (self.findings() | {TOO_STEEP: self.too_steep}).items():
            if is_true:
                return finding if self.groups is None else finding.format(*self.groups.largest_ratio())
        return "fine" if self.sampled is None else f"{self.sampled.verdict()} (measured in step {self.sampled.step})"

    def metrics(self) -> dict[str, float]:
        """Plain numbers for loggers: of the last measured walk and its step, or of a plain pass.

        `loss` and `sharpness` have the unit of the loss function, `rise` and `predicted_rise` that of the mean loss.
        """
        if self.sampled is not None:
            return self.sampled.metrics()
        numbers: dict[str, Any] = {
            "step": self.step,
            "loss": self.losses[0],
            "sharpness": None if self.first else self.sharpness,
            "perturbation_norm": self.norms[-1],
            "strength": self.strength,
            "rise": None if self.first else self.rise,
            "ascent_loss": self.ascent_loss,
        }
        if (groups := self.groups) is not None:
            numbers |= {
                "predicted_rise": None if groups.predicted_rise.isnan() else groups.predicted_rise,
                "perturbation_ratio": self.norms[-1] / groups.weights.norm().clamp(min=1e-30),
                "capped": groups.capped.double().mean(),
                "largest_ratio": groups.largest_ratio()[1],
            }
        return {name: float(number) for name, number in numbers.items() if number is not None}

    def __repr__(self) -> str:
        text = f"{self.verdict()}; " + ", ".join(f"{name} {value:.4g}" for name, value in self.metrics().items())
        groups = (self.sampled or self).groups
        return text if groups is None else f"{text} in {groups.largest_ratio()[0]}{groups.table()}"

    def findings(self) -> dict[str, Any]:
        """Whether each of these sentences is true of this walk alone; on the device of the weights."""
        climbed, loss, groups = self.climbed, self.losses[0], self.groups
        found = {NOT_FINITE: self.not_finite, NO_MOVE: ~climbed}
        if groups is None:
            return found
        rounding = self._of_mean(loss).abs().to(climbed.device) * torch.finfo(loss.dtype).eps
        predicted, rise = groups.predicted_rise.to(rounding), self.rise.to(rounding)
        # Close to a minimum the prediction vanishes, and the cap limits the walk in all groups.
        too_steep = ~groups.capped.all() & (rise > 10 * torch.maximum(predicted, rounding))
        return found | {
            TOO_FAR: climbed & (groups.ratios(1.0) > 1).any(),  # with 0.01 every bias near zero would count
            TOO_STEEP: climbed & too_steep,
            TOO_SMALL: climbed & (predicted < rounding),
            UNSEEN: climbed & (predicted >= rounding) & (self.sharpness == 0).to(climbed),
        }

    def _of_mean(self, loss: Tensor) -> Tensor:
        return loss / (math.nan if self.loss_scale is None else self.loss_scale)


class Watch:
    """Counts what is wrong with the measured walks of a run, 20 at a time, and warns once if it is enough."""

    def __init__(self) -> None:
        self.walks = 0
        self.last: Trace | None = None  # the last measured walk
        self._found: list[Tensor] = []
        self._counts: Tensor | None = None  # on their way from the device, until they are read
        self._arrived: torch.Event | None = None
        self._too_steep = self._warned = False

    def __reduce__(self) -> Any:  # copies and pickles begin anew
        return Watch, ()

    @property
    def measures_next(self) -> bool:
        """Whether the next walk is measured in full."""
        return self.walks < SAMPLED or self.walks % SAMPLED == 0

    @torch.no_grad()
    def add(self, trace: Trace) -> None:
        """Count a walk, and judge it if it was measured."""
        self.walks += 1
        if trace.groups is None:
            trace.sampled = self.last
            return
        found = trace.findings()
        self._found.append(torch.stack([found[finding] for finding in CURES]))
        if len(self._found) == SAMPLED:
            counts, self._found = torch.stack(self._found).sum(0), []
            self._counts = counts.to("cpu", non_blocking=True)
            if counts.device.type != "cpu":
                self._arrived = torch.Event(counts.device)
                self._arrived.record()
        if self._counts is not None and (self._arrived is None or self._arrived.query()):
            counted = dict(zip(CURES, self._counts.tolist(), strict=True))
            wrong = [finding for finding, count in counted.items() if count >= ENOUGH.get(finding, SAMPLED)]
            self._counts, self._arrived, self._too_steep = None, None, TOO_STEEP in wrong
            if wrong and not self._warned:
                self._warned = True
                text, count = wrong[0].format(*trace.groups.largest_ratio()), counted[wrong[0]]
                message = f"the walk is {text}, in {count} of {SAMPLED} measured walks: {CURES[wrong[0]]}"
                warnings.warn(message, UserWarning, stacklevel=5)
        self.last, trace.too_steep = trace, self._too_steep
