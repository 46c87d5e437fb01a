"""The order of searches: settings for plain training and then a walk, or settings and walk in one joint search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gasam.lab.report.contents import Contents
from gasam.lab.report.frame import groups_of
from gasam.lab.report.group import Group
from gasam.lab.search.settings_finding import SettingsFinding
from gasam.lab.statistics import number
from gasam.lab.tables import Table, of_texts


class Way(NamedTuple):
    """Runs, and how their settings and their walk were chosen."""

    settings: str
    walk: str
    runs: Group


def order_table(contents: Contents, joint: SettingsFinding) -> Table | None:
    """Both orders beside each other; None if what the joint search chose was not trained with other seeds."""
    together = list(_together(contents, joint))
    in_turn = list(_in_turn(contents, joint))
    if not together or not in_turn:
        return None
    plain = in_turn[0].runs
    metric = plain.metric
    rows = [
        {
            "settings": way.settings,
            "walk": way.walk,
            f"validation {metric.name}": number(way.runs.mean("valid"), metric.decimals),
            f"test {metric.name}": way.runs.summary.text(metric.decimals) if way.runs.summary else "diverged",
            "test, vs the first row": "" if way.runs is plain else way.runs.versus(plain),
            "gradient evaluations": f"{way.runs.mean('gradient_evaluations'):,.0f}",
        }
        for way in (*in_turn, *together)
    ]
    return of_texts("Does the order of the searches matter?", rows)


def _in_turn(contents: Contents, joint: SettingsFinding) -> Iterator[Way]:
    """Plain training with the settings that were searched for it, and the walks at these settings."""
    size = joint.definition.recorded_size()
    usual = [group for group in groups_of(contents.records, joint.task, size) if group.usual]
    settings = f"size {size}, searched for plain training"
    for group in usual:
        if group.method == "baseline":
            yield Way(settings, "none", group)
        elif group.method == joint.method and not group.other_walk():
            yield Way(settings, "recommended", group)
        elif group.method == joint.method and group.tuned and group.walk.get("budget"):
            yield Way(settings, "searched afterwards", group)


def _together(contents: Contents, joint: SettingsFinding) -> Iterator[Way]:
    """The settings of the joint search, with its walk and without any."""
    best = joint.chosen()
    if best is None:
        return
    walk = joint.walk(best)
    for group in groups_of(contents.records, joint.task, joint.size):
        wanted = joint.definition.settings(joint.size, **joint.settings_of(best)).recorded()
        if group.all_settings != group.definition.family.settings_type.later | wanted:
            continue
        if group.method == "baseline":
            yield Way("searched with the walk", "none", group)
        elif group.method == joint.method and walk.items() <= group.walk.items():
            yield Way("searched with the walk", "searched with the settings", group)
