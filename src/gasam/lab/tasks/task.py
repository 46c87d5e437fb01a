"""The definition of a task: a family of models, a source of data, and the settings of each size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gasam.lab.data.corpus import SPLITS, Source, Split, data_directory
from gasam.lab.data.published import Published
from gasam.lab.errors import InputError
from gasam.lab.families.family import Family, Recipe

SIZE_NAMES = ("paper", "small", "tiny")
"""The sizes that every task has."""


@dataclass(frozen=True)
class Origin:
    """Where the data of a task is: a folder in the local layout, or the user's own files.

    Args:
        data_dir: The folder of the paper's data; by default GASAM_DATA or the user's data folder.
        train: The user's training file; for translation two files separated by a comma.
        valid: The user's validation file; by default a tenth of the training file is held out.
        test: The user's test file; by default a tenth of the training file is held out.
        text_column: The column with the text, for classification.
        label_column: The column with the label, for classification.
    """

    data_dir: Path | None = None
    train: str | None = None
    valid: str | None = None
    test: str | None = None
    text_column: str = "text"
    label_column: str = "label"

    @property
    def folder(self) -> Path:
        return data_directory(self.data_dir)

    @property
    def file_names(self) -> list[str]:
        """The names of the user's own files, without their folders."""
        return [path.name for split in SPLITS for path in self.files(split)]

    def files(self, split: Split) -> tuple[Path, ...]:
        """The user's files of a split, with absolute paths."""
        name = getattr(self, split)
        if name is None:
            return ()
        whole = Path(name).expanduser()
        parts = (whole,) if whole.exists() else (Path(part.strip()).expanduser() for part in name.split(","))
        return tuple(part.absolute() for part in parts)

    def absolute(self) -> Origin:
        """The same places, wherever they are named from."""
        named = {split: ",".join(map(str, self.files(split))) or None for split in SPLITS}
        return replace(self, data_dir=self.data_dir and self.data_dir.expanduser().absolute(), **named)  # type: ignore[arg-type]

    def or_else(self, other: Origin) -> Origin:
        """These places, and those of `other` for what is not given here."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(other, **{name: value for name, value in named.items() if value != getattr(Origin, name)})


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task. Built-in ones have the sizes `paper`, `small`, for minutes on a CPU, and `tiny`, for tests."""

    name: str  # on the command line and in records
    about: str  # a few words about the data and the model
    kind: str  # of its data: paper, twin of NAME, yours (data files of the user's) or file (a Python file)
    family: type[Family[Any]]
    source: Callable[[Origin], Source]
    sizes: Mapping[str, Recipe]  # the settings by name, those nearest to the paper first
    published: Published | None = None  # the files that can be downloaded

    def settings(self, size: str, **overrides: Any) -> Recipe:
        if size not in self.sizes:
            raise InputError(f"size must be one of {', '.join(self.sizes)}, got {size!r}")
        return self.sizes[size].changed(**overrides)

    def check(self, origin: Origin) -> None:
        """Raise if the user gives files to a task that has its own data."""
        if self.kind != "yours" and any((origin.train, origin.valid, origin.test)):
            raise InputError(
                f"{self.name} has its own data: --train, --valid and --test are only for classify, lm and translate"
            )

    @property
    def default_size(self) -> str:
        return "small" if "small" in self.sizes else next(iter(self.sizes))
