"""Files that survive a kill: atomic writes, the checkpoints of a run, and Ctrl-C that waits until they are written."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import Tensor, nn

from gasam.lab.errors import InputError

Weights = dict[str, Tensor]


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
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        # What a system answers that does not sync folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM):
            raise


def as_bytes(value: Any) -> bytes:
    """What `torch.save` writes, in memory.

    Written to a file, `torch.save` hides the reason of a full disk, and an interrupt can make it abort the process.
    """
    stream = BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def save_weights(model: nn.Module, file: Path) -> None:
    """Write the weights of a model as safetensors, whose text of a system's error becomes an `OSError`."""
    with replaced(file) as partial:
        try:
            save_model(model, str(partial))
        except SafetensorError as error:
            if number := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
            raise


def write_json(file: Path, value: Any) -> None:
    with replaced(file) as partial:
        partial.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


class Checkpoints:
    """The checkpoint files of a run. Killed between two of them, it resumes earlier and writes the same bits again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last = folder / "last.pt"
        self.best = folder / "best.pt"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the files for this process; raise if another process runs the same run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / ".lock", timeout=0):
                yield
        except Timeout:
            name = self.folder.name
            raise InputError(f"{name} is being run by another process: wait for it, or choose another --out") from None

    def save(self, file: Path, value: dict[str, Any]) -> None:
        with replaced(file) as partial:
            partial.write_bytes(as_bytes(value))

    def load(self, file: Path) -> dict[str, Any] | None:
        """Load a file, or None if it does not exist. Loading never runs code from the file."""
        if not file.exists():
            return None
        with suppress(Exception):  # whatever the damage raises
            value = torch.load(file, weights_only=True, map_location="cpu")
            if isinstance(value, dict):
                return value
        raise self.damaged(file)

    def damaged(self, file: Path) -> InputError:
        return InputError(f"{file} is not a checkpoint of this program: delete {self.folder} to start again")

    def epoch(self, number: int) -> Path:
        return self.folder / f"epoch-{number:04}.pt"

    def average(self, last: int, count: int) -> Weights:
        """The mean of the weights of the `count` epochs up to `last`, summed in double precision."""
        total: Weights = {}
        for number in range(last - count + 1, last + 1):
            weights = self.load(self.epoch(number))
            assert weights is not None
            for name, tensor in weights.items():
                total[name] = total.get(name, 0.0) + tensor.double() if tensor.is_floating_point() else tensor
            like = {name: tensor.dtype for name, tensor in weights.items()}
        return {name: (t / count if like[name].is_floating_point else t).to(like[name]) for name, t in total.items()}

    def clean(self) -> None:
        """Delete all checkpoints and partial files. The lock stays, because another process may be waiting for it."""
        name = glob.escape(f"{self.folder.name}.json")
        partial = (*self.folder.glob(".*.????????"), *self.folder.parent.glob(f".{name}.????????"))
        for file in (self.last, self.best, *self.folder.glob("epoch-*.pt"), *partial):
            if file.exists():  # nothing is deleted from a folder that can only be read
                file.unlink(missing_ok=True)


class Interruption:
    """Inside this context the first signal waits for `stop_if_wanted`, and a second one raises at once."""

    def __init__(self) -> None:
        self.wanted = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def stop_if_wanted(self) -> None:
        if self.wanted:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
