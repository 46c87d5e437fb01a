"""Records as a frame with a row a run, and groups of runs that differ in their seed alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from pandas import DataFrame

from gasam.lab import tasks
from gasam.lab.errors import InputError
from gasam.lab.families import Metric
from gasam.lab.methods import METHODS
from gasam.lab.records import DataOfRun, EpsilonSource, RunSummary
from gasam.lab.statistics import Difference, Standing, counted, paired_difference, signed, summary
from gasam.lab.walks import LATER, choose

COLUMNS = ("seed", "valid", "test", "gradient_evaluations", "updates")
RADIUS = {"epsilon", "norm"}
TUNED = RADIUS | {"budget", "cap", "walk_progress"}
"""What a search may set."""
DURATION = {"epochs", "halve_after"}
"""The settings that change with the length of training."""
NEAR = 0.1
"""How far two costs may be apart, as a share, to count as equal."""
FEW = 3
"""With fewer seeds the scores themselves are shown instead of an interval."""


def frame(records: Iterable[RunSummary]) -> DataFrame:
    """Every run once, with its record. What an analysis does not repeat of its run is missing."""
    rows = [
        {name: getattr(record, name, None) for name in COLUMNS}
        | {"group": json.dumps([record.config, record.data.hash], sort_keys=True), "record": record}
        for record in records
    ]
    return DataFrame(rows, columns=[*COLUMNS, "group", "record"]).drop_duplicates(["group", "seed"])


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
        first: RunSummary = self.records[0]
        self.task, self.size, self.method = first.task, first.size, first.method
        self.definition = tasks.of_record(first)
        self.reference = first.task_file.path if first.task_file else first.task
        """What a command must name to use the same task."""
        self.settings, self.walk = first.settings, first.walk
        self.configuration, self.data = first.configuration, first.data.hash
        self.scores = {record.seed: record.test for record in self.records if record.test is not None}
        """The metric on the test split by seed, of the runs that gave a number: the others diverged."""
        self.summary = summary(self.scores.values())
        self.baseline: Group | None = None
        self.longer: Group | None = None
        self.fresh: Group | None = None
        self.apart: dict[str, Any] = {}
        self.usual = True

    @property
    def title(self) -> str:
        return METHODS[self.method].title

    @property
    def metric(self) -> Metric:
        return self.definition.family.metric

    @property
    def followed(self) -> Metric:
        """The metric on the validation split after every epoch."""
        return self.definition.family.followed

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

    def difference(self, other: Group | None, comparisons: int = 1) -> Difference | None:
        """The mean difference with its 95% interval, wider if it is one of several comparisons (Bonferroni)."""
        return paired_difference(self.scores, other.scores, 1 - 0.05 / comparisons) if other else None

    def standing(self, other: Group, comparisons: int = 1) -> Standing | None:
        """None where runs diverged: the seeds that did not are no sample."""
        found = self.difference(other, comparisons)
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
    def _sources(self) -> list[EpsilonSource]:
        return [record.epsilon_source for record in self.records if record.epsilon_source is not None]

    @cached_property
    def sources(self) -> list[str]:
        """Where epsilon comes from: runs with the same number may differ in this."""
        return list(dict.fromkeys(str(record.epsilon_source or "source unknown") for record in self.records))

    @cached_property
    def tuned(self) -> bool:
        """Whether its radius is the one that was found on validation for its method."""
        return any(source.kind == "tuned" and source.multiple is None for source in self._sources)

    @cached_property
    def multiple(self) -> float | None:
        """How many times the tuned radius its own is, where it was chosen to be a multiple of it."""
        found = [source.multiple for source in self._sources if source.multiple is not None]
        return None if self.tuned or not found else found[0]

    @property
    def found_on_validation(self) -> bool:
        return self.tuned or self.multiple is not None

    @cached_property
    def other_settings(self) -> dict[str, Any]:
        """The settings that differ from those of the size."""
        return _changed(self.all_settings, self.settings_of(self.size))

    @property
    def all_settings(self) -> dict[str, Any]:
        """Its settings, with the defaults of those that were added after the first records."""
        return self.definition.family.settings_type.later | self.settings

    def settings_of(self, size: str) -> dict[str, Any]:
        """The settings of a size of its task, in the same form."""
        return self.definition.family.settings_type.later | self.definition.settings(size).recorded()

    def other_walk(self, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What differs from the method's walk on this task, with what a row of the paper overrides in it."""
        try:
            usual = choose(self.method, self.definition, self.settings["epochs"], overrides, self.size).identity()
        except InputError:  # a method that has no radius of its own on this task
            usual = self.walk | {"epsilon": None, "norm": None}
        return _changed(LATER | self.walk, LATER | usual)

    def place(self) -> tuple[float, ...]:
        """In the order of methods; the usual configuration comes first: recommended, then tuned, then the paper's."""
        walk = self.other_walk().keys() - (TUNED if self.found_on_validation else set())
        odd = len(self.other_settings) + len(walk) + (self.multiple is not None)
        trials = max((source.trials or 0 for source in self._sources), default=0)
        recommended = any(source.kind == "recommended" for source in self._sources)
        return list(METHODS).index(self.method), odd, not recommended, not self.tuned, -trials, self.multiple or 0.0


def group_runs(records: Iterable[RunSummary]) -> list[Group]:
    """The groups of one task and size, in the order of a table."""
    runs = frame(records)
    for record in runs["record"]:
        if record.method not in METHODS:
            raise InputError(f"a record's method must be one of {', '.join(METHODS)}, got {record.method!r}")
    groups = sorted((Group(some) for _, some in runs.groupby("group")), key=Group.place)
    shared = shared_settings(groups)
    data_names = names_of_data(group.records[0].data for group in groups)
    for group in groups:
        group.baseline = _baseline_of(group, groups)
        group.longer = as_expensive(group, groups) if group.method != "baseline" else None
        group.fresh = _with_fresh_masks(group, groups)
        own_settings = {name: value for name, value in group.other_settings.items() if name not in shared}
        group.usual = not own_settings
        group.apart = own_settings | ({"data": data_names[group.data]} if len(data_names) > 1 else {})
    return groups


def groups_of(records: Iterable[RunSummary], task: str, size: str) -> list[Group]:
    return group_runs(record for record in records if (record.task, record.size) == (task, size))


def names_of_data(found: Iterable[DataOfRun]) -> dict[str, str]:
    """A name for each data by its hash: the user's files. Data that it does not tell apart has a part of the hash."""
    files = {data.hash: ", ".join(data.files) for data in found}
    told = Counter(files.values())
    return {key: name if told[name] == 1 else f"{name} {key[:8]}".strip() for key, name in files.items()}


def shared_settings(groups: Sequence[Group]) -> dict[str, Any]:
    """What all of them set in the same way, though their size has another value."""
    every = [group.other_settings for group in groups]
    first = every[0] if every else {}
    return {name: value for name, value in first.items() if all(other.get(name, ...) == value for other in every)}


def _baseline_of(group: Group, groups: Sequence[Group]) -> Group | None:
    """A baseline with other settings is compared with the first one."""
    plain = [other for other in groups if other.method == "baseline" and other.data == group.data]
    if group.method == "baseline":
        return plain[0] if plain[0] is not group else None
    alike = [other for other in plain if other.settings == group.settings]
    noise = [other for other in alike if other.walk.get("same_noise") == group.walk.get("same_noise")]
    return next(iter(noise + alike), None)


def _evaluations(group: Group) -> float:
    return group.mean("gradient_evaluations")


def as_expensive(group: Group, groups: Sequence[Group], cost: Callable[[Group], float] = _evaluations) -> Group | None:
    """Of the baselines on the same data that cost about as much the one that validation prefers.

    Args:
        group: Runs of a method.
        groups: All groups of its task and size.
        cost: The cost of a group's runs; NaN if it is not known.
    """
    spent = cost(group)
    equal = [
        other
        for other in groups
        if other.method == "baseline"
        and other.scores
        and other.data == group.data
        and _without(DURATION, other.settings) == _without(DURATION, group.settings)
        and abs(cost(other) / spent - 1) <= NEAR
    ]
    return group.metric.best(equal, lambda other: other.mean("valid")) if equal else None


def _with_fresh_masks(group: Group, groups: Sequence[Group]) -> Group | None:
    if group.method == "baseline" or not group.walk.get("same_noise"):
        return None
    wanted = group.settings, group.walk | {"same_noise": False}, group.data
    return next((other for other in groups if (other.settings, other.walk, other.data) == wanted), None)


def _without(names: Collection[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _changed(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value

    return {
        name: plain(value) for name, value in values.items() if name in usual and plain(value) != plain(usual[name])
    }
