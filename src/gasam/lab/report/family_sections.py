"""The sections about the family: all methods with the recommended walk on one task, with their cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gasam.lab.methods import FAMILY, TABLE1
from gasam.lab.records import RunRecord
from gasam.lab.report.comparison import comparison
from gasam.lab.report.contents import Contents
from gasam.lab.report.frame import groups_of
from gasam.lab.report.group import Group
from gasam.lab.report.judgement import collapsed
from gasam.lab.report.notes import page_notes
from gasam.lab.report.pictures import draw
from gasam.lab.report.section import COST_TITLES, Section, columns, how, links, named, origin, with_lead
from gasam.lab.tasks import TASKS

OTHER_PAPERS = [name for name in FAMILY if name not in TABLE1]


def family_sections(contents: Contents) -> Iterator[Section]:
    """Every task and size on which a method of another paper was run: all methods with the recommended walk."""
    for (task, size), groups in family_groups(contents.records).items():
        runs = [record for group in groups for record in group.records]
        times = contents.step_times.get((task, size))
        table, name = comparison(runs, task, size, step_times=times), f"family-{task}-{size}"
        picture = [draw([record for group in groups if not collapsed(group) for record in group.records])]
        command = f"gasam compare {task} --size {size} --methods family{how(groups)}"
        parts = [
            columns(
                with_lead(table, groups),
                lambda title: title not in (*COST_TITLES, "settings") and not title.startswith("paper"),
            ),
            columns(table, lambda title: title in (*COST_TITLES, "method")),
            links(name, picture, f"score and cost of the methods on {task}, without collapsed ones"),
            contents.comment("family", task),
            "\n".join(f"- {note}" for note in page_notes(task, size, groups)),
            f"{origin(runs, 'run')} To reproduce: `{command}`.",
        ]
        yield Section(f"{task}, size {size}", parts, named(name, picture))


def family_groups(records: Sequence[RunRecord]) -> dict[tuple[str, str], list[Group]]:
    """The groups by task and size, of those on which a method of another paper than GA-SAM's was run."""
    found = {}
    for task, definition in TASKS.items():
        for size in definition.sizes:
            groups = [group for group in groups_of(records, task, size) if _in_family(group)]
            if any(group.method in OTHER_PAPERS for group in groups):
                found[task, size] = groups
    return found


def _in_family(group: Group) -> bool:
    """Whether a group has the usual walk of a method of the family, and the settings of its size."""
    return group.method in FAMILY and group.usual and not group.other_walk()
