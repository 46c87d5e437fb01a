"""One setting for all tasks: what GA-SAM's walks lose on validation that were not searched for the task.

The regret of a walk on a task is the best mean over seeds of all walks there, plain training included, minus its own
mean, in standard deviations of plain training over seeds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from gasam.lab.report.contents import Contents
from gasam.lab.report.frame import groups_of
from gasam.lab.report.group import TUNED, Group
from gasam.lab.report.labels import CONTROL, radius
from gasam.lab.search.finding import Finding
from gasam.lab.search.question import SEED
from gasam.lab.statistics import Summary, counted, number, summary
from gasam.lab.tables import Table, of_texts
from gasam.lab.tasks import TASKS

RECOMMENDED, PLAIN = "recommended", "plain training"
FEWEST_WALKS, FEWEST_SEEDS = 4, 2
"""Fewer walks of a task say little about which of them is best. Walks with fewer seeds are left out."""


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
    """Of every task that has enough walks, in the first of its sizes that has them: the one nearest to the paper."""
    found = []
    for task, definition in TASKS.items():
        sizes = [size for size in definition.sizes if definition.recommends_walk(size)]
        found += [each for size in sizes if (each := regrets(contents, task, size))][:1]
    return found


def regrets(contents: Contents, task: str, size: str) -> Regrets | None:
    """Of one task and size; None without enough walks, the recommended one, or three seeds of plain training."""
    groups = [group for group in groups_of(contents.records, task, size) if group.usual]
    plain = next((group for group in groups if group.method == "baseline"), None)
    spread = summary([score for score in _valid(plain).values() if score is not None]) if plain else None
    if plain is None or spread is None or spread.seeds < 3 or not spread.std:
        return None
    searches = [
        found for found in contents.findings if (found.task, found.size, found.data) == (task, size, plain.data)
    ]
    walks = _walks([group for group in groups if group.data == plain.data], searches)
    seeds = set.intersection(*(set(_valid(group)) for group in (plain, *walks.values())))
    if RECOMMENDED not in walks or len(set(walks.values())) < FEWEST_WALKS or not seeds:
        return None
    sign = 1 if plain.metric.higher_is_better else -1
    means = {name: _mean(group, seeds, sign) for name, group in {**walks, PLAIN: plain}.items()}
    best = max(means, key=lambda name: means[name])
    if math.isinf(means[best]):
        return None
    lost = {name: (means[best] - mean) / spread.std for name, mean in means.items()}
    return Regrets(task, size, plain.metric.unit_of_differences, len(seeds), spread, best, lost)


def _walks(groups: Sequence[Group], searches: Sequence[Finding]) -> dict[str, Group]:
    """GA-SAM's walks by name. One that a search chose has the name of the search too."""
    found: dict[str, Group] = {}
    for group in groups:
        others = group.method != "ga-sam" or group.other_walk().keys() - TUNED - {"start_epoch"}
        if others or len(group.records) < FEWEST_SEEDS:
            continue
        found[_name(group)] = group
        for search in searches:
            if search.seed == SEED and search.method == "ga-sam" and not search.full_grid and _chose(search, group):
                found.setdefault(f"searched {search.quantity}", group)
    return found


def _name(group: Group) -> str:
    if not group.other_walk():
        return RECOMMENDED
    if group.is_control:
        return radius(group)
    walk = group.walk
    budget, cap = walk.get("budget"), walk.get("cap")
    words = [f"budget {budget:g}" if budget else f"epsilon {walk['epsilon']:g}"]
    words += [] if walk["norm"] == "inf" else [f"L{walk['norm']:g}"]
    words += [f"cap {cap:g}"] if cap else []
    scheduled = walk.get("walk_progress") is not None
    words += [] if scheduled == bool(budget) else ["with a schedule" if scheduled else "without a schedule"]
    return ", ".join(words)


def _chose(search: Finding, group: Group) -> bool:
    best = search.chosen()
    return best is not None and search.settings == group.settings and not group.other_walk(search.options(best))


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
        | {"largest": _told(largest(found, name), "not run on all")}
        for name in names
    ]
    return of_texts("One setting for all tasks: regret in standard deviations", rows, map(_about, found))


def largest(found: Sequence[Regrets], name: str) -> float | None:
    """The largest regret of a walk; None if a task does not have it."""
    every = [each.lost.get(name) for each in found]
    return None if None in every else max(lost for lost in every if lost is not None)


def conclusions(found: Sequence[Regrets]) -> Iterator[str]:
    """What one setting for all tasks costs: the recommended one, the best budget and epsilon, and no walk at all."""
    if len(found) < 2:
        return
    told = {RECOMMENDED: "the recommended walk"}
    for kind in ("budget", "epsilon"):
        every = [name for name in _ordered(found) if name.startswith(kind) and largest(found, name) is not None]
        for best in sorted(every, key=lambda name: largest(found, name) or 0.0)[:1]:
            others = f", the best of {counted(len(every), kind)}" if len(every) > 1 else ""
            told[best] = f"{best}{others}"
    told |= {"searched budget": "a budget searched for each task", PLAIN: "plain training"}
    sentences = [
        f"{words}: {_told(lost)}" for name, words in told.items() if (lost := largest(found, name)) is not None
    ]
    yield (
        f"What does one setting for {len(found)} tasks lose to the best walk of each? At most, in standard deviations "
        f"of plain training over seeds on validation: {'; '.join(sentences)}."
    )


def _ordered(found: Sequence[Regrets]) -> list[str]:
    """The names of all walks: the recommended one, what searches chose, budgets, epsilons, two that move nothing."""
    kinds = (RECOMMENDED, "searched", "budget", "epsilon", CONTROL, PLAIN)
    names = dict.fromkeys(name for each in found for name in each.lost)

    def place(name: str) -> tuple[int, float, str]:
        kind = next(i for i, kind in enumerate(kinds) if name.startswith(kind))
        size = re.search(r"^(?:budget|epsilon) ([^,]+)", name)
        return kind, float(size.group(1)) if size else 0.0, name

    return sorted(names, key=place)


def _told(lost: float | None, missing: str = "not run") -> str:
    if lost is None:
        return missing
    return "diverged" if math.isinf(lost) else number(lost, 1)


def _about(each: Regrets) -> str:
    return (
        f"{each.task}, size {each.size}: {counted(each.seeds, 'seed')}. Plain training has a standard deviation of "
        f"{number(each.spread.std or 0.0, 2)} {each.unit} ({counted(each.spread.seeds, 'seed')}). Best: {each.best}."
    )
