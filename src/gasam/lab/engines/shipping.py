"""Sending what a job needs to a machine without access to our files, and its results back, as bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from gasam.lab.data.corpus import cache_directory
from gasam.lab.families import encoded
from gasam.lab.families.encoded import Encoded
from gasam.lab.storage import replaced

Files = dict[str, bytes]
"""The content of files by their path in the folder of all jobs."""
NOT_SENT = (".lock", "error.txt")
"""Names of files that belong to the machine they are on."""


@dataclass(frozen=True)
class Snapshot:
    """The files of a worker's folder.

    Args:
        files: The files that changed since the last snapshot, in the order in which they were written.
        names: The names of all files.
    """

    files: Files
    names: frozenset[str]


class SentFiles:
    """The files of a worker's folder, and which of them the other side has."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        self.known = self._stamps()
        self.sent = self.known

    def received(self) -> None:
        """Note that the other side has the last snapshot. Until then its files count as changed."""
        self.known = self.sent

    def changes(self) -> Snapshot | None:
        """What changed since the last snapshot that was received; None if nothing did."""
        now = self._stamps()
        if now == self.known:
            return None
        changed = [name for name, stamp in now.items() if self.known.get(name) != stamp]
        # The order of writing matters: whoever is killed between two files must not have a state that is newer than
        # the weights that it refers to. For files of the same instant the names happen to be in that order.
        changed.sort(key=lambda name: (now[name], "/" not in name, name))
        self.sent = now
        return Snapshot({name: (self.folder / name).read_bytes() for name in changed}, frozenset(now))

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """The time of the last change of each file, and its inode, which is new when a file is replaced."""
        stats = {name: (self.folder / name).stat() for name in _names(self.folder, "**/*")}
        return {name: (stat.st_mtime_ns, stat.st_ino) for name, stat in stats.items()}


def read_files(folder: Path, job: str) -> Files:
    """The files of a job in the folder of all jobs: its record, its own folder, and what an interruption left.

    Files whose writing was interrupted, which begin with a dot, are left out.
    """
    names = [name for name in _files_of(folder, job) if f"/{name}".count("/.") == (name == f".{job}.json")]
    return {name: (folder / name).read_bytes() for name in names}


def write_snapshot(folder: Path, job: str, snapshot: Snapshot) -> None:
    """Write the files of a snapshot, then delete the job's other files."""
    for name, content in snapshot.files.items():
        with replaced(folder / name) as partial:
            partial.write_bytes(content)
    for name in _files_of(folder, job):
        if name not in snapshot.names:
            (folder / name).unlink(missing_ok=True)


def _files_of(folder: Path, job: str) -> list[str]:
    return [name for pattern in (f"{job}.json", f".{job}.json", f"{job}/**/*") for name in _names(folder, pattern)]


def _names(folder: Path, pattern: str) -> Iterator[str]:
    for file in folder.glob(pattern):
        if file.is_file() and file.name not in NOT_SENT:
            yield file.relative_to(folder).as_posix()


def data_bytes(data: Encoded) -> tuple[str, bytes]:
    """Encoded data as bytes, and their hash."""
    stream = BytesIO()
    encoded.save(data, stream)
    content = stream.getvalue()
    return hashlib.sha256(content).hexdigest(), content


def received_data(digest: str, fetch: Callable[[], bytes]) -> Encoded:
    """The data with this hash: from the cache of this machine, or else fetched and kept there."""
    file = cache_directory() / "received" / f"{digest}.pt"
    with suppress(Exception):  # missing or damaged: fetch it again
        return encoded.load(file)
    content = fetch()
    with suppress(OSError):  # a machine without a place for the cache fetches the data for every run
        with replaced(file) as partial:
            partial.write_bytes(content)
    return encoded.load(BytesIO(content))
