"""How much of a metric is left when the weights are corrupted, radius by radius: table 4, and on to collapse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Real

import torch
from torch import Tensor, nn

from gasam.analysis.attack import attack, passes_of, plain
from gasam.analysis.corruption import applied, length, random_corruption
from gasam.analysis.curve import Curve, Point
from gasam.analysis.objective import Batches, Objective, examined, propagate
from gasam.analysis.values import Watch, check_number, check_radius, check_whole

TABLE4: dict[float, tuple[float, ...]] = {2.0: (0.05, 0.1, 0.2), math.inf: (1e-4, 2e-4, 5e-4)}
START, SMALLEST, LARGEST = 1e-3, 1e-7, 1.0  # radii of the search, relative to the weights

Metric = Callable[[nn.Module], float]


def robustness(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    metric: Metric,
    radii: Iterable[float] | None,
    norm: float = 2.0,
    *,
    higher_is_better: bool,
    floor: float = 0.0,
    steps: int = 10,
    restarts: int = 1,
    draws: int = 3,
    factor: float = 2.0,
    known: Iterable[Point] = (),
    seed: int = 0,
    watch: Watch | None = None,
    keep: Callable[[Point], None] | None = None,
) -> Curve:
    """Attack and corrupt at random at each radius, and take loss and `metric(model)` there, in eval mode, no gradients.

    With radii None they are searched among the powers of `factor`, so that two models are measured at the same ones:
    first the one nearest to the p-norm of an offset with entries +-c that has a thousandth of the weights' 2-norm,
    c = |w|_2 / (1000 sqrt(n)). From there up, until the adversarial metric has
    collapsed (`Curve.collapsed`) or the offset would be as long as the weights; down, while no more than half the
    metric is kept, to 1e-7 of the weights.

    Where higher is better, shares of the metric are of what lies above `floor`: the accuracy of guessing, say.

    `keep` gets every point when it is measured; `known` takes such points of the same options back, and they are not
    measured again. `watch` counts the evaluations of one radius. Random directions are the same at every radius.
    """
    plain(1.0, norm, steps)  # says what is wrong with them before anything is measured
    for name, value in (("restarts", restarts), ("draws", draws), ("seed", seed)):
        check_whole(name, value, 0)
    check_number("factor", factor, "> 1", lambda value: value > 1)
    check_number("floor", floor, "", lambda value: True)
    found = {point.radius: point for point in known}
    probe = _Probe(model, objective, batches, metric, norm, steps, restarts, draws, seed, watch)
    wanted = None if radii is None else _checked(radii)
    with examined(model, batches) as weights:
        loss = propagate(model, objective, batches)
        clean = Curve(norm, higher_is_better, steps, restarts, draws, loss, probe.judge(), (), floor)

        def measure(radius: float) -> Point:
            same = next((point for at, point in found.items() if math.isclose(at, radius, rel_tol=1e-6)), None)
            if same is None:
                same = found[radius] = probe.measure(radius)
                if keep is not None:
                    keep(same)
            return same

        for radius in wanted or ():
            measure(radius)
        if wanted is None:
            _search(clean, measure, _relative_radius(weights.values(), norm), factor)
    points = tuple(found[radius] for radius in sorted(found))
    return replace(clean, points=points)


@dataclass(frozen=True)
class _Probe:
    """Measures one radius."""

    model: nn.Module
    objective: Objective
    batches: Batches
    metric: Metric
    norm: float
    steps: int
    restarts: int
    draws: int
    seed: int
    watch: Watch | None

    def measure(self, radius: float) -> Point:
        ball = plain(radius, self.norm, self.steps)
        walked = passes_of(ball, self.restarts)
        total = walked + 1 + 2 * self.draws

        def watch(done: int, of: int = 0) -> None:
            if self.watch is not None:
                self.watch(done, total)

        found = attack(
            self.model, self.objective, self.batches, ball, restarts=self.restarts, seed=self.seed, watch=watch
        )
        with found.applied(self.model):
            metric = self.judge()
        watch(walked + 1)
        random: list[tuple[float, float]] = []
        for draw in range(self.draws):
            with applied(self.model, random_corruption(self.model, radius, self.norm, seed=self.seed + draw)):
                random.append((propagate(self.model, self.objective, self.batches), self.judge()))
            watch(walked + 3 + 2 * draw)
        losses, metrics = zip(*random, strict=True) if random else ((), ())
        return Point(radius, found.loss, metric, _mean(losses), _mean(metrics))

    @torch.no_grad()
    def judge(self) -> float:
        value = self.metric(self.model)
        self.model.eval()  # a metric may have left it otherwise
        if isinstance(value, Tensor) and value.numel() == 1:
            return float(value)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"metric must return a number, got {type(value).__name__}: return float(..) of it")
        return float(value)


def _search(clean: Curve, measure: Callable[[float], Point], unit: float, factor: float) -> None:
    """Measure up to collapse, and down to where more than half is kept; `unit` is the radius of the weights' size."""
    if math.isnan(clean.kept(1.0)):
        raise ValueError(
            f"radii must be given where the clean metric is {clean.clean_metric:g}: a search asks what share is kept"
        )
    if not unit > 0:
        raise ValueError("radii must be given for weights that are all zero: a search begins at a share of their norm")

    def ladder(radius: float, by: float) -> Iterator[float]:
        while SMALLEST * unit <= radius * (1 + 1e-9) and radius <= LARGEST * unit * (1 + 1e-9):
            yield radius
            radius *= by

    first = factor ** round(math.log(START * unit, factor))
    for radius in ladder(first, factor):
        if clean.collapsed(measure(radius)):
            break
    for radius in ladder(first, 1 / factor):
        if clean.kept(measure(radius).metric) > 0.5:
            break


def _relative_radius(weights: Iterable[Tensor], norm: float) -> float:
    """|w|_2 n^(1/p - 1/2): the p-norm of an offset with entries +-c that is as long as the weights."""
    tensors = list(weights)
    count = sum(tensor.numel() for tensor in tensors)
    return float(length(tensors, 2.0) * count ** ((0 if norm == math.inf else 1 / norm) - 0.5))


def _checked(radii: Iterable[float]) -> list[float]:
    if not isinstance(radii, Iterable):
        raise TypeError(f"radii must be a list of numbers > 0, or None to search for them, got {radii!r}")
    wanted = list(radii)
    if not wanted:
        raise ValueError("radii is empty: give at least one radius > 0, or None to search for them")
    for radius in wanted:
        check_radius(radius, "a radius of radii")
    return wanted


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None
