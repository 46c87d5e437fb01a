"""Tables: rows of text for people, the same rows as values for programs, and how both are written down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from string import digits
from typing import Any


@dataclass(frozen=True)
class Table:
    """`notes` are sentences that belong beneath it. `values` are the rows for JSON: a number that nobody measured is
    None there and "not run" or nothing in the text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    values: tuple[dict[str, Any], ...] = ()

    def without_empty_columns(self) -> Table:
        kept = [i for i, title in enumerate(self.columns) if any(row[i] for row in self.rows)]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=rows)


def markdown(table: Table) -> str:
    """Rows and notes without the title: a page has headings of its own."""
    rule = ["---:" if _holds_numbers(table, i) else "---" for i in range(len(table.columns))]
    lines = [_line(cells) for cells in (table.columns, rule, *table.rows)]
    notes = [f"- {note}" for note in table.notes]
    return "\n".join([*lines, "", *notes] if notes else lines) + "\n"


def as_json(table: Table) -> dict[str, Any]:
    rows = table.values or tuple(dict(zip(table.columns, row, strict=True)) for row in table.rows)
    return {"title": table.title, "rows": list(rows), "notes": list(table.notes)}


def _holds_numbers(table: Table, column: int) -> bool:
    return column > 0 and any(row[column].startswith((*digits, "+", "-")) for row in table.rows)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
