"""The checkpoints of a run: its last state, its best weights, and the weights of its last epochs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from gasam.lab.errors import InputError
from gasam.lab.storage import leftovers, replaced, save_tensors

Weights = dict[str, Tensor]


class Checkpoints:
    """The checkpoint files of one run, each written atomically.

    If a run is killed between two of them, it resumes from the earlier state and writes the same bits again.
    """

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
            save_tensors(value, partial)

    def load(self, file: Path) -> dict[str, Any] | None:
        """Load a file, or None if it does not exist. Loading never runs code from the file."""
        if not file.exists():
            return None
        try:
            value = torch.load(file, weights_only=True, map_location="cpu")
        except Exception:  # whatever the damage raises
            raise self.damaged(file) from None
        if not isinstance(value, dict):
            raise self.damaged(file)
        return value

    def damaged(self, file: Path) -> InputError:
        return InputError(f"{file} is not a checkpoint of this program: delete {self.folder} to start again")

    def epoch(self, number: int) -> Path:
        return self.folder / f"epoch-{number:04}.pt"

    def forget_epoch(self, number: int) -> None:
        self.epoch(number).unlink(missing_ok=True)

    def average(self, last: int, count: int) -> Weights:
        """The mean of the weights of the `count` epochs up to `last`, summed in double precision."""
        total: Weights = {}
        for number in range(last - count + 1, last + 1):
            weights = self.load(self.epoch(number))
            assert weights is not None
            for name, tensor in weights.items():
                total[name] = total.get(name, 0.0) + tensor.double() if tensor.is_floating_point() else tensor
            dtypes = {name: tensor.dtype for name, tensor in weights.items()}
        return {
            name: (t / count if dtypes[name].is_floating_point else t).to(dtypes[name]) for name, t in total.items()
        }

    def clean(self) -> None:
        """Delete all checkpoints and partial files. The lock stays, because another process may be waiting for it."""
        partial = (*leftovers(self.folder), *leftovers(self.folder.parent, f"{self.folder.name}.json"))
        for file in (self.last, self.best, *self.folder.glob("epoch-*.pt"), *partial):
            if file.exists():  # nothing is deleted from a folder that can only be read
                file.unlink(missing_ok=True)
