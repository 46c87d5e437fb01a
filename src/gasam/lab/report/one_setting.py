"""One setting for all tasks: what GA-SAM's walks lose on validation that were not searched for the task.

The regret of a walk on a task is the best mean over seeds of all walks there, plain training included, minus its own
mean, in standard deviations of plain training over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from gasam.lab.report.contents import Contents
from gasam.lab.report.frame import TUNED, Group, groups_of
from gasam.lab.search.finding import Finding
from gasam.lab.statistics import Summary, counted, number, summary
from gasam.lab.tables import Table, of_texts
from gasam.lab.tasks import TASKS

RECOMMENDED, PLAIN = "recommended", "plain training"
FEWEST_WALKS = 4
"""A task with fewer walks in one size says little about which of them is best."""


class Regrets(NamedTuple):
    """What each walk loses on a task, in standard deviations; infinite if it diverged. `best` loses nothing."""

    task: str
    size: str
    unit: str
    seeds: int
    spread: Summary
    best: str
    lost: Mapping[str, float]


def all_regrets(contents: Contents) -> list[Regrets]:
    """Of every task that has enough walks, in the newest size that has them."""
    found = []
    for task, definition in TASKS.items():
        sizes = [size for size in definition.sizes if definition.recommends_walk(size)]
        found += [each for size in sizes if (each := regrets(contents, task, size))][:1]
    return found


def regrets(contents: Contents, task: str, size: str) -> Regrets | None:
    """Of one task and size; None without enough walks, the recommended one, or three seeds of plain training."""
    groups = [group for group in groups_of(contents.records, task, size) if group.usual]
    plain = next((group for group in groups if group.method == "baseline"), None)
    walks = _walks(groups, [found for found in contents.findings if (found.task, found.size) == (task, size)])
    if plain is None or RECOMMENDED not in walks or len(walks) < FEWEST_WALKS:
        return None
    spread = summary([score for score in _valid(plain).values() if score is not None])
    if spread is None or spread.seeds < 3 or not spread.std:
        return None
    seeds = set.intersection(*(set(_valid(group)) for group in (plain, *walks.values())))
    sign = 1 if plain.metric.higher_is_better else -1
    means = {name: _mean(group, seeds, sign) for name, group in {**walks, PLAIN: plain}.items()}
    best = max(means, key=lambda name: means[name])
    lost = {name: (means[best] - mean) / spread.std for name, mean in means.items()}
    return Regrets(task, size, plain.metric.unit_of_differences, len(seeds), spread, best, lost)


def _walks(groups: Sequence[Group], findings: Sequence[Finding]) -> dict[str, Group]:
    """GA-SAM's walks by name. One that a search chose has the name of the search too."""
    found = {}
    for group in groups:
        if group.method != "ga-sam" or group.other_walk().keys() - TUNED:
            continue
        found[_name(group)] = group
        for search in findings:
            if search.method == "ga-sam" and not search.full_grid and _chosen_by(search, group):
                found[f"searched {search.quantity}"] = group
    return found


def _name(group: Group) -> str:
    if not group.other_walk():
        return RECOMMENDED
    budget, cap = group.walk.get("budget"), group.walk.get("cap")
    size = f"budget {budget:g}" if budget else f"epsilon {group.walk['epsilon']:g}"
    norm = "" if group.walk["norm"] == "inf" else f", L{group.walk['norm']:g}"
    return size + norm + (f", cap {cap:g}" if cap else "")


def _chosen_by(search: Finding, group: Group) -> bool:
    best = search.chosen()
    if best is None or search.settings != group.settings:
        return False
    options = search.options(best)
    norm = "inf" if math.isinf(options["norm"]) else options["norm"]
    return all(group.walk.get(name) == value for name, value in (options | {"norm": norm}).items())


def _valid(group: Group) -> dict[int, float | None]:
    return {record.seed: record.valid for record in group.records}


def _mean(group: Group, seeds: set[int], sign: int) -> float:
    """The mean over seeds, times `sign`; minus infinity if one of the runs diverged."""
    scores = [_valid(group)[seed] for seed in seeds]
    return -math.inf if None in scores else fmean(sign * score for score in scores if score is not None)


def one_setting_table(found: Sequence[Regrets]) -> Table:
    """A row for each walk that at least two tasks have, a column for each task."""
    names = [name for name in _ordered(found) if sum(name in each.lost for each in found) > 1]
    rows = [
        {"walk": name}
        | {each.task: _told(each.lost.get(name)) for each in found}
        | {"largest": _told(largest(found, name))}
        for name in names
    ]
    return of_texts("One setting for all tasks: regret in standard deviations", rows, map(_about, found))


def largest(found: Sequence[Regrets], name: str) -> float | None:
    """The largest regret of a walk; None if a task does not have it."""
    every = [each.lost.get(name) for each in found]
    return None if None in every else max(lost for lost in every if lost is not None)


def conclusions(found: Sequence[Regrets]) -> Iterator[str]:
    """What one setting for all tasks costs: the recommended one, the best epsilon, and no walk at all."""
    if len(found) < 2:
        return
    epsilons = [name for name in _ordered(found) if name.startswith("epsilon") and largest(found, name) is not None]
    best = min(epsilons, key=lambda name: largest(found, name) or 0.0, default=None)
    told = {RECOMMENDED: "the recommended walk", best: f"the best of {counted(len(epsilons), 'epsilon')}"}
    told |= {"searched budget": "a budget searched for each task", PLAIN: "plain training"}
    sentences = [
        f"{words} {_told(lost)}"
        for name, words in told.items()
        if name is not None and (lost := largest(found, name)) is not None
    ]
    yield (
        f"One setting for {len(found)} tasks: the largest regret, in standard deviations of plain training over "
        f"seeds on validation: {', '.join(sentences)}."
    )


def _ordered(found: Sequence[Regrets]) -> list[str]:
    """The names of all walks: the recommended one, what searches chose, budgets, epsilons, plain training."""
    kinds = (RECOMMENDED, "searched", "budget", "epsilon", PLAIN)
    names = dict.fromkeys(name for each in found for name in each.lost)
    return sorted(names, key=lambda name: (next(i for i, kind in enumerate(kinds) if name.startswith(kind)), name))


def _told(lost: float | None) -> str:
    if lost is None:
        return "not run"
    return "diverged" if math.isinf(lost) else number(lost, 1)


def _about(each: Regrets) -> str:
    return (
        f"{each.task}, size {each.size}: {counted(each.seeds, 'seed')}. Plain training has a standard deviation of "
        f"{number(each.spread.std or 0.0, 2)} {each.unit} ({counted(each.spread.seeds, 'seed')}). Best: {each.best}."
    )
