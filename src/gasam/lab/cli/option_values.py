"""The parsers of the values of options: lists, assignments, methods, walks and the settings of a search."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gasam.lab.command_text import parsed_norm
from gasam.lab.errors import InputError

if TYPE_CHECKING:
    from gasam.lab.tasks import Origin

Count = TypeVar("Count", int, int | None)


def steps_or_share(option: str, text: str | None) -> float | None:
    """Parse a number of steps (an int) or a share of training (a float)."""
    if text is None:
        return None
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise InputError(f"{option} must be a number of steps or a share below 1, got {text!r}") from None


def assignments(option: str, texts: Iterable[str]) -> dict[str, Any]:
    """Parse NAME=VALUE, where the value is JSON, such as a number, a list or null, or else text."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"{option} must look like name=value, got {text!r}")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        values[name.replace("-", "_")] = tuple(parsed) if isinstance(parsed, list) else parsed
    return values


def chosen_settings(file: Path, task: str, size: str | None) -> dict[str, Any]:
    """The settings that a search chose, with those that all of its trials shared. It must be of this task and size."""
    from gasam.lab.search import read
    from gasam.lab.tasks import find, name_of

    try:
        found = read(file)
    except InputError as error:
        reason = str(error).removesuffix("; delete it and run again")
        raise InputError(f"--settings-from must name a file that `gasam tune` wrote: {reason}") from None
    if found.task != name_of(task):
        raise InputError(f"{file} has the settings of {found.task}: use it with that task, not with {name_of(task)}")
    if found.size != (size or find(task).default_size):
        raise InputError(f"{file} changes size {found.size}: add --size {found.size}")
    return found.changes


def flags(origin: Origin, settings: Mapping[str, Any], out: Path) -> str:
    """The options with which another command uses the same data and settings."""
    words = []
    for each in fields(origin):
        value = getattr(origin, each.name)
        if value != each.default:
            name = f" --{each.name.replace('_', '-')}"
            words.append(name if value is True else f"{name} {shlex.quote(str(value))}")
    for name, value in settings.items():
        words.append(f" --set {shlex.quote(f'{name}={json.dumps(value)}')}")
    return "".join([*words, f" --out {shlex.quote(str(out))}"])


def listed(option: str, text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InputError(f"{option} must be one or more names separated by commas, got {text!r}")
    return names


def methods_of(task: str, option: str, text: str) -> list[str]:
    """Parse names of methods; `family` stands for all of its methods that the task's model allows."""
    from gasam.lab.cli.display import errors
    from gasam.lab.training.plan import family_on

    names = list[str]()
    for name in listed(option, text):
        fitting, others = family_on(task) if name == "family" else ([name], [])
        names += fitting
        for left_out in others:
            errors.print(f"- {left_out} is left out: the model of {task} has no normalisation layers", soft_wrap=True)
    return list(dict.fromkeys(names))


def positive(option: str, number: Count) -> Count:
    if number is not None and number < 1:
        raise InputError(f"{option} must be a whole number >= 1, got {number}")
    return number


def walks(texts: Iterable[str], methods: list[str], same_noise: bool) -> dict[str, dict[str, Any]]:
    """Parse METHOD.NAME=VALUE into options by method; `same_noise` holds for all methods."""
    changed: dict[str, dict[str, Any]] = {method: {"same_noise": same_noise or None} for method in methods}
    for text in texts:
        method, dot, assignment = text.partition(".")
        if not dot or method not in methods:
            raise InputError(
                f"--walk must look like METHOD.NAME=VALUE with METHOD one of {', '.join(methods)}, got {text!r}"
            )
        values = assignments("--walk", [assignment])
        if "norm" in values:
            values["norm"] = parsed_norm(str(values["norm"]))
        changed[method] |= values
    return changed


def check_tracker(track: str | None) -> None:
    """Raise `InputError` if --track names no tracker, or one that is not installed."""
    if track is not None:
        from gasam.lab.training.tracking import check

        check(track)
