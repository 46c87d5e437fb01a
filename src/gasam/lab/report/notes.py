"""The sentences below the table of a comparison: a conclusion, warnings, and what differs from the paper."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from gasam.lab.report.frame import shared_settings
from gasam.lab.report.group import Group
from gasam.lab.report.judgement import at_guessing_level, collapsed, never_walked
from gasam.lab.report.labels import duration, in_words, label, named, radius
from gasam.lab.statistics import FEW, Standing

SAID: dict[Standing, str] = {"better": "better", "worse": "worse", "no difference": "no clear difference"}

NAMED = 6
"""The number of methods in one sentence."""


def notes(task: str, size: str, groups: Sequence[Group], flags: str | None) -> list[str]:
    """All of them. `flags` are what `gasam tune` needs to use the same data and settings; None if they are unknown."""
    concluded = [f"Conclusion: {sentence}" for sentence in conclusion(groups)]
    about_methods = [*warnings(groups, flags), *radii(groups), *champion(groups)]
    return [*concluded, *about_methods, *deviations(task, size, groups)]


def page_notes(task: str, size: str, groups: Sequence[Group]) -> list[str]:
    """Those that a page does not have at its top or in its rows."""
    untuned = [group for group in groups if not group.found_on_validation]
    return [*warnings(groups, None), *radii(untuned), *deviations(task, size, groups)]


def conclusion(groups: Sequence[Group]) -> Iterator[str]:
    """What the table shows of GA-SAM, or else of its first method: at equal epochs, and at equal cost if known."""
    walking = [group for group in groups if group.scores and group.method != "baseline"]
    for group in sorted(walking, key=lambda group: group.method != "ga-sam")[:1]:
        found = group.difference(group.baseline)
        if found is None:
            return
        if found.pairs < FEW:
            yield f"{'one seed decides' if found.pairs == 1 else 'two seeds decide'} nothing; use --seeds 4."
            return
        standing = found.standing(group.metric.higher_is_better)
        name = label(group) if group.tuned else group.title
        told = f"no clear difference between {name} and the baseline"
        if standing != "no difference":
            told = f"{name} is {standing} than the baseline"
        unit = group.metric.unit_of_differences
        yield f"{told}: {group.versus(group.baseline)} {unit} over {found.pairs} seeds.{_at_equal_cost(group)}"


def _at_equal_cost(group: Group) -> str:
    found = group.difference(group.longer)
    if group.longer is None or found is None or found.pairs < FEW:
        return ""
    standing = group.standing(group.longer)
    if standing is None or group.longer is group.baseline or group.longer_is_the_same:
        return ""
    opponent = named("longer plain training", duration(group.longer))
    return f" At equal cost, compared with {opponent}: {SAID[standing]}, {group.versus(group.longer)}."


def warnings(groups: Sequence[Group], flags: str | None) -> Iterator[str]:
    """A sentence for each method that collapsed, with the command that looks for a better walk."""
    for group in groups:
        if at_guessing_level(group):
            worthless = group.records[0].worthless  # early records do not have it
            level = "" if worthless is None else f" ({group.metric.name} {group.metric.shown(worthless)})"
            yield f"{label(group)} is no better than guessing{level}."
        if never_walked(group):
            yield f"{label(group)} never walked: its loss did not fall enough for the schedule. Train longer."
        if collapsed(group):
            tune = f"gasam tune {shlex.quote(group.reference)} --method {group.method}{_size_option(group)}"
            cure = "" if flags is None or group.tuned else f": run `{tune}{flags}`, then compare with --tuned"
            yield f"{label(group)} collapsed{cure}."


def _size_option(group: Group) -> str:
    """The option that selects the size of the group; the task of a Python file has only one."""
    task = group.definition
    return "" if task is None or len(task.sizes) == 1 else f" --size {group.size}"


def radii(groups: Sequence[Group]) -> Iterator[str]:
    """Where the sizes of walks come from, and the methods with each size."""
    told: dict[str, dict[str, dict[str, None]]] = {}
    for group in groups:
        if group.method != "baseline":
            told.setdefault("; ".join(group.sources), {}).setdefault(radius(group), {})[group.title] = None
    for source, sizes in told.items():
        walks = [f"{size} ({', '.join(titles)})" for size, titles in sizes.items()]
        yield f"Size of the walk, {source}: {'; '.join(walks)}."


def champion(groups: Sequence[Group]) -> Iterator[str]:
    """GA-SAM minus each other method, with its usual walk and with a tuned one: a sentence for each result."""
    for lead in leads(groups):
        found = contrast(groups, lead)
        for standing, word in SAID.items():
            others = [other for other, each in found if each == standing]
            for first in range(0, len(others), NAMED):
                some = others[first : first + NAMED]
                differences = ", ".join(f"{_beside(lead, other)}: {lead.versus(other)}" for other in some)
                how = f"in {lead.metric.unit_of_differences}, paired by seed, not corrected"
                yield f"{label(lead)} minus other methods {how}: {word} ({differences})."


def leads(groups: Sequence[Group]) -> list[Group]:
    """GA-SAM with its usual walk, and with a tuned one if it has both."""
    found = [group for group in groups if group.usual and group.method == "ga-sam"]
    return [*found[:1], *[group for group in found[1:] if group.tuned and not found[0].tuned][:1]]


def _beside(lead: Group, other: Group) -> str:
    """The name of another method, with its walk if that was tuned and GA-SAM's was not, or the reverse."""
    return other.title if other.tuned == lead.tuned else label(other)


def contrast(groups: Sequence[Group], lead: Group) -> list[tuple[Group, Standing]]:
    """How a group of GA-SAM stands to each other method; of several groups of one method the usual one counts.

    A tuned walk is compared with tuned ones, if the other method has one. Groups with less than three common seeds are
    left out, and so are those in which a run diverged: the remaining seeds would be the lucky ones.
    """
    first: dict[str, Group] = {}
    for group in sorted(groups, key=lambda group: group.tuned != lead.tuned):
        if group.usual and group.method not in ("baseline", "ga-sam"):
            first.setdefault(group.method, group)
    enough = [other for other in first.values() if len(lead.scores.keys() & other.scores) >= FEW]
    return [(other, standing) for other in enough if (standing := lead.standing(other))]


def deviations(task: str, size: str, groups: Sequence[Group]) -> Iterator[str]:
    """What differs from the paper in data and in numbers; the latter from what was run, not from what is planned."""
    if not groups:
        return
    definition = groups[0].definition
    if definition and definition.kind.startswith("twin"):
        yield f"{task} is a {definition.kind}, to try and to test with: it is no evidence."
    records = [record for group in groups for record in group.records]
    data = dict.fromkeys(note.rstrip(".") for record in records for note in record.data.notes)
    yield from (f"Data: {note}." for note in data)
    for copied in [record.remarks["bleu_of_copying"] for record in records if "bleu_of_copying" in record.remarks][:1]:
        yield f"The source itself, copied, has BLEU {copied:.2f}."
    if shared := shared_settings(groups):
        usual = groups[0].settings_of(size)
        yield f"All rows: {in_words(shared)}; size {size} has {in_words({name: usual[name] for name in shared})}."
    if definition and definition.kind == "paper":
        paper = groups[0].settings_of("paper")
        ours = next((group for group in groups if group.usual), groups[0]).all_settings
        if other := {name: value for name, value in ours.items() if name in paper and paper[name] != value}:
            yield f"These runs: {in_words(other)}."
            yield f"Our size paper: {in_words({name: paper[name] for name in other})}."
