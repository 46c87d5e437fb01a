"""The order of searches: settings for plain training and then a walk, or settings and walk in one joint search."""

from __future__ import annotations

from typing import NamedTuple

from gasam.lab.report.comparison import score_cell
from gasam.lab.report.contents import Contents
from gasam.lab.report.frame import groups_of
from gasam.lab.report.group import Group
from gasam.lab.search.settings_finding import SettingsFinding
from gasam.lab.statistics import number
from gasam.lab.tables import Table, of_texts

NONE, RECOMMENDED = "none", "recommended"


class ChosenRuns(NamedTuple):
    """Runs with other seeds than the searches, and how their settings and their walk were chosen."""

    settings: str
    walk: str
    runs: Group


def order_table(contents: Contents, joint: SettingsFinding) -> Table | None:
    """Both orders beside each other; None if the settings for plain training or the joint choice have no runs."""
    in_turn, at_once = _in_turn(contents, joint), _at_once(contents, joint)
    plain = next((each.runs for each in in_turn if each.walk == NONE), None)
    if plain is None or not at_once:
        return None
    recommended = next((each.runs for each in in_turn if each.walk == RECOMMENDED), None)
    unit, metric = plain.metric.unit_of_differences, plain.metric

    def versus(runs: Group, other: Group | None) -> str:
        return "" if runs in (plain, other) else runs.versus(other)

    rows = [
        {
            "settings": each.settings,
            "walk": each.walk,
            f"validation, {metric.name}": number(each.runs.mean("valid"), metric.decimals),
            f"test, {metric.name}": score_cell(each.runs).text,
            f"vs the first row, {unit}": versus(each.runs, plain),
            f"vs the recommended walk, {unit}": versus(each.runs, recommended),
        }
        for each in (*in_turn, *at_once)
    ]
    return of_texts("Does the order of the searches matter?", rows, [_cost(contents, joint)])


def _in_turn(contents: Contents, joint: SettingsFinding) -> list[ChosenRuns]:
    """Plain training with the settings that were searched for it, and the walks at these settings."""
    if _search_of_baseline(contents, joint) is None:
        return []
    size, chosen = joint.definition.default_size, []
    for group in groups_of(contents.records, joint.task, size):
        if not group.usual or group.data != joint.data:
            continue
        if group.method == "baseline":
            chosen.append(ChosenRuns(f"of {size}", NONE, group))
        elif group.method == joint.method and not group.other_walk():
            chosen.append(ChosenRuns(f"of {size}", RECOMMENDED, group))
        elif group.method == joint.method and group.tuned and group.walk.get("budget"):
            chosen.append(ChosenRuns(f"of {size}", "searched afterwards", group))
    return chosen


def _at_once(contents: Contents, joint: SettingsFinding) -> list[ChosenRuns]:
    """The settings of the joint search, with its walk and without any."""
    best, chosen = joint.chosen(), []
    if best is None:
        return []
    wanted = joint.definition.settings(joint.size, **joint.settings_of(best)).recorded()
    for group in groups_of(contents.records, joint.task, joint.size):
        if group.data != joint.data or group.all_settings != group.definition.family.settings_type.later | wanted:
            continue
        if group.method == "baseline":
            chosen.append(ChosenRuns("of the joint search", NONE, group))
        elif group.method == joint.method and not group.other_walk(joint.walk(best)):
            chosen.append(ChosenRuns("of the joint search", "of the joint search", group))
    return chosen


def _search_of_baseline(contents: Contents, joint: SettingsFinding) -> SettingsFinding | None:
    """The search for plain training whose choice became the newest size of the task."""
    newest = joint.definition.settings(joint.definition.default_size)
    for found in contents.settings:
        best = found.chosen()
        if (found.task, found.method, found.data) != (joint.task, "baseline", joint.data) or best is None:
            continue
        if found.definition.settings(found.size, **found.settings_of(best)) == newest:
            return found
    return None


def _cost(contents: Contents, joint: SettingsFinding) -> str:
    """The gradient evaluations of the joint search, and of those for settings and walk in turn."""
    settings, size = _search_of_baseline(contents, joint), joint.definition.default_size
    walks = [
        found.gradient_evaluations
        for found in contents.findings
        if (found.task, found.size, found.method, found.quantity) == (joint.task, size, joint.method, "budget")
    ]
    in_turn = (settings.gradient_evaluations if settings else 0) + sum(walks)
    return (
        f"The joint search took {joint.gradient_evaluations:,} gradient evaluations; the search for settings of plain "
        f"training and the search for the walk took {in_turn:,} together."
    )
