"""The inputs of predictions: lines of text, rows of tables or images, read one at a time."""

from __future__ import annotations

import csv
import json
import math
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gasam.lab.data.reading import TABLES, Layout, decoded, ending, fault_at, lines, opened, rows
from gasam.lab.errors import InputError

STANDARD_INPUT = "standard input"
MAGIC = 2051
"""The first number of an idx file of images."""


@dataclass(frozen=True)
class InputFile:
    """A file of inputs, or standard input.

    Args:
        path: The file; None for standard input. It may end in .gz.
        column: The column of a CSV, TSV or JSONL file that holds the input.
        delimiter: The character between the fields of a table; by default a comma, or a tab in a .tsv.
    """

    path: Path | None
    column: str
    delimiter: str | None = None

    def __post_init__(self) -> None:
        if self.path is None:
            return
        if self.path.is_dir():
            raise InputError(f"{self.path} is a folder, but the input must be a file, or - for standard input")
        if not self.path.exists():
            raise InputError(f"{self.path} does not exist: name a file with inputs, or - for standard input")

    @property
    def name(self) -> Path | str:
        return self.path or STANDARD_INPUT

    def texts(self) -> Iterator[tuple[int, str]]:
        """The line number and the text of each line, or of each row of a table, stripped. A text may be blank."""
        if self.path is None or ending(self.path) not in (*TABLES, ".jsonl"):
            for number, line in self._lines():
                yield number, line.strip()
            return
        for number, (value,) in rows(self.path, (self.column,), Layout(self.delimiter, ("--text-column",))):
            if not isinstance(value, str | None):
                raise fault_at(self.path, number, f"{self.column!r} is {value!r}, but must be a string")
            yield number, (value or "").strip()

    def values(self) -> Iterator[tuple[int, Any]]:
        """The line number and the value of each input: any JSON value, a row of a table by its columns, or a text."""
        if self.path is not None and ending(self.path) in TABLES:
            table = csv.DictReader(
                (line for _, line in self._lines()), delimiter=self.delimiter or TABLES[ending(self.path)]
            )
            for row in table:
                yield table.line_num, row
            return
        as_json = self.path is not None and ending(self.path) == ".jsonl"
        for number, line in self._lines():
            try:
                value = json.loads(line) if as_json and line.strip() else line.strip() or None
            except (ValueError, RecursionError) as error:
                raise fault_at(self.name, number, f"not JSON ({error}): a line must hold one input") from None
            yield number, value

    def images(self) -> Iterator[tuple[int, Any]]:
        """The line number and the pixels of each image; in an idx file the number of the image.

        Pixels are bytes in an idx file, a list in a JSONL file, and otherwise numbers of one line, as text, separated
        by commas or blanks. A first line that is no row of numbers is a header.
        """
        if self.path is not None and ("ubyte" in self.path.name or ending(self.path) == ".idx"):
            yield from self._idx_images(self.path)
        elif self.path is not None and ending(self.path) == ".jsonl":
            yield from self._json_images()
        else:
            for number, line in self._lines():
                numbers = line.replace(",", " ").split()
                if number > 1 or all(map(_is_number, numbers)):
                    yield number, numbers

    def _lines(self) -> Iterator[tuple[int, str]]:
        read = lines(self.path) if self.path is not None else decoded(sys.stdin.buffer, STANDARD_INPUT)
        for number, line in enumerate(read, start=1):
            if "\0" in line:
                raise fault_at(self.name, number, "byte 0x00, so this is not a text file: give text in UTF-8")
            yield number, line

    def _json_images(self) -> Iterator[tuple[int, Any]]:
        for number, line in self._lines():
            try:
                value = json.loads(line) if line.strip() else []
            except (ValueError, RecursionError) as error:
                raise fault_at(self.name, number, f"not JSON ({error}): a line must hold a list of pixels") from None
            if isinstance(value, dict):
                value = value.get(self.column)
            if not isinstance(value, list):
                wanted = f"a list of pixels, or an object with a list in {self.column!r}"
                raise fault_at(self.name, number, f"a line must hold {wanted}: name the column with --text-column")
            yield number, value

    def _idx_images(self, path: Path) -> Iterator[tuple[int, bytes]]:
        with opened(path) as stream:
            header = stream.read(16)
            magic, count, *sides = struct.unpack(">4I", header) if len(header) == 16 else (0, 0, 0, 0)
            if magic != MAGIC:
                raise InputError(f"{path} is not an idx file of images: its first number must be {MAGIC}")
            for number in range(1, count + 1):
                image = stream.read(math.prod(sides))
                if len(image) < math.prod(sides):
                    raise InputError(f"{path} ends in image {number} of {count}: copy or download it again")
                yield number, image


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
