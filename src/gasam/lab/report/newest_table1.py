"""The paper's Table 1 in the newest version of each size, with recommended walks in place of the paper's epsilons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gasam.lab.methods import TABLE1
from gasam.lab.paper import studies
from gasam.lab.paper.verdicts import WORDS
from gasam.lab.report.comparison import DIFFERENCE, PAPER, Line
from gasam.lab.report.contents import Contents
from gasam.lab.report.group import Group
from gasam.lab.report.paper_tables import REASON, ROW, VERDICT, lines
from gasam.lab.report.section import Section, how, origin
from gasam.lab.report.versions import newest_decided
from gasam.lab.tables import markdown, tabulated
from gasam.lab.tasks import TASKS

COLUMNS = (ROW, DIFFERENCE, *PAPER, VERDICT, REASON)


def newest_table1_sections(contents: Contents) -> Iterator[Section]:
    """A section for each task: its rows, what people remark, the runs and the command."""
    for task, groups in _newest_groups(contents).items():
        size, runs = groups[0].size, [record for group in groups for record in group.records]
        methods = ",".join(group.method for group in groups)
        command = f"gasam compare {task} --size {size} --methods {methods}{how(groups)}"
        parts = [
            markdown(tabulated("", COLUMNS, _cells(task, groups))),
            contents.comment("newest", task),
            f"{origin(runs, 'run')} Scores: [{task}]({task}.md). To reproduce: `{command}`.",
        ]
        yield Section(f"Table 1 with recommended walks: {task}, size {size}", parts)


def newest_table1_findings(contents: Contents) -> Iterator[str]:
    """How many cells of each task have which verdict."""
    for task, groups in _newest_groups(contents).items():
        counts = Counter(cell.verdict.word for cell in _cells(task, groups) if cell.verdict)
        verdicts = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
        walks = "with our recommended walks in place of the paper's epsilons"
        yield f"Table 1 on {task}, size {groups[0].size}, {walks}: {verdicts}."


def _newest_groups(contents: Contents) -> dict[str, list[Group]]:
    """The methods of Table 1 with the recommended walk, on each task whose newest decided version recommends one."""
    found = {}
    for task in studies.load("table1").tasks:
        size = newest_decided(contents, task)
        if size is not None and TASKS[task].recommends_walk(size):
            every = contents.groups(task, size)
            groups = [group for group in every if group.method in TABLE1 and group.data == every[0].data]
            found[task] = [group for group in groups if group.usual and not group.other_walk()]
    return {task: groups for task, groups in found.items() if any(group.method == "ga-sam" for group in groups)}


def _cells(task: str, groups: list[Group]) -> list[Line]:
    """The rows of the table that are judged."""
    return [line for line in lines(studies.load("table1"), task, groups) if line.speaks]
