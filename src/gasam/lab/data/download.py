"""Published data: what of it is there, and how to fetch the rest into the local layout."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import json
import struct
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gasam.lab.data.manifest import CHECKSUMS, MANIFESTS, ROWS, HubSplit, Manifest, WebFile
from gasam.lab.data.packages import installed
from gasam.lab.data.reading import content, lines, rows
from gasam.lab.errors import InputError
from gasam.lab.storage import replaced

Row = Mapping[str, Any]
Load = Callable[[str, str, str], Iterable[Row]]
Fetch = Callable[[str], bytes]


@dataclass(frozen=True)
class FileState:
    """`checksum` is "unknown" where there is nothing to compare, also for want of the file.

    A `substitute` is used where the training files of its task are not there, and is not fetched.
    """

    name: str
    path: Path
    found: bool
    size: int
    checksum: Literal["ok", "different", "unknown"]
    substitute: bool


def inspect(task: str, directory: Path) -> list[FileState]:
    """All files of a task, whether they are there or not."""
    manifest = _manifest(task)
    needed = [(name, False) for part in manifest.parts for name in part.files]
    return [_state(directory, name, other) for name, other in needed + [(name, True) for name in manifest.substitutes]]


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


def get(task: str, directory: Path, load: Load = load_from_hub, fetch: Fetch = fetch_from_web) -> list[FileState]:
    """Fetches the files that are not there, converts them, and gives the state of all; nothing is written over.

    What is fetched must have the known number of rows. Its packing is ours, so the checksums are of the content: a
    file whose content is not the known one is kept and told as "different".
    """
    manifest = _manifest(task)
    for part in manifest.parts:
        missing = [name for name in part.files if not (directory / name).is_file()]
        if missing:
            try:
                made = _converted(part, load, fetch)
            except Exception as error:  # the libraries below have no common class for a failed download
                raise _by_hand(task, directory, manifest, f"{part} did not give it ({_sentence(error)})") from error
            for name in missing:
                _write(directory / name, made[name])
    return inspect(task, directory)


def checksum(path: Path) -> str:
    """Of what is in a file, however packed: its bytes, its lines without outer blanks, or its reviews in any order."""
    if path.name.endswith(".jsonl.gz"):
        text = sorted(f"{label} {text}" for _, (text, label) in rows(path, ("text", "label")))
    elif "ubyte" in path.name:
        return hashlib.sha256(content(path)).hexdigest()
    else:
        text = [line.strip() for line in lines(path)]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _manifest(task: str) -> Manifest:
    if task not in MANIFESTS:
        raise InputError(f"data of {task!r} cannot be downloaded: those of {', '.join(MANIFESTS)} can")
    return MANIFESTS[task]


def _state(directory: Path, name: str, substitute: bool) -> FileState:
    path = directory / name
    if not path.is_file():
        return FileState(name, path, False, 0, "unknown", substitute)
    return FileState(name, path, True, path.stat().st_size, _judged(path, CHECKSUMS.get(name)), substitute)


def _judged(path: Path, known: str | None) -> Literal["ok", "different", "unknown"]:
    if known is None:
        return "unknown"
    try:
        return "ok" if checksum(path) == known else "different"
    except InputError:  # not even readable as what it should be
        return "different"


def _converted(part: HubSplit | WebFile, load: Load, fetch: Fetch) -> dict[str, bytes]:
    """The content of each file of a part, which has as many rows as it must."""
    if isinstance(part, WebFile):
        text = fetch(part.address)
        _count(part, sum(1 for _ in io.BytesIO(text)))
        return {part.files[0]: text}
    table = list(load(part.repository, part.configuration, part.split))
    _count(part, len(table))
    return dict(zip(part.files, FORMS[part.form](table), strict=True))


def _count(part: HubSplit | WebFile, found: int) -> None:
    expected = ROWS[part.files[0]]
    if found != expected:
        raise InputError(f"it has {found:,} rows for {part.files[0]}, which must have {expected:,}")


def _reviews(table: list[Row]) -> list[bytes]:
    return [_text(json.dumps({"label": row["label"], "text": row["text"]}, ensure_ascii=False) for row in table)]


def _sentences(table: list[Row]) -> list[bytes]:
    return [_text(row["sentence"] for row in table)]


def _pairs(table: list[Row]) -> list[bytes]:
    return [_text(row["translation"][language] for row in table) for language in ("de", "en")]


def _images(table: list[Row]) -> list[bytes]:
    """The idx format: a magic number, the sizes, the bytes."""
    pictures = [row["image"].convert("L") for row in table]
    width, height = pictures[0].size
    pixels = b"".join(picture.tobytes() for picture in pictures)
    labels = bytes(row["label"] for row in table)
    return [struct.pack(">4I", 2051, len(table), height, width) + pixels, struct.pack(">2I", 2049, len(table)) + labels]


FORMS: dict[str, Callable[[list[Row]], list[bytes]]] = {
    "reviews": _reviews,
    "sentences": _sentences,
    "pairs": _pairs,
    "images": _images,
}


def _text(sentences: Iterable[str]) -> bytes:
    """A line each, whatever breaks they had inside."""
    return "".join(sentence.strip().replace("\n", " ") + "\n" for sentence in sentences).encode()


def _write(path: Path, data: bytes) -> None:
    with replaced(path) as partial:
        partial.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _by_hand(task: str, directory: Path, manifest: Manifest, reason: str) -> InputError:
    names = ", ".join(name for part in manifest.parts for name in part.files if not (directory / name).is_file())
    return InputError(
        f"{task} is not complete because {reason}: run `gasam data get {task}` where there is a connection, "
        f"or put {names} into {directory} by hand ({manifest.form})"
    )


def _sentence(error: Exception) -> str:
    """The start of a message, in one line."""
    message = " ".join(str(error).split())
    return message if isinstance(error, InputError) else f"{type(error).__name__}: {message}"[:200]
