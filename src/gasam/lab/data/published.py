"""Published data: what a task's files are, which of them are there, and how to fetch the rest into the local layout."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gasam.lab.data.locations import installed
from gasam.lab.data.reading import content, lines, rows
from gasam.lab.errors import InputError
from gasam.lab.storage import replaced

Row = Mapping[str, Any]
Load = Callable[[str, str, str], Iterable[Row]]
Fetch = Callable[[str], bytes]


@dataclass(frozen=True)
class HubSplit:
    """Files made out of one split of a dataset on the Hugging Face hub; `convert` gives their contents."""

    files: tuple[str, ...]
    convert: Callable[[list[Row]], list[bytes]]
    repository: str
    configuration: str
    split: str

    def __str__(self) -> str:
        return f"{self.repository} on the Hugging Face hub"


@dataclass(frozen=True)
class WebFile:
    """A text file at an address of its own."""

    files: tuple[str]
    address: str

    def __str__(self) -> str:
        return self.address


class Known(NamedTuple):
    """What is known of a file's content: its rows, and its checksum where a whole copy was at hand."""

    rows: int
    checksum: str | None


@dataclass(frozen=True)
class Published:
    """The files of a task in the local layout, and where to get them.

    None of the addresses could be tried where they were written down.

    Args:
        parts: What is fetched.
        form: What is in the files, for who puts them there by hand.
        contents: A line a file: its name, its rows, and the checksum of its content, or - if that is not known.
        substitutes: Files that may stand in for training files. They are not fetched.
    """

    parts: tuple[HubSplit | WebFile, ...]
    form: str
    contents: str
    substitutes: tuple[str, ...] = ()

    @property
    def known(self) -> dict[str, Known]:
        table = [line.split() for line in self.contents.strip().splitlines()]
        return {name: Known(int(count), None if sha == "-" else sha) for name, count, sha in table}

    @property
    def files(self) -> list[str]:
        return [name for part in self.parts for name in part.files]


@dataclass(frozen=True)
class FileState:
    """`checksum` is "unknown" where there is nothing to compare, also for want of the file."""

    name: str
    path: Path
    found: bool
    size: int
    checksum: Literal["ok", "different", "unknown"]
    substitute: bool


def inspect(published: Published, directory: Path) -> list[FileState]:
    """All files of a task, whether they are there or not."""
    return [_state(published, directory, name) for name in (*published.files, *published.substitutes)]


def get(
    task: str, published: Published, directory: Path, load: Load | None = None, fetch: Fetch | None = None
) -> list[FileState]:
    """Fetch the files that are not there, convert them, and give the state of all; nothing is written over.

    What is fetched must have the known number of rows. A file whose content is not the known one is kept, and its
    state says "different".
    """
    for part in published.parts:
        missing = [name for name in part.files if not (directory / name).is_file()]
        if missing:
            try:
                made = _fetched(part, published, load or load_from_hub, fetch or fetch_from_web)
            except Exception as error:  # the libraries below have no common class for a failed download
                reason = f"{part} did not give it ({_sentence(error)})"
                raise _by_hand(task, published, directory, reason) from error
            for name in missing:
                _write(directory / name, made[name])
    return inspect(published, directory)


def load_from_hub(repository: str, configuration: str, split: str) -> Iterable[Row]:
    """The rows of a split, from the branch where the hub keeps every dataset as parquet, also those made by scripts."""
    installed("downloading", "datasets", extra="download")
    datasets: Any = importlib.import_module("datasets")
    files = f"hf://datasets/{repository}@refs/convert/parquet/{configuration}/{split}/*.parquet"
    rows_of_split: Iterable[Row] = datasets.load_dataset("parquet", data_files=files, split="train")
    return rows_of_split


def fetch_from_web(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as response:
        return bytes(response.read())


def as_lines(sentences: Iterable[str]) -> bytes:
    """A line each, whatever breaks they had inside."""
    return "".join(sentence.strip().replace("\n", " ") + "\n" for sentence in sentences).encode()


def checksum(path: Path) -> str:
    """Of what is in a file, however packed: its bytes, its lines without outer blanks, or its reviews in any order."""
    if path.name.endswith(".jsonl.gz"):
        text = sorted(f"{label} {text}" for _, (text, label) in rows(path, ("text", "label")))
    elif "ubyte" in path.name:
        return hashlib.sha256(content(path)).hexdigest()
    else:
        text = [line.strip() for line in lines(path)]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _state(published: Published, directory: Path, name: str) -> FileState:
    path, substitute = directory / name, name in published.substitutes
    if not path.is_file():
        return FileState(name, path, False, 0, "unknown", substitute)
    return FileState(name, path, True, path.stat().st_size, _judged(path, published.known[name].checksum), substitute)


def _judged(path: Path, known: str | None) -> Literal["ok", "different", "unknown"]:
    if known is None:
        return "unknown"
    try:
        return "ok" if checksum(path) == known else "different"
    except InputError:  # not even readable as what it should be
        return "different"


def _fetched(part: HubSplit | WebFile, published: Published, load: Load, fetch: Fetch) -> dict[str, bytes]:
    """The content of each file of a part, if it has as many rows as it must."""
    if isinstance(part, WebFile):
        text = fetch(part.address)
        count = sum(1 for _ in io.BytesIO(text))
        contents = [text]
    else:
        table = list(load(part.repository, part.configuration, part.split))
        count = len(table)
        contents = part.convert(table) if table else []
    expected = published.known[part.files[0]].rows
    if count != expected:
        raise InputError(f"it has {count:,} rows for {part.files[0]}, which must have {expected:,}")
    return dict(zip(part.files, contents, strict=True))


def _write(path: Path, data: bytes) -> None:
    with replaced(path) as partial:
        partial.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _by_hand(task: str, published: Published, directory: Path, reason: str) -> InputError:
    names = ", ".join(name for name in published.files if not (directory / name).is_file())
    return InputError(
        f"{task} is not complete because {reason}: run `gasam data get {task}` where there is a connection, "
        f"or put {names} into {directory} by hand ({published.form})"
    )


def _sentence(error: Exception) -> str:
    """The start of a message, in one line."""
    message = " ".join(str(error).split())
    return message if isinstance(error, InputError) else f"{type(error).__name__}: {message}"[:200]
