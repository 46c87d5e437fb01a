"""Records: one JSON file a run, with all that is needed to trust it and to repeat it."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gasam
from gasam.experiments.errors import InputError
from gasam.experiments.families import Family
from gasam.experiments.plan import Plan
from gasam.experiments.progress import Progress

SCHEMA = 1
KEYS = (
    "schema",
    "task",
    "size",
    "method",
    "seed",
    "metric",
    "valid",
    "test",
    "gradient_evaluations",
    "seconds",
    "commit",
    "config",
    "curve",
)
Record = dict[str, Any]


def read(file: Path) -> Record:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file} is not a record: {error}; delete it and run again") from None
    missing = [key for key in KEYS if not isinstance(record, dict) or key not in record]
    if missing:
        raise InputError(f"{file} is not a record: it lacks {', '.join(missing)}; delete it and run again")
    return record  # type: ignore[no-any-return]


def read_all(folder: Path) -> Iterator[Record]:
    for file in sorted(folder.glob("*.json")):
        yield read(file)


def make(plan: Plan, family: Family[Any], model: nn.Module, progress: Progress, code: dict[str, Any]) -> Record:
    """The record of a run that ended; `valid` and `test` are still to be measured."""
    return {
        "schema": SCHEMA,
        "task": plan.task,
        "size": plan.size,
        "method": plan.choice.method,
        "seed": plan.seed,
        "metric": family.metric.name,
        "valid": None,
        "test": None,
        "gradient_evaluations": progress.passes,
        "updates": progress.updates,
        "seconds": round(progress.seconds, 2),
        "best_epoch": progress.best_epoch,
        "diverged": progress.diverged,
        "epsilon_source": plan.choice.epsilon_source,
        **code,
        "config": plan.config(),
        "identity": plan.identity(family.data),
        "data": {part: family.data[part] for part in ("hash", "encoding", "notes")},
        "parameters": sum(p.numel() for p in model.parameters()),
        "machine": machine(next(model.parameters()).device),
        "versions": versions(),
        "curve": progress.curve,
        **family.remarks(),
    }


def versions() -> dict[str, str]:
    names = ("torch", "accelerate", "transformers", "tokenizers", "sacrebleu", "scikit-learn", "num2words")
    return {"python": platform.python_version(), "gasam": gasam.__version__} | {
        name: importlib.metadata.version(name) for name in names
    }


def code() -> dict[str, Any]:
    """The commit that gasam itself was run from; nothing where it was installed without its history."""
    package = Path(gasam.__file__).parent
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top) / "src" / "gasam" != package:
        return {"commit": None, "dirty": None}
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", "--", str(package))
    return {"commit": _git(package, "rev-parse", "HEAD"), "dirty": bool(changed)}


def machine(device: torch.device) -> dict[str, Any]:
    processes = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    threads = torch.get_num_threads()
    return {"device": str(device), "processes": processes, "threads": threads, "platform": platform.machine()}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
