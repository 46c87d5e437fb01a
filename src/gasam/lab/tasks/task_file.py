"""Tasks that a user defines in a Python file, by functions for the model, the loss, the data and the metric."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from gasam.lab.data.corpus import SPLITS, Source
from gasam.lab.errors import InputError
from gasam.lab.families.family import Family, Metric
from gasam.lab.families.own_data import Examples
from gasam.lab.families.own_model import TASK_COPY, Functions, OwnCorpus, OwnModel
from gasam.lab.families.own_settings import OwnSettings, settings_with
from gasam.lab.records import TaskFile
from gasam.lab.tasks.task import Task

__all__ = [
    "TASK_COPY",
    "absolute",
    "code_of",
    "described",
    "give_text",
    "is_file",
    "load_task",
    "planned_task",
    "recorded_task",
]

SIZE = "own"
"""The name of the only size of such a task."""
_GIVEN: dict[str, str] = {}
_LOADED: dict[tuple[str, str], Task] = {}
"""The tasks that this process has loaded, by path and hash."""
REQUIRED = ("model", "loss", "data", "metric")
PLAIN = (int, float, str, bool, tuple, type(None))
"""The types that an argument of `model` may have: those that a record can hold."""


def is_file(reference: str) -> bool:
    return reference.endswith(".py")


def absolute(reference: str) -> Path:
    return Path(reference).expanduser().resolve()


def give_text(reference: str, text: str) -> None:
    """Give this process the text of a task file. The node of a cluster needs it, because it does not have the file."""
    _GIVEN[reference] = text


def load_task(reference: str) -> Task:
    """Load the task that a Python file defines. The file is run once for each version of its text."""
    if reference in _GIVEN:
        return _loaded(Path(reference), _GIVEN[reference])
    path = absolute(reference)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InputError(f"{reference} cannot be read ({reason}): name a Python file that defines a task") from None
    return _loaded(path, text)


def planned_task(reference: str, code: str) -> Task:
    """The task of a file in the version with this hash; raise if the file has changed since.

    A process that has loaded this version keeps using it, so that a comparison can be reported after an edit.
    """
    if (reference, code) not in _LOADED and load_task(reference).sizes[SIZE].recorded()["code"] != code:
        raise InputError(f"{reference} has changed since this command was started: run the command again")
    return _LOADED[reference, code]


def code_of(path: Path) -> str | None:
    """The hash of a task file, as in the settings of its runs; None if it cannot be read."""
    try:
        return _hashed(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def described(task: Task, reference: str) -> TaskFile | None:
    """What the record of a run holds about the task's file; None for a built-in task."""
    if not is_file(reference):
        return None
    metric = task.family.metric
    return TaskFile(
        path=reference if reference in _GIVEN else str(absolute(reference)),
        metric=metric.name,
        higher_is_better=metric.higher_is_better,
        unit=metric.unit,
        decimals=metric.decimals,
        settings=task.sizes[SIZE].recorded(),
    )


def recorded_task(name: str, file: TaskFile) -> Task:
    """The task of a record, for reports, which do not need the file. It cannot be trained."""
    names = OwnSettings.model_fields
    arguments = {key: value for key, value in file.settings.items() if key not in names}
    settings = settings_with(arguments)(**{key: value for key, value in file.settings.items() if key in names})
    return _task(name, _family(Metric(file.metric, file.higher_is_better, file.unit, file.decimals)), settings)


@cache
def _loaded(path: Path, text: str) -> Task:
    module = _run(path, text)
    functions = _functions(path, module)
    family = _family(_metric(path, module), functions, text)
    settings = _settings(path, module, text)

    def read() -> OwnCorpus:
        return _corpus(path, functions)

    task = _task(path.stem, family, settings, Source(path.stem, read))
    _LOADED[str(path), settings.code] = task
    return task


def _task(name: str, family: type[Family[Any]], settings: OwnSettings, source: Source | None = None) -> Task:
    def given(origin: Any) -> Source:
        assert source is not None, "the task of a record has no data"
        return source

    return Task(name=name, about="your own model", kind="file", family=family, source=given, sizes={SIZE: settings})


def _family(metric: Metric, functions: Functions | None = None, text: str = "") -> type[OwnModel]:
    return type("OwnModel", (OwnModel,), {"metric": metric, "functions": functions, "text": text})


def _run(path: Path, text: str) -> ModuleType:
    """Run the file as a module. Its folder is on the path of imports, as for a script."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    name = f"gasam_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "its name ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes of the file can then be pickled
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise InputError(f"{path.name}{_line(path, error)}: {type(error).__name__}: {error}") from None
    return module


def _line(path: Path, error: Exception) -> str:
    """The line of the file at which an error arose."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


def _functions(path: Path, module: ModuleType) -> Functions:
    found = {field.name: getattr(module, field.name, None) for field in fields(Functions)}
    missing = [name for name in REQUIRED if found[name] is None]
    if missing:
        raise InputError(
            f"{path.name} must define model(), loss(model, batch), data() and metric(model, batch): "
            f"it lacks {', '.join(missing)}"
        )
    for name, value in found.items():
        if value is not None and not callable(value):
            raise InputError(f"{path.name}: {name} must be a function, got {value!r}")
    return Functions(**found)  # type: ignore[arg-type]


def _metric(path: Path, module: ModuleType) -> Metric:
    direction = getattr(module, "higher_is_better", None)
    if not isinstance(direction, bool):
        raise InputError(f"{path.name} must define higher_is_better, True or False, for its metric")
    name, unit = getattr(module, "metric_name", "metric"), getattr(module, "metric_unit", "")
    if not isinstance(name, str) or not isinstance(unit, str):
        raise InputError(f"{path.name}: metric_name and metric_unit must be text, got {name!r} and {unit!r}")
    decimals = getattr(module, "metric_decimals", 2)
    if type(decimals) is not int or not 0 <= decimals <= 12:
        raise InputError(f"{path.name}: metric_decimals must be a whole number from 0 to 12, got {decimals!r}")
    return Metric(name, direction, unit, decimals)


def _settings(path: Path, module: ModuleType, text: str) -> OwnSettings:
    """The settings that the file names, and the arguments of `model` with their default values."""
    arguments = {name: _default(path, each) for name, each in inspect.signature(module.model).parameters.items()}
    given = getattr(module, "settings", {})
    if not isinstance(given, Mapping):
        raise InputError(f"{path.name}: settings must be a dictionary such as {{'epochs': 10}}, got {given!r}")
    try:
        return settings_with(arguments)(code=_hashed(text)).changed(**given)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def _default(path: Path, argument: inspect.Parameter) -> Any:
    name, value = argument.name, argument.default
    if name in OwnSettings.model_fields or hasattr(OwnSettings, name) or name.startswith("_"):
        raise InputError(f"{path.name}: {name!r} is a name of the settings, so rename this argument of model()")
    if value is inspect.Parameter.empty or not isinstance(value, PLAIN):
        raise InputError(
            f"{path.name}: the argument {name!r} of model() must have a default value that is a number, text, "
            "True, False, None or a tuple of these"
        )
    return value


def _corpus(path: Path, functions: Functions) -> OwnCorpus:
    given = functions.data()
    if not isinstance(given, tuple | list) or len(given) != len(SPLITS):
        raise InputError(f"{path.name}: data() must return three sets of examples: train, valid and test")
    train, valid, test = (Examples(part, split) for part, split in zip(given, SPLITS, strict=True))
    return OwnCorpus(train, valid, test)  # type: ignore[arg-type]
