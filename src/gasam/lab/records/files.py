"""Read and write records as JSON files; a file that is not one is reported in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from gasam.lab.errors import InputError
from gasam.lab.records.contents import AnalysisRecord, RunRecord
from gasam.lab.storage import read_json, write_json

Kind = TypeVar("Kind")


def read(file: Path) -> RunRecord:
    """Read the record of a run; raise `InputError` if the file is not one."""
    return read_as(RunRecord, "a record", file)


def read_analysis(file: Path) -> AnalysisRecord:
    """Read the record of an analysis; raise `InputError` if the file is not one."""
    return read_as(AnalysisRecord, "the record of an analysis", file)


def read_all(folder: Path) -> Iterator[RunRecord]:
    """Read the records of all runs in a folder, in the order of their names."""
    for file in sorted(folder.glob("*.json")):
        yield read(file)


def read_as(kind: type[Kind], what: str, file: Path) -> Kind:
    """Read a JSON file as an object of the class `kind`.

    Args:
        kind: The class to read.
        what: What the error message calls such a file.
        file: The file to read.
    """
    try:
        return TypeAdapter(kind).validate_python(read_json(file))
    except ValidationError as error:
        fault = _first_fault(error)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}): check what it is, and its permissions") from None
    except (ValueError, RecursionError) as error:
        fault = str(error)
    raise InputError(f"{file} is not {what}: {fault}; delete it and run again")


def write(file: Path, record: RunRecord | AnalysisRecord) -> None:
    write_json(file, as_json(record))


def as_json(record: RunRecord | AnalysisRecord) -> dict[str, Any]:
    return record.model_dump(by_alias=True)


def _first_fault(error: ValidationError) -> str:
    """A few words that say what is missing, or which value is wrong."""
    faults = error.errors(include_url=False)
    missing = [str(fault["loc"][-1]) for fault in faults if fault["type"] == "missing"]
    if missing:
        return f"it lacks {', '.join(missing)}"
    place = ".".join(map(str, faults[0]["loc"])) or "the file"
    if place == "schema":
        return "schema: it is not 1, so a newer gasam may have written it"
    return f"{place}: {faults[0]['msg']}"
