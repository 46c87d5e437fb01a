"""Sources of data, one file each: a source knows what it reads and reads it, nothing about models."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gasam.lab.data.corpus import Corpus


@dataclass(frozen=True)
class Source:
    """`read()` gives the corpus, out of `files` or out of installed `packages`; `options` say how, as text."""

    name: str
    read: Callable[[], Corpus]
    files: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()
    options: str = ""

    @cached_property
    def key(self) -> str:
        """What would be read, without reading it as examples: preprocessing is cached under it."""
        sha = hashlib.sha256(f"{self.name}\n{self.options}\n".encode())
        for file in self.files:
            with file.open("rb") as stream:
                sha.update(hashlib.file_digest(stream, "sha256").digest())
        if self.packages:
            sha.update(platform.python_version().encode())
        for package in self.packages:
            sha.update(f"{package} {importlib.metadata.version(package)}\n".encode())
        return sha.hexdigest()
