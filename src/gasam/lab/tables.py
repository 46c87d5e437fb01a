"""Tables: columns that are defined once, rows of text for people, and the same rows as values for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import digits
from typing import Any, Generic, NamedTuple, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True)
class Table:
    """`notes` are sentences that belong beneath it. `values` are the rows for JSON: a number that nobody measured is
    None there and "not run" or nothing in the text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    values: tuple[dict[str, Any], ...] = ()


class Cell(NamedTuple):
    """What people read and what JSON holds."""

    text: str = ""
    value: Any = None


class Column(NamedTuple, Generic[Row]):
    """A column: its title for people and its key in JSON, each of which may be missing, and the cell that a row has in
    it. Text alone is a cell as well."""

    title: str
    cell: Callable[[Row], Cell | str]
    key: str = ""


def of_texts(title: str, rows: Sequence[Mapping[str, str]], notes: Iterable[str] = ()) -> Table:
    """Of rows that hold a text for each column; a column that would be empty in every row is left out."""
    columns = [column for column in rows[0] if any(row[column] for row in rows)] if rows else []
    return Table(title, tuple(columns), tuple(tuple(row[column] for column in columns) for row in rows), tuple(notes))


def tabulated(title: str, columns: Sequence[Column[Row]], rows: Sequence[Row], notes: Iterable[str] = ()) -> Table:
    """A column that would be empty in every row is left out of the text."""
    cells = [[_cell(column.cell(row)) for column in columns] for row in rows]
    shown = [i for i, column in enumerate(columns) if column.title and any(row[i].text for row in cells)]
    texts = tuple(tuple(row[i].text for i in shown) for row in cells)
    keys = [(column.key, i) for i, column in enumerate(columns) if column.key]
    values = tuple({key: row[i].value for key, i in keys} for row in cells) if keys else ()
    return Table(title, tuple(columns[i].title for i in shown), texts, tuple(notes), values)


def _cell(found: Cell | str) -> Cell:
    return Cell(found) if isinstance(found, str) else found


def markdown(table: Table) -> str:
    """Rows and notes without the title: a page has headings of its own."""
    rule = ["---:" if holds_numbers(table, i) else "---" for i in range(len(table.columns))]
    lines = [_line(cells) for cells in (table.columns, rule, *table.rows)]
    notes = [f"- {note}" for note in table.notes]
    return "\n".join([*lines, "", *notes] if notes else lines) + "\n"


def as_json(table: Table) -> dict[str, Any]:
    rows = table.values or tuple(dict(zip(table.columns, row, strict=True)) for row in table.rows)
    return {"title": table.title, "rows": list(rows), "notes": list(table.notes)}


def holds_numbers(table: Table, column: int) -> bool:
    """Whether most of its cells begin with a number."""
    texts = [row[column] for row in table.rows if row[column]]
    return 2 * sum(text.startswith((*digits, "+", "-")) for text in texts) > len(texts)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
