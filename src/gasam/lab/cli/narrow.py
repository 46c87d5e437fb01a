"""Text and tables for a terminal of a given width, without broken words and without lost letters."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gasam.lab.tables import Table

FRAME = 3
"""The characters that the frame of a table takes beside each column; there is one more at its left edge."""
TITLE_LINES, CELL_LINES, SENTENCE = 3, 2, 34
"""How many lines a title and a cell may take before a column moves to the next block, and the width of a column of
sentences, which may take more."""
ROWS = 20
"""The rows of a block: all blocks of these rows come before the next rows, so that they are on one screen."""
COMMAND = re.compile(r"`[^`]*`")
TOGETHER = re.compile(r"\S+ ± \S+|\([^()]{1,12}\)|\[[^][]{1,18}\]|K = \d+")
"""Parts of cells that stay in one line: a mean with its deviation, short brackets and intervals."""
SPACE = "\0"
"""Stands for a space where a line must not end: a command that is copied has to be in one piece."""


def wrapped(text: str, width: int) -> str:
    """The text in lines of this width at most. Words and commands in backticks that are longer stay whole."""
    return "\n".join(_lines(_joined(COMMAND, text), width, "  " if text.startswith("- ") else "")).replace(SPACE, " ")


def in_blocks(table: Table, width: int) -> list[Table]:
    """The table, or several tables that fit the width without breaking a word; their cells hold the line breaks.

    Each has the columns that name the rows, and as many of the others as fit well. A table that fits is kept whole.
    """
    every = list(range(len(table.columns)))
    names = naming_columns(table)
    blocks = [every]
    if _total([_good_width(table, place) for place in every]) > width:
        blocks = []
        for place in every[len(names) :]:
            if blocks and _total([_good_width(table, each) for each in (*blocks[-1], place)]) <= width:
                blocks[-1].append(place)
            else:
                blocks.append([*names, place])
    parts = [_fitted(_with(table, block), width) for block in blocks]
    rows = range(0, max(len(table.rows), 1), ROWS if len(parts) > 1 else len(table.rows) or 1)
    return [replace(part, rows=part.rows[first : first + rows.step]) for first in rows for part in parts]


def total_width(table: Table) -> int:
    """The width of a table whose cells hold their line breaks, with its frame."""
    columns = zip(table.columns, *table.rows, strict=True)
    return _total([max(len(line) for text in column for line in text.split("\n")) for column in columns])


def naming_columns(table: Table) -> list[int]:
    """The first columns that together are different in every row; only the first if more than three would be needed."""
    for count in range(1, min(4, len(table.columns))):
        keys = [row[:count] for row in table.rows]
        if len(set(keys)) == len(keys):
            return list(range(count))
    return [0]


def _fitted(table: Table, width: int) -> Table:
    """The table with line breaks in its titles and cells."""
    widths = _widths(table, width)

    def broken(cells: Sequence[str]) -> tuple[str, ...]:
        lines = (_lines(_joined(TOGETHER, text), wide) for text, wide in zip(cells, widths, strict=True))
        return tuple("\n".join(each).replace(SPACE, " ") for each in lines)

    return replace(table, columns=broken(table.columns), rows=tuple(map(broken, table.rows)))


def _widths(table: Table, width: int) -> list[int]:
    """The width of each column: all that it wants if there is room, else the widest columns are made narrower."""
    wanted = [max(map(len, _texts(table, place))) for place in range(len(table.columns))]
    least = [_longest_word(table, place) for place in range(len(table.columns))]
    while _total(wanted) > width and wanted != least:
        place = max((each for each in range(len(wanted)) if wanted[each] > least[each]), key=lambda each: wanted[each])
        wanted[place] -= 1
    return wanted


def _good_width(table: Table, place: int) -> int:
    """The smallest width at which a column is easy to read."""
    title, *cells = _texts(table, place)
    for width in range(_longest_word(table, place), SENTENCE):
        short = len(_lines(title, width)) <= TITLE_LINES and all(
            len(_lines(each, width)) <= CELL_LINES for each in cells
        )
        if short:
            return width
    return max(SENTENCE, _longest_word(table, place))


def _longest_word(table: Table, place: int) -> int:
    return max((len(word) for text in _texts(table, place) for word in text.split()), default=1)


def _texts(table: Table, place: int) -> list[str]:
    return [_joined(TOGETHER, text) for text in (table.columns[place], *(row[place] for row in table.rows))]


def _joined(kept: re.Pattern[str], text: str) -> str:
    return kept.sub(lambda found: found[0].replace(" ", SPACE), text)


def _lines(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + FRAME * len(widths) + 1


def _with(table: Table, places: Sequence[int]) -> Table:
    def chosen(cells: Sequence[str]) -> Iterator[str]:
        return (cells[place] for place in places)

    return replace(table, columns=tuple(chosen(table.columns)), rows=tuple(tuple(chosen(row)) for row in table.rows))
