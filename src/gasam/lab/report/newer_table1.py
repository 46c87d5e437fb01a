"""The paper's Table 1 beside the newest versions of the sizes, which have better baselines and recommended walks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gasam.lab.paper import studies
from gasam.lab.paper.verdicts import WORDS
from gasam.lab.records import RunRecord
from gasam.lab.report.contents import Contents
from gasam.lab.report.group import Group
from gasam.lab.report.paper_tables import lines, study_table
from gasam.lab.report.section import COST_TITLES, Section, columns, origin
from gasam.lab.report.versions import newest_decided
from gasam.lab.tasks import TASKS

TABLE1 = studies.load("table1")
HIDDEN = ("task", "settings", "test", *COST_TITLES)


def newer_table1_sections(contents: Contents) -> Iterator[Section]:
    """A section for each size, with a table for each of its tasks."""
    for size, tasks in _newest_versions(contents).items():
        runs = [record for task in tasks for record in _runs(_recommended(contents, task, size))]
        table, parts = study_table(TABLE1, runs, size), list[str]()
        for task in tasks:
            cells = columns(table, lambda title: title not in HIDDEN, task)
            parts += [f"[{task}]({task}.md):", cells, contents.comment("newest", task)]
        yield Section(f"{TABLE1.number} with recommended walks, size {size}", [*parts, origin(runs, "run")])


def newer_table1_findings(contents: Contents) -> Iterator[str]:
    """How many cells of each task have which verdict."""
    for size, tasks in _newest_versions(contents).items():
        for task in tasks:
            cells = lines(TABLE1, task, _recommended(contents, task, size))
            counts = Counter(cell.verdict.word for cell in cells if cell.verdict)
            told = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
            yield (
                f"{TABLE1.number} on {task}, size {size}, with our recommended walks in place of the paper's "
                f"epsilons: {told}."
            )


def _newest_versions(contents: Contents) -> dict[str, list[str]]:
    """The tasks of Table 1 by the newest version that decides something, if walks are recommended in it."""
    found: dict[str, list[str]] = {}
    for task in TABLE1.tasks:
        size = newest_decided(contents, task)
        if size is not None and TASKS[task].recommends_walk(size):
            found.setdefault(size, []).append(task)
    return found


def _recommended(contents: Contents, task: str, size: str) -> list[Group]:
    """The methods of Table 1 with the settings of the size and the recommended walk."""
    methods = {row.method for row in TABLE1.rows}
    groups = [group for group in contents.groups(task, size) if group.method in methods]
    return [group for group in groups if group.usual and not group.other_walk()]


def _runs(groups: list[Group]) -> list[RunRecord]:
    return [record for group in groups for record in group.records if isinstance(record, RunRecord)]
