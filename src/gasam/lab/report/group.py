"""A group: the runs of one configuration, which differ in their seed alone, with their scores and their cost."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pandas import DataFrame

from gasam.lab import tasks
from gasam.lab.errors import InputError
from gasam.lab.methods import METHODS, Walks, walk_for
from gasam.lab.record import Metric, Summary
from gasam.lab.statistics import FEW, Difference, Standing, counted, paired_difference, signed, summary

RADIUS = {"epsilon", "norm"}
TUNED = RADIUS | {"budget", "cap", "walk_progress"}
"""What a search may set."""
NEGLIGIBLE = 1e-5
"""A walk with at most this budget moves nothing that matters: what is left of it are its additional passes."""
GroupKey = tuple[str, str]


class Group:
    """Runs of one configuration on the same data: the rows of a frame, by seed.

    Attributes:
        runs: A row a run, by seed.
        baseline: Plain training with the same settings on the same data.
        longer: Of a method, plain training that was as expensive, because it had more epochs.
        fresh: Of a walk with shared dropout masks, the same walk with fresh ones.
        apart: The settings, and the data, that not all groups share.
        usual: All groups share its settings: nothing but the walk sets it apart.

    The last five depend on the other groups, and `group_runs` sets them.
    """

    def __init__(self, runs: DataFrame) -> None:
        self.runs = runs.set_index("seed").sort_index()
        self.records: list[Any] = list(self.runs["record"])
        first: Summary = self.records[0]
        self.task, self.size, self.method = first.task, first.size, first.method
        self.definition = tasks.TASKS.get(first.task)
        self.reference = first.task if self.definition else f"{first.task}.py"
        """What a command must name to use the same task."""
        self.settings, self.walk = first.settings, first.walk
        self.configuration, self.data = first.key, first.data.hash
        self.scores = {record.seed: record.test for record in self.records if record.test is not None}
        """The metric on the test split by seed, of the runs that gave a number: the others diverged."""
        self.summary = summary(self.scores.values())
        self.baseline: Group | None = None
        self.longer: Group | None = None
        self.fresh: Group | None = None
        self.apart: dict[str, Any] = {}
        self.usual = True

    @property
    def key(self) -> GroupKey:
        """What no other group has."""
        return self.configuration, self.data

    @property
    def title(self) -> str:
        return METHODS[self.method].title

    @property
    def metric(self) -> Metric:
        metric: Metric = self.records[0].metric
        return metric

    @property
    def followed(self) -> Metric:
        """The metric on the validation split after every epoch."""
        return self.definition.family.followed if self.definition else self.metric

    @property
    def lost(self) -> set[int]:
        """The seeds of the runs that diverged without a number."""
        return set(self.runs.index) - self.scores.keys()

    @property
    def diverged_later(self) -> int:
        """How many of those with a number diverged after the epoch that validation chose."""
        return sum(record.diverged for record in self.records if record.test is not None)

    def mean(self, column: str) -> float:
        """Over the runs that gave a number, if any did: one that diverged stopped early and looks cheap."""
        ended = self.runs[self.runs["test"].notna()]
        return float((self.runs if ended.empty else ended)[column].mean())

    @property
    def is_control(self) -> bool:
        """Whether its walks move nothing, so that they only average over the dropout masks of their passes."""
        return 0 < (self.walk.get("budget") or 0) <= NEGLIGIBLE

    @property
    def passes(self) -> float | None:
        """Gradient evaluations per update. The first records do not have the updates."""
        updates = self.runs["updates"].fillna(0)
        return float(self.runs["gradient_evaluations"].sum() / updates.sum()) if updates.all() else None

    @property
    def relative_cost(self) -> float | None:
        """Gradient evaluations over those of the baseline."""
        if self.baseline is None or not self.baseline.scores:
            return None
        return self.mean("gradient_evaluations") / self.baseline.mean("gradient_evaluations")

    def difference(self, other: Group | None) -> Difference | None:
        """The mean difference with its 95% interval."""
        return paired_difference(self.scores, other.scores) if other else None

    def standing(self, other: Group) -> Standing | None:
        """None where runs diverged: the seeds that did not are no sample."""
        found = self.difference(other)
        if found is None or self.lost or other.lost or self.data != other.data:
            return None
        return found.standing(self.metric.higher_is_better)

    def versus(self, other: Group | None) -> str:
        """The difference, and the number of common seeds where some are missing. Two seeds have no interval here."""
        found = self.difference(other)
        if found is None:
            return ""
        decimals = self.metric.decimals
        text = signed(found.mean, decimals) if found.pairs < FEW else found.text(decimals)
        return text if found.pairs == len(self.scores) else f"{text} ({counted(found.pairs, 'common seed')})"

    @property
    def longer_is_the_same(self) -> bool:
        """Whether the longer baseline selected the weights that the one with as many epochs has."""
        return self.longer is not None and self.longer is not self.baseline and self.longer.has_scores_of(self.baseline)

    def has_scores_of(self, other: Group | None) -> bool:
        return other is not None and all(other.scores.get(seed) == score for seed, score in self.scores.items())

    @cached_property
    def sources(self) -> list[str]:
        """Who chose the size of the walk: runs with the same number may differ in this."""
        return list(dict.fromkeys(record.walk["source"] for record in self.records))

    @cached_property
    def tuned(self) -> bool:
        """Whether a search chose its walk on validation."""
        return "tuned" in self.sources

    @property
    def found_on_validation(self) -> bool:
        return self.tuned

    @cached_property
    def other_settings(self) -> dict[str, Any]:
        """The settings that differ from those of the size."""
        return _changed(self.settings, self.settings_of(self.size))

    @property
    def all_settings(self) -> dict[str, Any]:
        return self.settings

    def settings_of(self, size: str) -> dict[str, Any]:
        """The settings of a size of its task; of an own task none are known."""
        if self.definition is None:
            return dict.fromkeys(self.settings)
        return self.definition.settings(size).recorded()

    def other_walk(self, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What differs from the method's walk on this task, with what a row of the paper overrides in it."""
        epochs = self.settings["epochs"]
        as_in_paper = overrides is not None or self.walk["epsilon"] is not None
        try:
            walks: Walks | None = "paper" if as_in_paper else None
            usual = walk_for(self.method, self.task, self.size, epochs, walks, **overrides or {}).identity()
        except InputError:  # a method that has no size of its own on this task
            usual = self.walk | {"epsilon": None, "norm": None}
        return _changed(self.walk, usual)

    def place(self) -> tuple[float, ...]:
        """In the order of methods; the usual configuration comes first: recommended, then tuned, then the paper's."""
        walk = self.other_walk().keys() - (TUNED if self.found_on_validation else set())
        odd = len(self.other_settings) + len(walk)
        return list(METHODS).index(self.method), odd, "recommended" not in self.sources, not self.tuned


def _changed(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value

    return {
        name: plain(value) for name, value in values.items() if name in usual and plain(value) != plain(usual[name])
    }
