"""What a task is: a family of models on a source of data, in sizes that differ in numbers only, and how far methods
walk on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from gasam.lab.data.corpus import Source
from gasam.lab.data.locations import data_directory
from gasam.lab.data.published import Published
from gasam.lab.errors import InputError
from gasam.lab.families import Family, Recipe

SIZE_NAMES = ("paper", "small", "tiny")


class Radius(NamedTuple):
    """How far a method walks: p of the norm, epsilon, K, and what should be said of these numbers."""

    norm: float
    epsilon: float
    steps: int = 1
    remark: str = ""


def l2(epsilon: float, steps: int = 1) -> Radius:
    return Radius(2.0, epsilon, steps)


def linf(epsilon: float, steps: int = 1, remark: str = "") -> Radius:
    return Radius(math.inf, epsilon, steps, remark)


def filter_wise(epsilon: float) -> Radius:
    """The paper has no number for ASAM by filters."""
    return linf(epsilon, remark="element-wise ASAM's over the root of a filter's size (inferred)")


@dataclass(frozen=True)
class Origin:
    """Where the data of a task comes from: a folder in the local layout, or the user's own files."""

    data_dir: Path | None = None
    train: str | None = None
    valid: str | None = None
    test: str | None = None
    text_column: str = "text"
    label_column: str = "label"

    @property
    def folder(self) -> Path:
        return data_directory(self.data_dir)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One file of this folder.

    Args:
        kind: What the data is: "paper", "twin of NAME" (an embedded stand-in for one of the paper's) or "yours".
        source: The data, wherever it is.
        sizes: The settings of each size. Records of the first version of a size have its plain name, those of version
            2 have `small@2`; users who ask for `small` get the newest.
        paper_radii: The paper's, by method.
        chosen_radii: By hand on validation, with other seeds than the first.
        start_epoch: The epoch, counted from 1, with which the paper's walk begins, and of how many.
        borrows_from: Tasks whose radii are used by methods that have none here, the nearest first.
        published: What can be downloaded.
    """

    name: str
    about: str
    kind: str
    family: type[Family[Any]]
    source: Callable[[Origin], Source]
    sizes: Mapping[str, Recipe]
    paper_radii: Mapping[str, Radius] = field(default_factory=dict)
    chosen_radii: Mapping[str, Radius] = field(default_factory=dict)
    start_epoch: tuple[int, int] = (0, 1)
    borrows_from: tuple[str, ...] = ()
    published: Published | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("paper", "yours") and not self.kind.startswith("twin of "):
            raise ValueError(f"the kind of {self.name} must be 'paper', 'yours' or 'twin of NAME', got {self.kind!r}")

    def settings(self, size: str, **overrides: Any) -> Recipe:
        """The numbers of a size, as records name it, some of them replaced."""
        if size not in self.sizes:
            known = ", ".join(self.asked_size(each) for each in self.sizes)
            raise InputError(f"size must be one of {known}, got {size!r}")
        names = self.family.settings_type.names()
        for name in overrides:
            if name not in names:
                raise InputError(f"{self.name} has no setting {name!r}: it has {', '.join(names)}")
        try:
            return replace(self.sizes[size], **overrides)
        except ValueError as error:
            raise InputError(str(error)) from None

    def check(self, origin: Origin) -> None:
        """Files are for the tasks that take them."""
        if self.kind != "yours" and any((origin.train, origin.valid, origin.test)):
            raise InputError(
                f"{self.name} brings its own data: --train, --valid, --test are for classify, lm, translate"
            )

    def recommends_walk(self, size: str) -> bool:
        """Whether methods use the recommended walk. Older sizes use the paper's epsilon, or one chosen with them."""
        return self.kind == "yours" or "@" in size

    def recorded_size(self, asked: str) -> str:
        """The name in records of a size that a user asks for: `small` is the newest version, `small@1` the first."""
        name, _, version = asked.partition("@")
        versions = {int(each.partition("@")[2] or 1): each for each in self.sizes if each.partition("@")[0] == name}
        if not version:
            return versions[max(versions)] if versions else asked
        return versions.get(int(version), asked) if version.isascii() and version.isdigit() else asked

    def asked_size(self, recorded: str) -> str:
        """What a user must ask for to get the size of a record again."""
        return recorded if self.recorded_size(recorded) == recorded else f"{recorded}@1"


def sizes(*, paper: Recipe, small: Recipe, tiny: Recipe, small_2: Recipe | None = None) -> dict[str, Recipe]:
    """In the second version of size small, methods use the recommended walk; some tasks change their settings too."""
    return {"paper": paper, "small@2": small_2 or small, "small": small, "tiny": tiny}
