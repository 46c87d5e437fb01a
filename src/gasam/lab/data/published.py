"""Published data: the files of a task, the check of existing files, and the download of missing ones."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gasam.lab.data.files import content, lines, rows
from gasam.lab.errors import InputError
from gasam.lab.storage import replaced

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    files: tuple[str, ...]
    place: str  # an address, or a repository on the Hugging Face hub
    download: Callable[[], list[bytes]]  # gives the contents of the files


def on_hub(
    files: tuple[str, ...], convert: Callable[[list[Row]], list[bytes]], repository: str, configuration: str, split: str
) -> Part:
    """Files made from one split of a dataset on the Hugging Face hub; `convert` makes their contents of its rows."""
    place = f"{repository} on the Hugging Face hub"
    return Part(files, place, lambda: convert(list(load_from_hub(repository, configuration, split))))


def on_web(name: str, address: str) -> Part:
    return Part((name,), address, lambda: [fetch_from_web(address)])


@dataclass(frozen=True)
class Published:
    """The files of a task in the local layout, and where to download them. The addresses have not been tested.

    `known` has the number of rows of each file, and the checksum of its content if that is known. A file that is in no
    part is a substitute: it may replace missing training files.
    """

    parts: tuple[Part, ...]
    form: str  # the format of the files, for users who copy them by hand
    known: Mapping[str, tuple[int, str | None]]

    @property
    def files(self) -> list[str]:
        return [name for part in self.parts for name in part.files]


@dataclass(frozen=True)
class FileState:
    name: str
    path: Path
    size: int | None  # None if it is missing
    checksum: str  # "ok" or "different"; "unknown" if it is missing or none is known
    substitute: bool


def inspect(published: Published, directory: Path) -> list[FileState]:
    states = []
    for name, (_, known) in published.known.items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        judged = "unknown" if None in (known, size) else "ok" if checksum(path) == known else "different"
        states.append(FileState(name, path, size, judged, name not in published.files))
    return states


def get(task: str, published: Published, directory: Path) -> list[FileState]:
    """Download and convert the missing files of a task, and return the state of all files; nothing is overwritten."""
    for part in published.parts:
        missing = [name for name in part.files if not (directory / name).is_file()]
        if not missing:
            continue
        try:
            made = dict(zip(part.files, part.download(), strict=True))
            for name, data in made.items():
                expected, _ = published.known[name]
                count = int.from_bytes(data[4:8]) if "ubyte" in name else len(data.removesuffix(b"\n").split(b"\n"))
                if count != expected:
                    raise InputError(f"it has {count:,} rows, but {name} must have {expected:,}")
        except Exception as error:  # the libraries have no common exception for a failed download
            names = ", ".join(name for name in published.files if not (directory / name).is_file())
            said = " ".join(str(error).split())
            reason = said if isinstance(error, InputError) else f"{type(error).__name__}: {said}"[:200]
            raise InputError(
                f"the data of {task} is incomplete because the download from {part.place} failed ({reason}): run "
                f"`gasam data --get {task}` with an internet connection, or copy {names} into {directory} "
                f"({published.form})"
            ) from error
        for name in missing:
            with replaced(directory / name) as partial:
                partial.write_bytes(gzip.compress(made[name], mtime=0) if name.endswith(".gz") else made[name])
    return inspect(published, directory)


def load_from_hub(repository: str, configuration: str, split: str) -> Any:
    """The rows of a split, from the hub's branch with parquet files, which also exists for datasets made by scripts."""
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        raise InputError("the package datasets is not installed: run `pip install gasam[download]`") from None
    files = f"hf://datasets/{repository}@refs/convert/parquet/{configuration}/{split}/*.parquet"
    return datasets.load_dataset("parquet", data_files=files, split="train")


def fetch_from_web(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as response:
        return bytes(response.read())


def as_lines(sentences: Iterable[str]) -> bytes:
    """One line for each sentence; newlines inside a sentence become blanks."""
    return "".join(sentence.strip().replace("\n", " ") + "\n" for sentence in sentences).encode()


def checksum(path: Path) -> str | None:
    """The checksum of a file's content: its bytes, stripped lines, or sorted reviews; None if it cannot be read."""
    try:
        if "ubyte" in path.name:
            return hashlib.sha256(content(path)).hexdigest()
        if path.name.endswith(".jsonl.gz"):
            text = sorted(f"{label} {text}" for _, (text, label) in rows(path, ("text", "label")))
        else:
            text = [line.strip() for line in lines(path)]
    except InputError:
        return None
    return hashlib.sha256("\n".join(text).encode()).hexdigest()
