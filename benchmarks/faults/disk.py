"""A disk that fails on request: it numbers the operations of a process below a folder, and one of them goes wrong.

The operations are those that Python and safetensors ask the system for: mkdir, open for writing, write, sync, rename
and delete. The weights of a model are one write, because safetensors opens and writes the file itself.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch

FAULTS = ("kill", "torn", "power", "EIO", "ENOSPC")
"""End the process; end it in the middle of a write; cut the power; an error of the device; a disk that stays full."""
KILLED = 137
NEEDS_SPACE = ("mkdir", "open", "write")
real_open, real_os_open, real_fsync, real_replace = io.open, os.open, os.fsync, os.replace
real_unlink, real_mkdir, real_save_file = os.unlink, os.mkdir, safetensors.torch.save_file


class Disk:
    """Numbers the operations below `root` from 1, and lets number `at` go wrong. It stays in its process for good.

    A power cut loses what was not synced: each file that was written loses its second half, and each rename is undone,
    with probability one half. A sync of a folder makes its renames durable.

    Args:
        root: The folder whose files are watched.
        fault: One of `FAULTS`; None only counts.
        at: The number of the operation that goes wrong.
        seed: Decides what a power cut loses.
    """

    def __init__(self, root: Path, fault: str | None = None, at: int = 0, seed: int = 0) -> None:
        self.root, self.fault, self.at, self.random = os.path.abspath(root), fault, at, random.Random(seed)
        self.operations: list[str] = []
        self.opened: dict[int, str] = {}
        self.dirty: set[str] = set()
        self.renamed: list[tuple[str, bytes | None]] = []

    def install(self) -> None:
        builtins.open = io.open = self.open  # type: ignore[assignment]
        os.open, os.fsync, os.replace, os.unlink, os.mkdir = (
            self.os_open, self.fsync, self.replace, self.unlink, self.mkdir,
        )  # fmt: skip
        safetensors.torch.save_file = self.save_file

    def watches(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(os.fspath(path)).startswith(self.root)

    def operation(self, kind: str, path: Any, half: Callable[[], object] = lambda: None) -> None:
        """Count one operation, and let it fail if it is its turn. `half` does a part of it."""
        self.operations.append(kind)
        number = len(self.operations)
        name = None if kind == "write" else os.fspath(path)  # a failed write does not name its file
        if self.fault == "ENOSPC" and number >= self.at and kind in NEEDS_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        if number != self.at:
            return
        if self.fault == "EIO":
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        if self.fault == "torn":
            half()
        if self.fault == "power":
            half()
            self.cut()
        if self.fault in ("kill", "torn", "power"):
            os._exit(KILLED)

    def cut(self) -> None:
        for path, before in reversed(self.renamed):
            if self.random.random() < 0.5:
                if before is not None:
                    with real_open(path, "wb") as stream:
                        stream.write(before)
                elif os.path.exists(path):
                    real_unlink(path)
        for path in sorted(self.dirty):
            if os.path.exists(path) and self.random.random() < 0.5:
                os.truncate(path, os.path.getsize(path) // 2)

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *args: Any, **options: Any) -> Any:
        if not self.watches(file) or not set(mode) & set("wax+"):
            return real_open(file, mode, buffering, *args, **options)
        self.operation("open", file)
        raw = Raw(self, os.path.abspath(os.fspath(file)), mode.replace("b", "").replace("t", ""))
        stream: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return stream if "b" in mode else io.TextIOWrapper(stream, *args, **options)

    def os_open(self, path: Any, flags: int, *args: Any, **options: Any) -> int:
        watched = self.watches(path)
        if watched and flags & (os.O_WRONLY | os.O_RDWR):
            self.operation("open", path)
        handle = real_os_open(path, flags, *args, **options)
        if watched:
            self.opened[handle] = os.path.abspath(os.fspath(path))
        return handle

    def fsync(self, handle: int) -> None:
        path = self.opened.get(handle)
        if path is not None:
            self.operation("sync", path)
        real_fsync(handle)
        self.dirty.discard(path or "")
        self.renamed = [entry for entry in self.renamed if os.path.dirname(entry[0]) != path]

    def replace(self, source: Any, target: Any, **options: Any) -> None:
        if not self.watches(target):
            return real_replace(source, target, **options)
        self.operation("rename", target)
        before, after = os.path.abspath(os.fspath(source)), os.path.abspath(os.fspath(target))
        old = Path(after).read_bytes() if os.path.exists(after) else None
        real_replace(source, target, **options)
        self.renamed.append((after, old))
        self.dirty.discard(after)
        if before in self.dirty:
            self.dirty.discard(before)
            self.dirty.add(after)
        return None

    def unlink(self, path: Any, **options: Any) -> None:
        if self.watches(path) and os.path.lexists(path):
            self.operation("delete", path)
        real_unlink(path, **options)

    def mkdir(self, path: Any, *args: Any, **options: Any) -> None:
        if self.watches(path) and not os.path.lexists(path):
            self.operation("mkdir", path)
        real_mkdir(path, *args, **options)

    def save_file(self, tensors: Any, filename: Any, *args: Any, **options: Any) -> None:
        def half() -> None:
            real_save_file(tensors, filename, *args, **options)
            os.truncate(filename, os.path.getsize(filename) // 2)

        try:
            self.operation("write", filename, half)
        except OSError as error:  # as safetensors says it
            raise safetensors.SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})") from None
        real_save_file(tensors, filename, *args, **options)
        self.dirty.add(os.path.abspath(filename))


class Raw(io.FileIO):
    """A file whose writes are operations of a disk."""

    def __init__(self, disk: Disk, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self.disk, self.path = disk, path
        disk.opened[self.fileno()] = path

    def write(self, data: Any) -> int:
        def half() -> None:
            super(Raw, self).write(bytes(data)[: len(data) // 2])

        self.disk.operation("write", self.path, half)
        self.disk.dirty.add(self.path)
        return super().write(data) or 0

    def close(self) -> None:
        if not self.closed:
            self.disk.opened.pop(self.fileno(), None)
        super().close()
