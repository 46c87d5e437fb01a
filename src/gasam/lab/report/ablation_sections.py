"""The sections about ablations: GA-SAM with another T, number of steps or size of the walk, as in Tables 2 and 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gasam.lab.methods import ABLATIONS
from gasam.lab.paper import studies
from gasam.lab.records import RunRecord
from gasam.lab.report.comparison import described, score_cell
from gasam.lab.report.contents import Contents
from gasam.lab.report.frame import groups_of
from gasam.lab.report.group import FEW, TUNED, Group
from gasam.lab.report.labels import radius
from gasam.lab.report.section import Section, origin
from gasam.lab.statistics import Standing
from gasam.lab.tables import markdown, of_texts
from gasam.lab.tasks import TASKS

SCALE, STEPS, SIZE = "T, its granularity and the risk", "the number of steps", "the size of the walk"
"""The questions: the first is that of Table 2, the others are those of Table 3."""


class Part(NamedTuple):
    """The rows of one question, plain training and GA-SAM among them, in the order of its table."""

    task: str
    size: str
    question: str
    groups: list[Group]

    @property
    def others(self) -> list[Group]:
        """The rows that GA-SAM is compared with."""
        return [group for group in self.groups if group.method != "baseline" and group is not self.lead_of(group)]

    def lead_of(self, group: Group) -> Group | None:
        """GA-SAM with the same form of walk, a budget or an epsilon: the recommended walk, or else a tuned one."""
        leads = [each for each in self.groups if each.method == "ga-sam" and not _changed(each)]
        return next((lead for lead in leads if _has_budget(lead) == _has_budget(group)), None)

    def name_of(self, group: Group) -> str:
        """As the paper's tables name the row."""
        if group.method == "ga-sam" and self.question == STEPS:
            return f"K = {group.walk['steps']}"
        return _table2_names().get(group.method, group.title)

    def full_name_of(self, group: Group) -> str:
        """With the size of its walk."""
        return f"{self.name_of(group)} ({radius(group)})"

    def standing(self, group: Group, comparisons: int = 1) -> Standing | None:
        """How a row stands to GA-SAM; None with less than three common seeds."""
        lead = self.lead_of(group)
        if lead is None or len(lead.scores.keys() & group.scores) < FEW:
            return None
        return group.standing(lead, comparisons)


def is_ablation(group: Group) -> bool:
    """Whether it differs from GA-SAM in one part alone: T, its granularity, the risk, the steps or the walk's size."""
    return group.usual and (group.method in ABLATIONS or (group.method == "ga-sam" and _asks(group) is not None))


def ablation_parts(records: Sequence[RunRecord]) -> Iterator[Part]:
    """The questions that were asked, by task and size."""
    for task, definition in TASKS.items():
        for size in definition.sizes:
            groups = [group for group in groups_of(records, task, size) if group.usual]
            ablations = [group for group in groups if is_ablation(group)]
            if any(group.method in ABLATIONS for group in ablations):
                alike = [group for group in groups if group.method in _table2_names() and not _changed(group)]
                yield Part(task, size, SCALE, alike)
            plain = [group for group in groups if group.method == "baseline"]
            usual = [group for group in groups if group.method == "ga-sam" and not _changed(group)]
            for question in (STEPS, SIZE):
                if asking := [group for group in ablations if _asks(group) == question]:
                    yield Part(task, size, question, [*plain[:1], *sorted([*usual, *asking], key=_place)])


def ablation_sections(contents: Contents) -> Iterator[Section]:
    """A section for each task and size, with a table for each question."""
    found: dict[tuple[str, str], list[Part]] = {}
    for part in ablation_parts(contents.evidence):
        found.setdefault((part.task, part.size), []).append(part)
    for (task, size), parts in found.items():
        runs = {record.identity: record for part in parts for group in part.groups for record in group.records}
        tables = [text for part in parts for text in (f"### {task}, size {size}: {part.question}", _table(part))]
        remark = contents.comment("ablations", task) if size == TASKS[task].recorded_size() else ""
        yield Section(f"{task}, size {size}", [*tables, remark, origin(list(runs.values()), "run")])


def _table(part: Part) -> str:
    metric = part.groups[0].metric
    rows = [
        {
            "row": part.name_of(group),
            "walk": "" if group.method == "baseline" else radius(group),
            described(metric): score_cell(group).text,
            "vs baseline": group.versus(group.baseline),
            "vs GA-SAM": group.versus(part.lead_of(group)) if group in part.others else "",
            "passes a step": "" if group.passes is None else f"{group.passes:.2f}",
        }
        for group in part.groups
    ]
    return markdown(of_texts("", rows))


def _table2_names() -> dict[str, str]:
    return {row.method: row.label for row in studies.load("table2").rows}


def _changed(group: Group) -> set[str]:
    """The options that differ from the method's usual walk. A tuned size counts as usual."""
    return group.other_walk().keys() - {"start_epoch"} - (TUNED if group.tuned else set())


def _asks(group: Group) -> str | None:
    """The question that a walk of GA-SAM belongs to; None for its usual walk, and for other options."""
    changed = _changed(group)
    if not changed or not changed <= TUNED | {"steps"}:
        return None
    return STEPS if "steps" in changed else SIZE


def _has_budget(group: Group) -> bool:
    return bool(group.walk.get("budget"))


def _place(group: Group) -> tuple[bool, str, int, float]:
    """Budgets before epsilons, then by the norm, the number of steps and the size."""
    walk = group.walk
    return not _has_budget(group), str(walk["norm"]), walk["steps"], walk.get("budget") or walk["epsilon"]
