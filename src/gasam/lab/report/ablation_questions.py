"""The questions that ablations ask, and the runs that answer each: GA-SAM with one part changed, beside GA-SAM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gasam.lab.methods import ABLATIONS
from gasam.lab.paper import studies
from gasam.lab.report.contents import Contents
from gasam.lab.report.group import RADIUS, TUNED, Group, GroupKey
from gasam.lab.report.labels import radius
from gasam.lab.tasks import TASKS

SCALE, STEPS, SIZE = "T, its granularity and the risk", "the number of steps", "the size of the walk"
"""The questions of Table 2 and of Table 3."""
MASKS = "the displacement and the dropout masks"
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
        """As the paper's tables name the row, if they have it."""
        if group.is_control:
            return "Control"
        if group.method == "ga-sam" and self.question == MASKS and group is not self.lead:
            return "Shared masks"
        if group.method == "ga-sam" and self.question == STEPS:
            return f"K = {group.walk['steps']}"
        return _table2_names().get(group.method, group.title)

    def full_name_of(self, group: Group) -> str:
        """With the size of its walk, if that is not the size of the reference, or if another row has the name."""
        name, lead = self.name_of(group), self.lead
        is_alone = group is lead or [self.name_of(other) for other in self.others].count(name) == 1
        is_of_lead = lead is not None and _differing(group, lead) <= TABLE_2_OPTIONS | {"steps", "same_noise"}
        return name if group.is_control or (is_of_lead and is_alone) else f"{name} ({size_of_walk(group)})"

    def versus_lead(self, group: Group) -> str:
        if group is self.lead:
            return "reference"
        return group.versus(self.lead) if group.method != "baseline" else ""


class _Runs:
    """The groups of one task and size, sorted by what they change.

    Attributes:
        plain: Plain training, in a list that may be empty.
        walks: All walks of GA-SAM.
        variants: All walks with a row in Table 2, which includes `walks`.
        references: GA-SAM's usual walks: the recommended one first, then the tuned ones.
        sizes: GA-SAM with another budget, cap or epsilon.
        controls: GA-SAM with a budget that moves nothing.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        usual = [group for group in groups if group.usual and group.data == groups[0].data]
        self.plain = [group for group in usual if group.method == "baseline"][:1]
        self.walks = [group for group in usual if group.method == "ga-sam"]
        self.variants = [group for group in usual if group.method in _table2_names()]
        self.references = [group for group in self.walks if is_reference(group)]
        resized = [group for group in self.walks if _is_another_size(group)]
        self.sizes = [group for group in resized if not group.is_control]
        self.controls = [group for group in resized if group.is_control]

    @property
    def lead(self) -> Group | None:
        return next(iter(self.references), None)


def parts_of(groups: Sequence[Group]) -> Iterator[Part]:
    """The questions that the groups of one task and size ask, on the data of the first of them."""
    if not groups:
        return
    runs = _Runs(groups)
    answers = [_scale(runs), *_scale_at_other_sizes(runs), _steps(runs), _size(runs), _masks(runs)]
    for question, lead, rows, ablations in answers:
        if ablations:
            yield Part(groups[0].task, groups[0].size, question, lead, rows, ablations)


_Answer = tuple[str, Group | None, list[Group], list[Group]]
"""The question, what the rows are compared with, the rows, and those of them that no other page shows."""


def _scale(runs: _Runs) -> _Answer:
    rows = [group for group in runs.variants if _is_row_of_table_2(group)]
    return SCALE, runs.lead, rows, [group for group in rows if group.method in ABLATIONS]


def _scale_at_other_sizes(runs: _Runs) -> Iterator[_Answer]:
    """Table 2 again, for each other size of GA-SAM's walk that variants have too."""
    resized = [*runs.references, *runs.sizes]
    for lead in [group for group in resized if runs.lead and _differing(group, runs.lead)]:
        others = [group for group in runs.variants if group is lead or group.method != "ga-sam"]
        rows = [group for group in others if _differing(group, lead) <= TABLE_2_OPTIONS]
        ablations = [group for group in rows if group is not lead and not group.tuned]
        yield f"{SCALE} at {radius(lead)}", lead, [*runs.plain, *rows], ablations


def _steps(runs: _Runs) -> _Answer:
    """Walks with another K, each beside the walk that has its size."""
    resized = [*runs.references, *runs.sizes]
    longer = [group for group in runs.walks if any(_differing(group, other) == {"steps"} for other in resized)]
    beside = [other for other in runs.sizes if any(_differing(group, other) == {"steps"} for group in longer)]
    rows = sorted([*runs.references, *beside, *longer], key=_place)
    return STEPS, runs.lead, [*runs.plain, *rows], longer


def _size(runs: _Runs) -> _Answer:
    rows = sorted([*runs.references, *runs.sizes], key=_place)
    return SIZE, runs.lead, [*runs.plain, *rows], runs.sizes


def _masks(runs: _Runs) -> _Answer:
    """The control, and GA-SAM with the same masks in both passes, also with another budget or cap."""
    lead, controls = runs.lead, runs.controls
    if lead is None or not controls:
        return MASKS, lead, [], []
    shared = [group for group in runs.walks if _differing(group, lead) - (TUNED - RADIUS) == {"same_noise"}]
    return MASKS, lead, [*runs.plain, *controls, *shared, lead], [*controls, *shared]


def ablations_among(groups: Sequence[Group]) -> set[GroupKey]:
    """The keys of all ablations of one task and size."""
    return {group.key for part in parts_of(groups) for group in part.ablations}


def without_ablations(groups: Sequence[Group]) -> list[Group]:
    """The groups that the page of their task shows."""
    hidden = ablations_among(groups)
    return [group for group in groups if group.key not in hidden]


def ablation_parts(contents: Contents) -> Iterator[Part]:
    """The questions that were asked, by task and size."""
    for task, definition in TASKS.items():
        for size in definition.sizes:
            yield from parts_of(contents.groups(task, size))


def size_of_walk(group: Group) -> str:
    """Its budget or epsilon, and whether it has a cap and a schedule."""
    scheduled = group.walk.get("walk_progress") is not None and not group.is_control
    joined = " and schedule" if group.walk.get("cap") else " with schedule"
    return ("tuned: " if group.tuned else "") + radius(group) + (joined if scheduled else "")


def _table2_names() -> dict[str, str]:
    return {row.method: row.label for row in studies.load("table2").rows}


def is_reference(group: Group) -> bool:
    """Whether it has the method's usual walk, or a tuned size of it."""
    return not _changed(group)


def _changed(group: Group) -> dict[str, Any]:
    """The options that differ from the method's usual walk. A tuned size counts as usual."""
    besides = {"start_epoch", *(TUNED if group.tuned else ())}
    return {name: value for name, value in group.other_walk().items() if name not in besides}


def _is_row_of_table_2(group: Group) -> bool:
    """The usual walk. A tuned budget is none: it would change the size together with T."""
    return not _changed(group) and not (group.tuned and group.walk.get("budget"))


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
