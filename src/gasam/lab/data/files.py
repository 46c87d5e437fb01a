"""Readers of text files, tables and idx files, plain or gzip; an error names the file, the line and the cure."""

from __future__ import annotations

import csv
import gzip
import json
import math
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, cast

from gasam.lab.errors import InputError

TABLES = (".csv", ".tsv")
DELIMITERS = (",", "\t", ";", "|")
STANDARD_INPUT = "standard input"


def fault_at(path: Path | str, line: int, fault: str) -> InputError:
    return InputError(f"{path}, line {line}: {fault}")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, uncompressed if its name ends in .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield cast(BinaryIO, stream)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: not a complete gzip file ({error}): copy or download it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): check its path and permissions") from None


def content(path: Path) -> bytes:
    with opened(path) as stream:
        return stream.read()


def ending(path: Path | None) -> str:
    """The ending of a file's name in lower case, without .gz."""
    return "" if path is None else Path(path.name.removesuffix(".gz")).suffix.lower()


def lines(path: Path | None) -> Iterator[str]:
    """The lines of a text file, or of standard input, with their newlines; no other character ends a line."""
    with nullcontext(sys.stdin.buffer) if path is None else opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                fault = f"byte 0x{line[error.start]:02x} at position {error.start + 1} is not UTF-8"
                raise fault_at(path or STANDARD_INPUT, number, f"{fault}: save the file as UTF-8") from None


def aligned(source: Path, target: Path) -> list[tuple[str, str]]:
    first, second = ([line.strip() for line in lines(path)] for path in (source, target))
    if len(first) != len(second):
        raise InputError(
            f"{source} has {len(first)} lines and {target} has {len(second)}, but line n of one must be the "
            "translation of line n of the other: give files of equal length"
        )
    return list(zip(first, second, strict=True))


def idx(path: Path, dimensions: int) -> tuple[tuple[int, ...], bytes]:
    """The sizes and the bytes of a file in the idx format: big-endian magic number, then sizes, then data."""
    data, start, magic = content(path), 4 * (1 + dimensions), 2048 + dimensions
    if len(data) < start:
        raise InputError(f"{path}: {len(data)} bytes, but the header alone has {start}: copy it again")
    found, *sizes = struct.unpack(f">{1 + dimensions}I", data[:start])
    if found != magic:
        raise InputError(f"{path}: magic number {found}, but it must be {magic}: copy it again")
    if len(data) - start != (size := math.prod(sizes)):
        raise InputError(f"{path}: {len(data) - start} bytes of data, but the header says {size}: copy it again")
    return tuple(sizes), data[start:]


def values(path: Path | None, columns: Sequence[str] = ()) -> Iterator[tuple[int, Any]]:
    """The line number and the value of each line of a file, or of standard input; None for a blank line.

    A row of a .csv or .tsv is a dictionary by the names in its header, a line of a .jsonl is any JSON value, and every
    other line is a text, stripped. The delimiter of a table is the one that finds `columns` in its header.
    """
    if path is not None and ending(path) in TABLES:
        yield from _table(path, columns)
        return
    for number, line in enumerate(lines(path), start=1):
        text = line.strip() or None
        yield number, _parsed(path, number, text) if path and text and ending(path) == ".jsonl" else text


def rows(path: Path, columns: Sequence[str], options: Sequence[str] = ()) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The line number and the values of `columns` for each row of a table; `options` name them in error messages."""
    if ending(path) not in (*TABLES, ".jsonl"):
        raise InputError(f"{path} must end in .csv, .tsv or .jsonl (or these + .gz), got {ending(path)!r}")
    for number, row in values(path, columns):
        if row is None:
            continue
        if not isinstance(row, dict):
            wanted = f"a line must be an object with {', '.join(map(repr, columns))}"
            raise fault_at(path, number, f"a {type(row).__name__}, but {wanted}")
        for column, option in zip(columns, options or columns, strict=True):
            if column not in row:
                cure = f"name it with {option}" if options else "rename a column"
                line = 1 if ending(path) in TABLES else number
                raise fault_at(path, line, f"no column {column!r} among {', '.join(map(repr, row))}: {cure}")
        yield number, tuple(row[column] for column in columns)


def texts(path: Path | None, column: str) -> Iterator[tuple[int, str | None]]:
    """The line number and the text of each line, or of each row of a table, stripped; None for a blank one."""
    if path is None or ending(path) not in (*TABLES, ".jsonl"):
        yield from values(path)
        return
    for number, (value,) in rows(path, (column,), ("--text-column",)):
        if not isinstance(value, str | None):
            raise fault_at(path, number, f"{column!r} is {value!r}, but must be a string")
        yield number, (value or "").strip() or None


def _table(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table. If a row spans several lines, its number is that of the first."""
    delimiter = _delimiter(path, columns)
    limit = csv.field_size_limit(2**31 - 1)  # the csv module allows 131,072 characters, in the whole process
    try:
        reader, found = csv.reader(lines(path), delimiter=delimiter, strict=True), list[str]()
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise fault_at(path, line, f"not a row of a table ({error}): check its quotes and line ends") from None
            if fields and not found:
                found = [name.strip() for name in fields]
            elif fields and len(fields) != len(found):
                fault = f"{len(fields)} fields, but the header has {len(found)}: quote a field that holds"
                raise fault_at(path, line, f"{fault} {delimiter!r}")
            elif fields:
                yield line, dict(zip(found, fields, strict=True))
    finally:
        csv.field_size_limit(limit)


def _delimiter(path: Path, columns: Sequence[str]) -> str:
    """The delimiter that finds the columns in the header; if several do, that with most fields."""
    header = next((line for line in lines(path) if line.strip()), "")

    def rank(delimiter: str) -> tuple[bool, int]:
        names = [name.strip(' "\r\n') for name in header.split(delimiter)]
        return set(columns) <= set(names), len(names)

    return max(DELIMITERS, key=rank)


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        value = json.loads(line)
        if "\\ud" in line.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        raise fault_at(path, number, "half of a surrogate pair, which is not valid text: remove it") from None
    except (ValueError, RecursionError) as error:
        raise fault_at(path, number, f"not JSON ({error}): a line must hold one JSON value") from None
