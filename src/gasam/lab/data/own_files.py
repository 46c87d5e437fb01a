"""Readers of the user's own labelled tables and aligned files, which may have empty fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gasam.lab.data.corpus import Split
from gasam.lab.data.reading import Layout, aligned, fault_at, rows
from gasam.lab.errors import InputError

Labelled = tuple[int, str, str]
"""The line number, the text and the label of a row."""


def labelled_rows(path: Path, columns: tuple[str, str], layout: Layout, *, drop: bool) -> tuple[list[Labelled], str]:
    """The rows of a table, and a note about those that were dropped.

    Args:
        path: The file.
        columns: The columns with the text and with the label.
        layout: How the file is written.
        drop: Leave out rows with an empty field; without it, raise and say how many there are.
    """
    table: list[Labelled] = []
    empty: dict[str, list[int]] = {}
    for line, (text, label) in rows(path, columns, layout):
        if not isinstance(text, str | None):
            raise fault_at(path, line, f"{columns[0]!r} is {text!r}, but must be a string")
        if not isinstance(label, str | int | None):
            raise fault_at(path, line, f"{columns[1]!r} is {label!r}, but must be a string or a whole number")
        missing = [column for column, value in zip(columns, (text, label), strict=True) if _is_empty(value)]
        for column in missing:
            empty.setdefault(column, []).append(line)
        if not missing:
            table.append((line, str(text), str(label).strip()))
    if empty and not drop:
        raise InputError(f"{path}: {_told(empty, 'have')}: fill them in, or use --drop-empty")
    return table, f"{path.name}: dropped {_told(empty, 'with')}" if empty else ""


def aligned_pairs(split: Split, source: Path, target: Path, *, drop: bool) -> tuple[list[tuple[str, str]], str]:
    """The pairs of lines of two files, and a note about those that were dropped.

    Args:
        split: In training files, pairs of which one line is blank are always left out.
        source: The file of the first language.
        target: The file of the second language.
        drop: Leave out such pairs in other files as well, and note how many.
    """
    pairs = aligned(source, target)
    half = [line for line, pair in enumerate(pairs, start=1) if any(pair) and not all(pair)]
    if half and split != "train" and not drop:
        empty, other = (source, target) if pairs[half[0] - 1][1] else (target, source)
        count = f" ({_counted(half, 'pair')} of this kind)" if len(half) > 1 else ""
        fault = f"blank, but the same line of {other} is not{count}: translate it, remove both, or use --drop-empty"
        raise fault_at(empty, half[0], fault)
    note = ""
    if half and drop:
        note = f"{source.name}: dropped {_counted(half, 'pair')} with a blank line, first at line {half[0]}"
    return [pair for pair in pairs if all(pair)], note


def parsed_delimiter(text: str | None) -> str | None:
    """The delimiter that a user gives as a character or as "tab"; None for the usual one."""
    if text is None:
        return None
    if text.lower() in ("tab", "\\t"):
        return "\t"
    if len(text) != 1 or text in '"\r\n':
        raise InputError(f"--delimiter must be one character such as ';', or tab, got {text!r}")
    return text


def _is_empty(value: Any) -> bool:
    return value is None or not str(value).strip()


def _counted(lines: list[int], noun: str) -> str:
    return f"{len(lines):,} {noun}{'' if len(lines) == 1 else 's'}"


def _told(empty: dict[str, list[int]], verb: str) -> str:
    """How many rows have an empty field in each column, and the first of them."""
    clauses = []
    for column, lines in empty.items():
        word = "has" if verb == "have" and len(lines) == 1 else verb
        clauses.append(f"{_counted(lines, 'row')} {word} an empty {column!r}, first at line {lines[0]}")
    return ", and ".join(clauses)
