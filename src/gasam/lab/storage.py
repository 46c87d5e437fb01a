"""Atomic file writes: a temporary file is written first, then renamed. And reading of JSON files."""

from __future__ import annotations

import errno
import glob
import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM)
"""What a system answers that does not sync folders."""


@contextmanager
def replaced(file: Path) -> Iterator[Path]:
    """Give a temporary path to write to; if the block raises nothing, flush it to disk and rename it to `file`.

    The folder is flushed as well. Otherwise a power cut could undo this rename and keep a later one, for example keep a
    record without its model.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        os.close(handle)
        partial = Path(name)
        try:
            yield partial
            with partial.open("rb+") as stream:
                os.fsync(stream.fileno())
            partial.chmod(0o644)
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(file.parent)
    except OSError as error:
        if error.filename is None:  # the error of a write does not say which file it was
            error.filename = str(file)
        raise


def sync_folder(folder: Path) -> None:
    """Flush the names of a folder's files to disk, if the system can."""
    if os.name == "nt":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise


def leftovers(folder: Path, name: str | None = None) -> Iterator[Path]:
    """The temporary files of `replaced` that a killed process left in a folder, or only those of one file."""
    return folder.glob(f".{'*' if name is None else glob.escape(name)}.????????")


def save_tensors(value: Any, file: Path | IO[bytes]) -> None:
    """Call `torch.save`, and raise `OSError` if the file cannot be written, where torch raises `RuntimeError`."""
    if not isinstance(file, Path):
        torch.save(value, file)
        return
    # An interrupt inside torch.save can make it write to the closed stream in a destructor, which aborts the process.
    with delayed_signals(), file.open("wb") as stream:
        watched = _Watched(stream)
        try:
            torch.save(value, watched)  # type: ignore[arg-type]
        except RuntimeError:
            if watched.fault is not None:
                raise watched.fault from None
            raise


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the block ends. Python handles signals in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    both = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, lambda number, frame: came.append(number)) for each in both}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in came:
            _handle(number)


def _handle(number: int) -> None:
    """Handle a signal now. A handler in Python is called directly, because Ray's processes block signals."""
    handler = signal.getsignal(number)
    if callable(handler):
        handler(number, None)
    else:
        signal.raise_signal(number)


class _Watched:
    """A stream that remembers the error of a write, which torch replaces by one without the reason."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.fault: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.stream.write(data)
        except OSError as error:
            self.fault = error
            raise

    def flush(self) -> None:
        self.stream.flush()


def write_json(file: Path, value: Any) -> None:
    with replaced(file) as partial:
        partial.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_json(file: Path) -> Any:
    """Read JSON; raise `ValueError` if it is none, or has half of a surrogate pair, which no file can hold."""
    text = file.read_text(encoding="utf-8")
    value = json.loads(text)
    if "\\ud" in text.lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair, which is not valid text") from None
    return value
