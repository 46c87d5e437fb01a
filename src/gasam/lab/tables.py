"""Tables with their rows as text for people and as values for JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import digits
from typing import Any, Generic, NamedTuple, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        title: The heading.
        columns: The titles of the columns.
        rows: The cells as text. A number that was not measured is "not run" or empty.
        notes: Sentences to print below the table.
        values: The rows for JSON. A number that was not measured is None.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    values: tuple[dict[str, Any], ...] = ()


class Cell(NamedTuple):
    """A cell: its text for people, and its value for JSON."""

    text: str = ""
    value: Any = None


class Column(NamedTuple, Generic[Row]):
    """A column of a table.

    Args:
        title: The heading for people; without one the column is not shown.
        cell: Gives the cell of a row; a plain string is a cell without a value.
        key: The key in JSON; without one the column is not in the JSON.
    """

    title: str
    cell: Callable[[Row], Cell | str]
    key: str = ""


def of_texts(title: str, rows: Sequence[Mapping[str, str]], notes: Iterable[str] = ()) -> Table:
    """Make a table of rows that hold a text for each column; columns that are empty in every row are left out."""
    columns = [column for column in rows[0] if any(row[column] for row in rows)] if rows else []
    return Table(title, tuple(columns), tuple(tuple(row[column] for column in columns) for row in rows), tuple(notes))


def tabulated(title: str, columns: Sequence[Column[Row]], rows: Sequence[Row], notes: Iterable[str] = ()) -> Table:
    """Make a table with these columns; the text leaves out columns that are empty in every row."""
    cells = [[_cell(column.cell(row)) for column in columns] for row in rows]
    shown = [i for i, column in enumerate(columns) if column.title and any(row[i].text for row in cells)]
    texts = tuple(tuple(row[i].text for i in shown) for row in cells)
    keys = [(column.key, i) for i, column in enumerate(columns) if column.key]
    values = tuple({key: row[i].value for key, i in keys} for row in cells) if keys else ()
    return Table(title, tuple(columns[i].title for i in shown), texts, tuple(notes), values)


def _cell(found: Cell | str) -> Cell:
    return Cell(found) if isinstance(found, str) else found


def markdown(table: Table) -> str:
    """The rows and notes as Markdown, without the title, because pages have their own headings."""
    rule = ["---:" if holds_numbers(table, i) else "---" for i in range(len(table.columns))]
    lines = [_line(cells) for cells in (table.columns, rule, *table.rows)]
    notes = [f"- {note}" for note in table.notes]
    return "\n".join([*lines, "", *notes] if notes else lines) + "\n"


def as_csv(table: Table) -> str:
    """The columns and rows as CSV, without the notes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.columns, *table.rows])
    return text.getvalue()


def as_json(table: Table) -> dict[str, Any]:
    rows = table.values or tuple(dict(zip(table.columns, row, strict=True)) for row in table.rows)
    return {"title": table.title, "rows": list(rows), "notes": list(table.notes)}


def holds_numbers(table: Table, column: int) -> bool:
    """Whether most cells of the column begin with a number."""
    texts = [row[column] for row in table.rows if row[column]]
    return 2 * sum(text.startswith((*digits, "+", "-")) for text in texts) > len(texts)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
