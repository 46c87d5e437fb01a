"""The finished parts of a campaign, kept in runs/faults, so that the same command continues after an interruption."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gasam

FOLDER = Path(__file__).parents[2] / "runs" / "faults"
SOURCE = Path(gasam.__file__).parent
CORE = ("*.py", "family/*.py")
ALL = ("**/*.py",)


def source_hash(patterns: Sequence[str], names: Sequence[str]) -> str:
    """Of everything that a result depends on, so that a change runs the parts again.

    Args:
        patterns: The files of gasam.
        names: The modules of the campaign.
    """
    files = {file for pattern in patterns for file in SOURCE.glob(pattern)}
    files |= {Path(__file__).with_name(f"{name}.py") for name in names}
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()[:10]


def write(file: Path, found: Any) -> None:
    """Write a whole file, or none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".new").write_text(json.dumps(found), encoding="utf-8")
    file.with_suffix(".new").replace(file)
