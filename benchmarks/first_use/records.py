"""The records of finished runs: one JSON object for each line of a file."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.first_use.setup import Metric, Setup
from benchmarks.first_use.training import History
from benchmarks.first_use.variants import settings

RESULTS = Path(__file__).with_name("results.jsonl")
IDENTITY = ("setup", "variant", "seed", "configuration", "perturbation", "schedule")
DIGITS = 6

Record = dict[str, Any]


def identity(setup: Setup, variant: str, seed: int) -> Record:
    """What a run is. A run whose identity is in the file is not repeated."""
    # Through JSON, so that it equals what is read back: tuples become lists.
    configuration = json.loads(json.dumps(setup.configuration()))
    return {"setup": setup.name, "variant": variant, "seed": seed, "configuration": configuration, **settings(variant)}


def is_recorded(run: Record, records: Iterable[Record]) -> bool:
    return any(all(record[key] == run[key] for key in IDENTITY) for record in records)


def finished(run: Record, setup: Setup, history: History, seconds: float) -> Record:
    """The record of a finished run.

    Args:
        run: Its identity.
        setup: Its set-up.
        history: One value for each epoch, as `training.train` returns it.
        seconds: Processor time of the whole run, with evaluation.
    """
    return {
        **run,
        "title": setup.title,
        "metric": asdict(setup.metric),
        "epochs": {name: [_rounded(value) for value in values] for name, values in history.items()},
        "seconds": round(seconds, 1),
        "torch": torch.__version__,
        "commit": commit(),
    }


def append(record: Record, path: Path = RESULTS) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record, allow_nan=False) + "\n")
        stream.flush()


def read(path: Path = RESULTS) -> list[Record]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream if line.strip()]


def metric_of(record: Mapping[str, Any]) -> Metric:
    return Metric(**record["metric"])


def commit() -> str:
    """The commit of the source, and whether the source differs from it."""

    def git(*words: str) -> str:
        folder = Path(__file__).parent
        command = ["git", "--no-optional-locks", *words]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ":/src", ":/benchmarks/first_use/*.py")
        return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _rounded(value: float) -> float | None:
    """Six significant digits; None for a loss that is not finite."""
    if not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")
