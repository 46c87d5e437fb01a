"""Readers of text files, plain or gzip, in UTF-8; every error names the file and the line."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from gasam.lab.errors import InputError

TABLES = {".csv": ",", ".tsv": "\t"}
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
    with _opened(path) as stream:
        return stream.read()


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file with their line ends.

    Only a newline ends a line, not the other line separators of Unicode. A byte order mark at the start is left out.
    """
    with _opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                fault = f"byte 0x{line[error.start]:02x} at position {error.start + 1} is not UTF-8"
                raise fault_at(path, number, f"{fault}: save the file as UTF-8") from None


def aligned(source: Path, target: Path) -> list[tuple[str, str]]:
    """Pairs of lines with the same number in two files, stripped."""
    first, second = ([line.strip() for line in lines(path)] for path in (source, target))
    if len(first) != len(second):
        raise InputError(
            f"{source} has {len(first)} lines and {target} has {len(second)}, but line n of one must be the "
            "translation of line n of the other: give files of equal length"
        )
    return list(zip(first, second, strict=True))


def rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The line number and the values of `columns` for each row of a CSV, TSV or JSONL file, without blank lines.

    If a row spans several lines, the number is that of the first.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in TABLES:
        return _table_rows(path, columns, TABLES[suffix])
    if suffix == ".jsonl":
        return _json_rows(path, columns)
    raise InputError(f"{path} must end in .csv, .tsv or .jsonl (or these + .gz), got {suffix or 'no ending'!r}")


def _table_rows(path: Path, columns: Sequence[str], delimiter: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    header: list[str] = []
    positions: list[int] = []
    for line, fields in _fields(path, delimiter):
        if not header:
            header = [name.strip() for name in fields]
            positions = [_position(path, line, header, column) for column in columns]
        elif len(fields) != len(header):
            raise fault_at(
                path,
                line,
                f"{len(fields)} fields, but the header has {len(header)}: quote a field that holds {delimiter!r}",
            )
        else:
            yield line, tuple(fields[position] for position in positions)


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


def _json_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
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
        for column in columns:
            _position(path, number, list(row), column)
        yield number, tuple(row[column] for column in columns)


def _position(path: Path, line: int, found: list[str], column: str) -> int:
    if column not in found:
        raise fault_at(path, line, f"no column {column!r} among {_quoted(found)}: rename a column, or name another one")
    return found.index(column)


def _encodable(row: dict[str, Any]) -> bool:
    try:
        return bool(json.dumps(row, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return False


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
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


def fault_at(path: Path, line: int, fault: str) -> InputError:
    return InputError(f"{path}, line {line}: {fault}")


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
