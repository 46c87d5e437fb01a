"""A section of a page of results, and what all sections are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from matplotlib.figure import Figure

from gasam.analysis.pictures import numbered
from gasam.lab.records import AnalysisRecord, RunRecord
from gasam.lab.report.comparison import BUDGETS, COST
from gasam.lab.report.does_it_help import HELPS, effects, ga_sam_minus
from gasam.lab.report.group import Group, GroupKey
from gasam.lab.statistics import counted
from gasam.lab.tables import Table, markdown, of_texts

COST_TITLES = [column.title for column in (*COST, *BUDGETS)]


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it.

    Args:
        title: The heading.
        parts: Paragraphs, tables and lists in Markdown.
        pictures: Figures by the name that the parts link to.
        files: Tables for CSV files by the name that the parts link to.
    """

    title: str
    parts: list[str]
    pictures: dict[str, Figure] = field(default_factory=dict)
    files: dict[str, Table] = field(default_factory=dict)


def with_lead(table: Table, groups: Sequence[Group]) -> Table:
    """The table with what GA-SAM has over each other method; it has a row for each group, in their order."""
    unit = groups[0].metric.unit_of_differences if groups else ""
    return _with_column(table, f"GA-SAM minus it, {unit}", groups, ga_sam_minus(groups))


def with_answers(table: Table, groups: Sequence[Group]) -> Table:
    """The table with a sentence in each row that says whether the method helps."""
    return _with_column(table, HELPS, groups, {key: str(effect) for key, effect in effects(groups).items()})


def _with_column(table: Table, title: str, groups: Sequence[Group], texts: Mapping[GroupKey, str]) -> Table:
    cells = [texts.get(group.key, "") for group in groups]
    rows = tuple((*row, cell) for row, cell in zip(table.rows, cells, strict=True))
    return replace(table, columns=(*table.columns, title), rows=rows)


def columns(table: Table, shown: Callable[[str], bool], task: str | None = None) -> str:
    """Some columns of a table; of one task those rows that the paper has."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    if task is not None:
        rows = [row for row in rows if row["task"] == task and row["paper"]]
    return markdown(of_texts("", [{title: row[title] for title in row if shown(title)} for row in rows]))


def how(groups: Sequence[Group]) -> str:
    """The seeds, counted from 1, and whether radii are tuned ones."""
    seeds = max(record.seed for group in groups for record in group.records)
    return f" --seeds {seeds}" + (" --tuned --out results" if any(group.tuned for group in groups) else "")


def named(name: str, figures: Sequence[Figure]) -> dict[str, Figure]:
    """The figures by the names of their files."""
    return {numbered(Path(name), number).name: figure for number, figure in enumerate(figures, start=1)}


def links(name: str, figures: Sequence[Figure], about: str) -> str:
    return "\n\n".join(f"![{about}](../figures/{each}.svg)" for each in named(name, figures))


def origin(found: Sequence[RunRecord] | Sequence[AnalysisRecord], noun: str) -> str:
    commits = ", ".join(dict.fromkeys(commit(each.commit, each.dirty) for each in found))
    return f"From {counted(len(found), noun)} of commits {commits}."


def commit(number: str | None, dirty: bool | None) -> str:
    if number is None:
        return "unknown"
    return number[:7] + (" with changes" if dirty else "")
