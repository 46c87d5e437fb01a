"""Records as a frame with a row a run, and their groups, each beside the baselines that it is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pandas import DataFrame

from gasam.lab.errors import InputError
from gasam.lab.methods import METHODS
from gasam.lab.record import DataOfRun, Summary
from gasam.lab.report.group import Group

COLUMNS = ("seed", "valid", "test", "gradient_evaluations", "updates")
DURATION = {"epochs", "halve_after"}
"""The settings that change with the length of training."""
NEAR = 0.1
"""How far two costs may be apart, as a share, to count as equal."""


def frame(records: Iterable[Summary]) -> DataFrame:
    """Every run once, with its record. What an analysis does not repeat of its run is missing."""
    rows = [
        {name: getattr(record, name, None) for name in COLUMNS} | {"group": record.key, "record": record}
        for record in records
    ]
    return DataFrame(rows, columns=[*COLUMNS, "group", "record"]).drop_duplicates(["group", "seed"])


def group_runs(records: Iterable[Summary]) -> list[Group]:
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


def groups_of(records: Iterable[Summary], task: str, size: str) -> list[Group]:
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
        and _same_but_duration(other, group)
        and abs(cost(other) / spent - 1) <= NEAR
    ]
    return group.metric.best(equal, lambda other: other.mean("valid")) if equal else None


def with_longer_baselines(groups: Sequence[Group], step_times: Mapping[str, float]) -> dict[str, float]:
    """Step times by configuration, also of plain training that differs from a measured one only in its length."""
    plain = [group for group in groups if group.method == "baseline"]
    measured = [group for group in plain if group.configuration in step_times]
    others = {
        group.configuration: step_times[known.configuration]
        for group in plain
        for known in measured
        if _same_but_duration(group, known)
    }
    return {**others, **step_times}


def _same_but_duration(one: Group, other: Group) -> bool:
    return _without(DURATION, one.settings) == _without(DURATION, other.settings)


def _with_fresh_masks(group: Group, groups: Sequence[Group]) -> Group | None:
    if group.method == "baseline" or not group.walk.get("same_noise"):
        return None
    wanted = group.settings, group.walk | {"same_noise": False}, group.data
    return next((other for other in groups if (other.settings, other.walk, other.data) == wanted), None)


def _without(names: Collection[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
