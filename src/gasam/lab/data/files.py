"""Readers of text files, tables and idx files, plain or gzip; an error names the file, the line and the cure."""

from __future__ import annotations

import csv
import difflib
import gzip
import json
import math
import shlex
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from gasam.lab.errors import InputError

TABLES = {".csv": ",", ".tsv": "\t"}
DELIMITERS = {";": "';'", "\t": "tab", "|": "'|'", ",": "','"}
"""Characters that separate the fields of tables, as users write them for the option --delimiter."""
STANDARD_INPUT = "standard input"


def fault_at(path: Path | str, line: int, fault: str) -> InputError:
    return InputError(f"{path}, line {line}: {fault}")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield cast(BinaryIO, stream)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: not a complete gzip file ({error}): copy or download it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): check its path and permissions") from None


def content(path: Path) -> bytes:
    """The bytes of a file, uncompressed if its name ends in .gz."""
    with opened(path) as stream:
        return stream.read()


def ending(path: Path) -> str:
    """The ending of a file's name in lower case, without .gz."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file with their line ends.

    Only a newline ends a line, not the other line separators of Unicode. A byte order mark at the start is left out.
    """
    with opened(path) as stream:
        yield from _decoded(stream, path)


def _decoded(stream: Iterable[bytes], name: Path | str) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            fault = f"byte 0x{line[error.start]:02x} at position {error.start + 1} is not UTF-8"
            raise fault_at(name, number, f"{fault}: save the file as UTF-8") from None


def aligned(source: Path, target: Path) -> list[tuple[str, str]]:
    """Pairs of lines with the same number in two files, stripped."""
    first, second = ([line.strip() for line in lines(path)] for path in (source, target))
    if len(first) != len(second):
        raise InputError(
            f"{source} has {len(first)} lines and {target} has {len(second)}, but line n of one must be the "
            "translation of line n of the other: give files of equal length"
        )
    return list(zip(first, second, strict=True))


def idx(path: Path, dimensions: int, cure: str = "copy or download it again") -> tuple[tuple[int, ...], bytes]:
    """The sizes and the bytes of a file in the idx format: big-endian magic number, then sizes, then data."""
    data, start, magic = content(path), 4 * (1 + dimensions), 2048 + dimensions
    if len(data) < start:
        raise InputError(f"{path}: {len(data)} bytes, but the header alone has {start}: {cure}")
    found, *sizes = struct.unpack(f">{1 + dimensions}I", data[:start])
    if found != magic:
        raise InputError(f"{path}: magic number {found}, but it must be {magic}: {cure}")
    if len(data) - start != math.prod(sizes):
        fault = f"{len(data) - start} bytes of data, but the header says {math.prod(sizes)}"
        raise InputError(f"{path}: {fault}: {cure}")
    return tuple(sizes), data[start:]


def rows(
    path: Path, columns: Sequence[str], delimiter: str | None = None, options: Sequence[str] = ()
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The line number and the values of `columns` for each row of a CSV, TSV or JSONL file, without blank lines.

    Args:
        path: The file.
        columns: The names of the columns to read.
        delimiter: The character between two fields; by default a comma in a .csv and a tab in a .tsv.
        options: The option that names each column, for error messages.
    """
    suffix = ending(path)
    if suffix not in (*TABLES, ".jsonl"):
        raise InputError(f"{path} must end in .csv, .tsv or .jsonl (or these + .gz), got {suffix or 'no ending'!r}")
    if suffix == ".jsonl" and delimiter:
        raise InputError(f"{path}: a JSONL file has no delimiter: leave out --delimiter")
    if suffix in TABLES and options:
        _check_delimiter(path, columns, delimiter or TABLES[suffix])
    found = json_rows(path, columns) if suffix == ".jsonl" else table_rows(path, delimiter or TABLES[suffix])
    for number, row in found:
        for place, column in enumerate(columns):
            if column not in row:
                cure = _other_column(column, [name for name in row if name not in columns], options[place : place + 1])
                line = number if suffix == ".jsonl" else 1
                raise fault_at(path, line, f"no column {column!r} among {_quoted(row)}: {cure}")
        yield number, tuple(row[column] for column in columns)


def table_rows(path: Path, delimiter: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The line number and the fields of each row of a table, by the names in its header.

    If a row spans several lines, the number is that of the first.
    """
    limit = csv.field_size_limit(2**31 - 1)  # the csv module allows 131,072 characters, in the whole process
    try:
        reader, header = csv.reader(lines(path), delimiter=delimiter, strict=True), list[str]()
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise fault_at(path, line, f"not a row of a table ({error}): check its quotes") from None
            if fields and not header:
                header = [name.strip() for name in fields]
            elif fields and len(fields) != len(header):
                fault = f"{len(fields)} fields, but the header has {len(header)}: quote a field that holds"
                raise fault_at(path, line, f"{fault} {delimiter!r}")
            elif fields:
                yield line, dict(zip(header, fields, strict=True))
    finally:
        csv.field_size_limit(limit)


def json_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines(path), start=1):
        if not line.strip():
            continue
        row = _parsed(path, number, line, "one object")
        if not isinstance(row, dict):
            wanted = f"a line must be an object with {_quoted(columns)}"
            raise fault_at(path, number, f"a {type(row).__name__}, but {wanted}")
        yield number, row


def _check_delimiter(path: Path, columns: Sequence[str], delimiter: str) -> None:
    """Raise if the columns are not there because the file has another delimiter."""
    first = next((line for line in lines(path) if line.strip()), "")
    if "\r" in first.rstrip("\r\n"):
        raise fault_at(path, 1, "a carriage return inside the line: save the file with the line ends of Unix")
    names = {each: [name.strip().strip('"') for name in first.split(each)] for each in (delimiter, *DELIMITERS)}
    if not set(columns) <= set(names[delimiter]):
        for other, name in DELIMITERS.items():
            if len(names[other]) > len(names[delimiter]):
                raise fault_at(path, 1, f"the header looks separated by {name}: use --delimiter {name}")


def _other_column(column: str, free: Sequence[str], option: Sequence[str]) -> str:
    """What to do if there is no such column, with a guess of the right one."""
    if not option:
        return "rename a column"
    lower = {name.lower(): name for name in free}
    alike = difflib.get_close_matches(column.lower(), lower, n=1) or list(lower)[: len(lower) == 1]
    return f"use {option[0]} {shlex.quote(lower[alike[0]]) if alike else 'with one of these'}"


def _parsed(name: Path | str, number: int, line: str, wanted: str) -> Any:
    try:
        value = json.loads(line)
        if "\\ud" in line.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        raise fault_at(name, number, "half of a surrogate pair, which is not valid text: remove it") from None
    except (ValueError, RecursionError) as error:
        raise fault_at(name, number, f"not JSON ({error}): a line must hold {wanted}") from None


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def parsed_delimiter(text: str | None) -> str | None:
    """The delimiter that a user gives as a character or as "tab"; None for the usual one."""
    if text is None or (len(text) == 1 and text not in '"\r\n'):
        return text
    if text.lower() in ("tab", "\\t"):
        return "\t"
    raise InputError(f"--delimiter must be one character such as ';', or tab, got {text!r}")


@dataclass(frozen=True)
class InputFile:
    """The inputs of predictions, read one at a time from a file or from standard input.

    Args:
        path: The file; None for standard input.
        column: The column of a CSV, TSV or JSONL file that holds the input.
        delimiter: The character between the fields of a table; by default a comma, or a tab in a .tsv.
    """

    path: Path | None
    column: str
    delimiter: str | None = None

    def __post_init__(self) -> None:
        if self.path is not None and self.path.is_dir():
            raise InputError(f"{self.path} is a folder, but the input must be a file, or - for standard input")
        if self.path is not None and not self.path.exists():
            raise InputError(f"{self.path} does not exist: name a file with inputs, or - for standard input")

    @property
    def name(self) -> Path | str:
        return self.path or STANDARD_INPUT

    @property
    def ending(self) -> str:
        return "" if self.path is None else ending(self.path)

    def texts(self) -> Iterator[tuple[int, str]]:
        """The line number and the text of each line, or of each row of a table, stripped. A text may be blank."""
        if self.path is None or self.ending not in (*TABLES, ".jsonl"):
            yield from ((number, line.strip()) for number, line in self._lines())
            return
        for number, (value,) in rows(self.path, (self.column,), self.delimiter, ("--text-column",)):
            if not isinstance(value, str | None):
                raise fault_at(self.path, number, f"{self.column!r} is {value!r}, but must be a string")
            yield number, (value or "").strip()

    def values(self) -> Iterator[tuple[int, Any]]:
        """The line number and the value of each input: any JSON value, a row of a table by its columns, or a text."""
        if self.path is not None and self.ending in TABLES:
            yield from table_rows(self.path, self.delimiter or TABLES[self.ending])
            return
        for number, line in self._lines():
            text = line.strip() or None
            as_json = self.ending == ".jsonl" and text is not None
            yield number, _parsed(self.name, number, line, "one input") if as_json else text

    def images(self) -> Iterator[tuple[int, Any]]:
        """The line number and the pixels of each image; in an idx file the number of the image.

        Pixels are bytes in an idx file, a list in a JSONL file, and otherwise numbers of one line, as text, separated
        by commas or blanks. A first line that is no row of numbers is a header.
        """
        if self.path is not None and ("ubyte" in self.path.name or self.ending == ".idx"):
            (count, *sides), pixels = idx(self.path, dimensions=3)
            size = math.prod(sides)
            yield from ((i + 1, pixels[size * i : size * (i + 1)]) for i in range(count))
            return
        for number, line in self._lines():
            if self.ending == ".jsonl":
                value = _parsed(self.name, number, line, "a list of pixels") if line.strip() else []
                value = value.get(self.column) if isinstance(value, dict) else value
                if not isinstance(value, list):
                    wanted = f"a list of pixels, or an object with a list in {self.column!r}"
                    raise fault_at(self.name, number, f"a line must hold {wanted}: name the column with --text-column")
                yield number, value
            else:
                numbers = line.replace(",", " ").split()
                if number > 1 or all(map(_is_number, numbers)):
                    yield number, numbers

    def _lines(self) -> Iterator[tuple[int, str]]:
        read = lines(self.path) if self.path is not None else _decoded(sys.stdin.buffer, STANDARD_INPUT)
        for number, line in enumerate(read, start=1):
            if "\0" in line:
                raise fault_at(self.name, number, "byte 0x00, so this is not a text file: give text in UTF-8")
            yield number, line


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
