"""Readers of text files, plain or gzip, in UTF-8; every error names the file and the line."""

from __future__ import annotations

import contextlib
import csv
import difflib
import gzip
import json
import shlex
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from gasam.lab.errors import InputError

TABLES = {".csv": ",", ".tsv": "\t"}
DELIMITERS = {";": "';'", "\t": "tab", "|": "'|'", ",": "','"}
"""Characters that separate the fields of tables, as users write them for the option --delimiter."""
FIELD_LIMIT = 2**31 - 1


def required(task: str, directory: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """The paths of a task's files in the local layout; raise if one is missing.

    Args:
        task: The name of the task, for the error message.
        directory: The data folder.
        names: The names of the files.
    """
    for name in names:
        if not (directory / name).is_file():
            raise InputError(
                f"{task} needs {name}, which is not in {directory}: run `gasam data get {task}`, "
                "or set --data-dir or GASAM_DATA to a folder that has it"
            )
    return tuple(directory / name for name in names)


def content(path: Path) -> bytes:
    """The bytes of a file, uncompressed if its name ends in .gz."""
    with opened(path) as stream:
        return stream.read()


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file with their line ends.

    Only a newline ends a line, not the other line separators of Unicode. A byte order mark at the start is left out.
    """
    with opened(path) as stream:
        yield from decoded(stream, path)


def decoded(stream: Iterable[bytes], name: Path | str) -> Iterator[str]:
    """The lines of a stream as text; `name` is what errors call it."""
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


@dataclass(frozen=True)
class Layout:
    """How a table is written, if it is not as usual, and the options with which users say so.

    Args:
        delimiter: The character between two fields; by default a comma in a .csv and a tab in a .tsv.
        options: The option that names each column, for error messages.
    """

    delimiter: str | None = None
    options: tuple[str, ...] = ()


def rows(path: Path, columns: Sequence[str], layout: Layout | None = None) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The line number and the values of `columns` for each row of a CSV, TSV or JSONL file, without blank lines.

    If a row spans several lines, the number is that of the first.

    Args:
        path: The file.
        columns: The names of the columns to read.
        layout: How the file is written; by default as usual.
    """
    layout = layout or Layout()
    suffix = ending(path)
    if suffix in TABLES:
        return _table_rows(path, columns, layout.delimiter or TABLES[suffix], layout.options)
    if suffix == ".jsonl":
        if layout.delimiter:
            raise InputError(f"{path}: a JSONL file has no delimiter: leave out --delimiter")
        return _json_rows(path, columns, layout.options)
    raise InputError(f"{path} must end in .csv, .tsv or .jsonl (or these + .gz), got {suffix or 'no ending'!r}")


def ending(path: Path) -> str:
    """The ending of a file's name in lower case, without .gz."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _table_rows(
    path: Path, columns: Sequence[str], delimiter: str, options: Sequence[str]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    if options:
        _check_delimiter(path, columns, delimiter)
    header: list[str] = []
    positions: list[int] = []
    for line, fields in _fields(path, delimiter):
        if not header:
            header = [name.strip() for name in fields]
            positions = [_position(path, line, header, columns, number, options) for number in range(len(columns))]
        elif len(fields) != len(header):
            raise fault_at(
                path,
                line,
                f"{len(fields)} fields, but the header has {len(header)}: quote a field that holds {delimiter!r}",
            )
        else:
            yield line, tuple(fields[position] for position in positions)


def _check_delimiter(path: Path, columns: Sequence[str], delimiter: str) -> None:
    """Raise if the columns are not there because the file has another delimiter."""
    first = next((line for line in lines(path) if line.strip()), "")
    try:
        with _long_fields():
            names = {
                each: [name.strip() for name in next(csv.reader([first], delimiter=each), [])]
                for each in (delimiter, *DELIMITERS)
            }
    except csv.Error:  # a carriage return in the line, perhaps between all lines
        raise fault_at(path, 1, "a carriage return inside the line: save the file with the line ends of Unix") from None
    if not set(columns) <= set(names[delimiter]):
        for other, name in DELIMITERS.items():
            if len(names[other]) > len(names[delimiter]):
                raise fault_at(path, 1, f"the header looks separated by {name}: use --delimiter {name}")


def _fields(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    with _long_fields():
        reader = csv.reader(lines(path), delimiter=delimiter, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise fault_at(path, line, f"not a row of a table ({error}): check its quotes") from None
            if fields:
                yield line, fields


def _json_rows(path: Path, columns: Sequence[str], options: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    for number, line in enumerate(lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise fault_at(path, number, f"not JSON ({error}): a line must hold one object") from None
        if not isinstance(row, dict):
            raise fault_at(
                path, number, f"a {type(row).__name__}, but a line must be an object with {_quoted(columns)}"
            )
        if "\\ud" in line.lower() and not _encodable(row):
            raise fault_at(path, number, "half of a surrogate pair, which is not valid text: remove it")
        for place in range(len(columns)):
            _position(path, number, list(row), columns, place, options)
        yield number, tuple(row[column] for column in columns)


def _position(
    path: Path, line: int, found: list[str], columns: Sequence[str], number: int, options: Sequence[str]
) -> int:
    """The place of a column; raise, with the option that names another column, if it is not there."""
    column = columns[number]
    if column in found:
        return found.index(column)
    cure = "rename a column"
    if options and found:
        free = [name for name in found if name not in columns]
        alike = [name for name in free if name.lower() == column.lower()] or (free if len(free) == 1 else [])
        alike = alike or difflib.get_close_matches(column, free, n=1)
        cure = f"use {options[number]} {shlex.quote(alike[0]) if alike else 'with one of these'}"
    raise fault_at(path, line, f"no column {column!r} among {_quoted(found)}: {cure}")


def _encodable(row: dict[str, Any]) -> bool:
    try:
        return bool(json.dumps(row, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return False


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield cast(BinaryIO, stream)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: not a complete gzip file ({error}): copy or download it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): check its path and permissions") from None


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    """Raise the csv module's limit of 131,072 characters per field. It is global to the process, so restore it."""
    limit = csv.field_size_limit(FIELD_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def fault_at(path: Path | str, line: int, fault: str) -> InputError:
    return InputError(f"{path}, line {line}: {fault}")


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
