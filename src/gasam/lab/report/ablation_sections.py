"""The sections about ablations: GA-SAM with another T, number of steps or size of the walk, as in Tables 2 and 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from gasam.lab.methods import ABLATIONS
from gasam.lab.paper import studies
from gasam.lab.records import RunRecord
from gasam.lab.report.comparison import described, score_cell
from gasam.lab.report.contents import Contents
from gasam.lab.report.frame import groups_of
from gasam.lab.report.group import TUNED, Group, GroupKey
from gasam.lab.report.labels import radius
from gasam.lab.report.section import Section, origin
from gasam.lab.statistics import number
from gasam.lab.tables import markdown, of_texts
from gasam.lab.tasks import TASKS

SCALE, STEPS, SIZE = "T, its granularity and the risk", "the number of steps", "the size of the walk"
"""The questions of Table 2 and of Table 3."""
DISPLACEMENT = "two passes without a displacement"
"""A question of ours: would GA-SAM gain as much if it only averaged over the dropout masks of its passes?"""
TABLE_2_OPTIONS = {"scale", "granularity", "risk"}
"""What the rows of Table 2 change."""


class Part(NamedTuple):
    """The answer to one question.

    Args:
        task: The task.
        size: The size, as records name it.
        question: One of the questions above, or the first of them at another size of the walk.
        lead: What the variants are compared with: GA-SAM's recommended walk, or else the tuned one. A second table
            of T has GA-SAM with another size of the walk.
        groups: Plain training, GA-SAM and its variants, in the order of the table.
        ablations: Those of them that no other page shows.
    """

    task: str
    size: str
    question: str
    lead: Group | None
    groups: list[Group]
    ablations: list[Group]

    @property
    def heading(self) -> str:
        """It names task and size, so that headings differ."""
        return f"{self.question[0].upper()}{self.question[1:]}: {self.task}, size {self.size}"

    @property
    def others(self) -> list[Group]:
        return [group for group in self.groups if group.method != "baseline" and group is not self.lead]

    def name_of(self, group: Group) -> str:
        """As the paper's tables name the row."""
        if group.is_control:
            return "Control"
        if group.method == "ga-sam" and self.question == STEPS:
            return f"K = {group.walk['steps']}"
        return _table2_names().get(group.method, group.title)

    def full_name_of(self, group: Group) -> str:
        """With the size of its walk, if that is not the size of the reference."""
        name, lead = self.name_of(group), self.lead
        if group.is_control:
            return name
        is_of_lead = lead is not None and _differing(group, lead) <= TABLE_2_OPTIONS | {"steps"}
        return name if is_of_lead else f"{name} ({_size_of_walk(group)})"

    def versus_lead(self, group: Group) -> str:
        if group is self.lead:
            return "reference"
        return group.versus(self.lead) if group.method != "baseline" else ""


def parts_of(groups: Sequence[Group]) -> Iterator[Part]:
    """The questions that the groups of one task and size ask, on the data of the first of them."""
    if not groups:
        return
    usual = [group for group in groups if group.usual and group.data == groups[0].data]
    plain = [group for group in usual if group.method == "baseline"][:1]
    walks = [group for group in usual if group.method == "ga-sam"]
    references = [group for group in walks if not _changed(group)]

    first = next(iter(references), None)
    controls = [group for group in walks if group.is_control and _is_another_size(group)]
    sizes = [group for group in walks if not group.is_control and _is_another_size(group)]

    def part(question: str, rows: list[Group], found: list[Group], lead: Group | None = first) -> Iterator[Part]:
        if found:
            yield Part(groups[0].task, groups[0].size, question, lead, rows, found)

    variants = [group for group in usual if group.method in _table2_names()]
    in_table_2 = [group for group in variants if _is_row_of_table_2(group)]
    yield from part(SCALE, in_table_2, [group for group in in_table_2 if group.method in ABLATIONS])
    for lead in (group for group in (*references, *sizes) if first and _differing(group, first)):
        others = [group for group in variants if group is lead or group.method != "ga-sam"]
        rows = [group for group in others if _differing(group, lead) <= TABLE_2_OPTIONS]
        found = [group for group in rows if group is not lead and not group.tuned]
        yield from part(f"{SCALE} at {radius(lead)}", [*plain, *rows], found, lead)
    pairs = [(group, other) for group in walks for other in (*references, *sizes) if _has_other_steps(group, other)]
    steps = [group for group in walks if group in [longer for longer, _ in pairs]]
    beside = [group for group in walks if group in references or group in [other for _, other in pairs]]
    yield from part(STEPS, [*plain, *sorted([*beside, *steps], key=_place)], steps)
    yield from part(SIZE, [*plain, *sorted([*references, *sizes], key=_place)], sizes)
    yield from part(DISPLACEMENT, [*plain, *controls, *references[:1]], controls)


def ablations_among(groups: Sequence[Group]) -> set[GroupKey]:
    """The keys of all ablations of one task and size."""
    return {group.key for part in parts_of(groups) for group in part.ablations}


def ablation_parts(records: Sequence[RunRecord]) -> Iterator[Part]:
    """The questions that were asked, by task and size."""
    for task, definition in TASKS.items():
        for size in definition.sizes:
            yield from parts_of(groups_of(records, task, size))


def ablation_sections(contents: Contents) -> Iterator[Section]:
    """A section for each task and size, with a table for each question."""
    found: dict[tuple[str, str], list[Part]] = {}
    for part in ablation_parts(contents.evidence):
        found.setdefault((part.task, part.size), []).append(part)
    remarked = set[str]()
    for (task, size), parts in found.items():
        runs = {record.identity: record for part in parts for group in part.groups for record in group.records}
        tables = [text for part in parts for text in (f"### {part.heading}", _table(part))]
        remark = "" if task in remarked else contents.comment("ablations", task)
        remarked.add(task)
        yield Section(f"{task}, size {size}", [remark, *tables, origin(list(runs.values()), "run")])


def _table(part: Part) -> str:
    metric = part.groups[0].metric
    unit = metric.unit_of_differences
    rows = [
        {
            "variant": part.name_of(group),
            "size of the walk": "" if group.method == "baseline" else _size_of_walk(group),
            described(metric): score_cell(group).text,
            **({"validation": _validation(group)} if part.question == DISPLACEMENT else {}),
            f"vs baseline, {unit} [95% interval]": group.versus(group.baseline),
            f"vs GA-SAM, {unit} [95% interval]": part.versus_lead(group),
            "predicted rise": _predicted_rise(group),
            "passes a step": "" if group.passes is None else f"{group.passes:.2f}",
        }
        for group in part.groups
    ]
    return markdown(of_texts("", rows))


def _validation(group: Group) -> str:
    """The mean on validation of the epochs that it chose: a second opinion on a small difference."""
    return number(group.mean("valid"), group.metric.decimals)


def _size_of_walk(group: Group) -> str:
    if group.is_control:
        return radius(group)
    scheduled = group.walk.get("walk_progress") is not None
    joined = " and schedule" if group.walk.get("cap") else " with schedule"
    return ("tuned: " if group.tuned else "") + radius(group) + (joined if scheduled else "")


def _predicted_rise(group: Group) -> str:
    """The rise of the loss that the walks of the last epoch aimed at after the cap; older records do not have it."""
    walks = [record.curve[-1].get("walk") for record in group.records if isinstance(record, RunRecord) and record.curve]
    rises = [walk["predicted_rise"] for walk in walks if walk and walk.get("predicted_rise") is not None]
    return f"{fmean(rises):.4f}" if rises else ""


def _table2_names() -> dict[str, str]:
    return {row.method: row.label for row in studies.load("table2").rows}


def _changed(group: Group) -> dict[str, Any]:
    """The options that differ from the method's usual walk. A tuned size counts as usual."""
    besides = {"start_epoch", *(TUNED if group.tuned else ())}
    return {name: value for name, value in group.other_walk().items() if name not in besides}


def _is_row_of_table_2(group: Group) -> bool:
    """The usual walk. A tuned budget is none: it would change the size together with T."""
    return not _changed(group) and not (group.tuned and group.walk.get("budget"))


def _has_other_steps(group: Group, other: Group) -> bool:
    """Whether a walk differs from another in nothing but the number of steps."""
    return _differing(group, other) == {"steps"}


def _differing(group: Group, other: Group) -> set[str]:
    """The options in which two walks differ."""
    names = group.walk.keys() | other.walk.keys()
    return {name for name in names if group.walk.get(name) != other.walk.get(name)} - {"method", "start_epoch"}


def _is_another_size(group: Group) -> bool:
    """Another budget, cap or epsilon; the schedule is the usual one, or there is none, as in the paper."""
    changed = _changed(group)
    only_size = changed.keys() <= TUNED and changed.keys() - {"walk_progress"}
    return bool(only_size) and changed.get("walk_progress") is None


def _place(group: Group) -> tuple[bool, str, int, float]:
    """Budgets before epsilons, then by the norm, the number of steps and the size."""
    walk = group.walk
    budget = walk.get("budget")
    return not budget, str(walk["norm"]), walk["steps"], budget or walk["epsilon"]
