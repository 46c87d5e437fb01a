"""Two budgets side by side: the baseline with as many epochs, and the baseline with as many gradient evaluations."""

from __future__ import annotations

from collections.abc import Sequence

from gasam.lab.records import RunRecord
from gasam.lab.report import cells
from gasam.lab.report.groups import Group, baseline_of, grouped, labels
from gasam.lab.report.statistics import paired_difference
from gasam.lab.report.verdicts import Standing, standing
from gasam.lab.tables import Table
from gasam.lab.tasks import find

BUDGET = ("epochs", "halve_after")
"""The settings that follow how long the baseline may train."""
NEAR = 0.1
"""How far two numbers of gradient evaluations may be apart, as a share, to count as equal."""
COLUMNS = (
    "method",
    "test",
    "vs baseline, equal epochs [95% interval]",
    "vs baseline, equal gradient evaluations [95% interval]",
    "gradient evaluations",
    "of that baseline",
)


def budget_table(records: Sequence[RunRecord], task: str, size: str) -> Table | None:
    """A row for each method that has a baseline with its settings; None where no baseline was ever trained longer."""
    groups = grouped(record for record in records if (record.task, record.size) == (task, size))
    names = dict(zip(map(id, groups), labels(groups), strict=True))
    plain = next((group for group in groups if group.method == "baseline"), None)
    longer = [group for group in groups if plain and _trained_longer(group, plain)]
    if plain is None or not longer:
        return None
    first: dict[str, Group] = {}
    for group in groups:
        if group.method != "baseline" and baseline_of(group, groups) is plain:
            first.setdefault(group.method, group)
    rows = [_row(group, names[id(group)], plain, groups) for group in first.values()]
    notes = [_baselines(each, names[id(each)], plain, names[id(plain)]) for each in longer]
    notes += [_trained_as_long(group, names, groups) for group in groups if baseline_of(group, groups) in longer]
    if "ga-sam" in first:
        notes.insert(0, _answer(first["ga-sam"], names, plain, groups))
    return Table(f"{task}, size {size}: two budgets", COLUMNS, tuple(rows), tuple(filter(None, notes)))


def as_dear(group: Group, groups: Sequence[Group]) -> Group | None:
    """Of the baselines on the same data with about as many gradient evaluations the one that validation prefers."""
    spent = cells.mean(group, "gradient_evaluations")
    equal = [
        other
        for other in groups
        if other.method == "baseline"
        and other.scores
        and other.data == group.data
        and _but_budget(other) == _but_budget(group)
        and abs(cells.mean(other, "gradient_evaluations") / spent - 1) <= NEAR
    ]
    higher = find(group.task).family.metric.higher_is_better
    return max(equal, key=lambda other: cells.mean(other, "valid") * (1 if higher else -1), default=None)


def answer(equal_epochs: Standing | None, equal_evaluations: Standing | None) -> str:
    """Whether a method wins even if the baseline may spend as much: it must beat the short one and the long one."""
    if "worse" in (equal_epochs, equal_evaluations):
        return "no"
    return "yes" if equal_epochs == equal_evaluations == "better" else "undecided"


def _row(group: Group, name: str, plain: Group, groups: Sequence[Group]) -> tuple[str, ...]:
    rich = as_dear(group, groups)
    spent = [f"{cells.mean(each, 'gradient_evaluations'):,.0f}" if each else "" for each in (group, rich)]
    second = "not run" if rich is None else cells.difference(group, rich).text or "no common seed"
    return name, cells.result(group).text, cells.difference(group, plain).text, second, *spent


def _answer(group: Group, names: dict[int, str], plain: Group, groups: Sequence[Group]) -> str:
    asked = f"Does {names[id(group)]} still win when the baseline may spend as much?"
    rich = as_dear(group, groups)
    if rich is None:
        spent = cells.mean(group, "gradient_evaluations")
        return f"{asked} Not run: no baseline spent about {spent:,.0f} gradient evaluations."
    short, long = (_in_words(group, each) for each in (plain, rich))
    higher = find(group.task).family.metric.higher_is_better
    lucky = any(each.silent for each in (group, plain, rich))  # the seeds that did not diverge are no sample
    word = answer(
        *(None if lucky else standing(paired_difference(group.scores, each.scores), higher) for each in (plain, rich))
    )
    return f"{asked} {word.capitalize()}: {short} to {names[id(plain)]}, {long} to {names[id(rich)]}."


def _baselines(longer: Group, name: str, plain: Group, usual: str) -> str:
    if _chosen(longer) == _chosen(plain):
        return (
            f"{name} took the same epochs as {usual} with every seed: it is the same model. To train longer did not "
            "help, and what is compared with it is compared with the same weights twice."
        )
    found = cells.difference(longer, plain).text
    return f"{name} has {cells.result(longer).text}, {_in_words(longer, plain)} to {usual}." if found else ""


def _trained_as_long(group: Group, names: dict[int, str], groups: Sequence[Group]) -> str:
    """A method that was trained for more epochs itself, beside the baseline with as many."""
    plain = baseline_of(group, groups)
    assert plain is not None
    return f"{names[id(group)]} has {cells.result(group).text}, {_in_words(group, plain)} to {names[id(plain)]}."


def _chosen(group: Group) -> dict[int, tuple[object, ...]]:
    """By seed the epoch that validation chose, and what came of it."""
    return {run.seed: (run.best_epoch, run.valid, run.test) for run in group.runs}


def _in_words(group: Group, other: Group) -> str:
    """The difference and what its interval carries."""
    found = paired_difference(group.scores, other.scores)
    if found is None:
        return "no common seed"
    carried = standing(found, find(group.task).family.metric.higher_is_better) or "one seed carries nothing"
    return f"{cells.difference(group, other).text} ({carried})"


def _trained_longer(group: Group, plain: Group) -> bool:
    alike = group.method == "baseline" and group.data == plain.data and _but_budget(group) == _but_budget(plain)
    return alike and bool(group.settings["epochs"] > plain.settings["epochs"])


def _but_budget(group: Group) -> dict[str, object]:
    return {name: value for name, value in group.settings.items() if name not in BUDGET}
