"""Atomic file writes: a temporary file is written first, then renamed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replaced(file: Path) -> Iterator[Path]:
    """Give a temporary path to write to; if the block raises nothing, flush it to disk and rename it to `file`."""
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


def write_json(file: Path, value: Any) -> None:
    with replaced(file) as partial:
        partial.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
