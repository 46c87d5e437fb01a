"""What the records of runs and of their analyses hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from gasam.lab.records.epsilon_source import EpsilonSource


class DataOfRun(BaseModel):
    """The data of a run: the hash of its examples, the version of their encoding, and notes for readers.

    `files` are the names of the user's own files, without their folders. They are not part of a run's identity.
    """

    hash: str
    encoding: int | None = None
    notes: list[str] = []
    files: list[str] = []

    @model_serializer(mode="wrap")
    def _without_no_files(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Most tasks have no files of the user, and the first records do not know of them."""
        return {name: value for name, value in written(self).items() if name != "files" or value}


class TaskFile(BaseModel):
    """The Python file of a user that defines the task of a run, and what reports need to know of it.

    Args:
        path: Where the file was.
        metric: The name of the metric.
        higher_is_better: Whether a higher value of the metric is better.
        unit: The unit of the metric.
        decimals: The number of decimals of the metric that tables show.
        settings: The settings that the file has without changes by the user.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    metric: str
    higher_is_better: bool
    unit: str = ""
    decimals: int = 2
    settings: dict[str, Any] = {}


class RunSummary(BaseModel):
    """The settings and scores of a run; the records of its analyses repeat this part."""

    model_config = ConfigDict(strict=True)

    task: str
    size: str
    method: str
    seed: int
    metric: str
    valid: FiniteFloat | None
    test: FiniteFloat | None
    gradient_evaluations: int | FiniteFloat = Field(gt=0)
    config: dict[str, Any]
    data: DataOfRun
    epsilon_source: EpsilonSource | None = None
    task_file: TaskFile | None = Field(default=None, exclude_if=lambda file: file is None)

    @field_validator("config")
    @classmethod
    def _has_settings_and_method(cls, config: dict[str, Any]) -> dict[str, Any]:
        settings, method = config.get("settings"), config.get("method")
        if not isinstance(settings, dict) or not isinstance(method, dict):
            raise ValueError("must hold settings and method")
        if type(settings.get("epochs")) is not int:
            raise ValueError("its settings must hold a number of epochs")
        if not all(_is_number(method.get(name)) for name in ("epsilon", "norm", "steps")):
            raise ValueError("its method must hold epsilon, norm and steps")
        return config

    @field_validator("epsilon_source", mode="before")
    @classmethod
    def _from_sentence(cls, value: Any) -> Any:
        return EpsilonSource.of_sentence(value) if isinstance(value, str) else value

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.config["settings"])

    @property
    def walk(self) -> dict[str, Any]:
        """The name of the method and all options of its walk."""
        return dict(self.config["method"])

    @property
    def configuration(self) -> str:
        """A key that is the same for all seeds."""
        return configuration_key(self.config)


class RunRecord(RunSummary):
    """The record of a finished run: its settings, its scores and what is needed to repeat it.

    Read one with `records.read(Path("runs/NAME.json"))`. Keys that a family of models adds are in `extras`.

    Args:
        schema_version: The version of the format of the file, `schema` in JSON.
        task: The name of the task.
        size: The name of the size.
        method: The name of the method.
        seed: The seed of all randomness.
        metric: The name of the metric of `valid` and `test`.
        valid: The metric on the validation split; None if training diverged before it gave usable weights.
        test: The metric on the test split; None in the same case.
        gradient_evaluations: Number of gradient evaluations, each a forward and a backward pass.
        config: The settings of the task and the method with its walk.
        data: The hash, the encoding and the notes of the data.
        epsilon_source: Where the size of the walk comes from.
        task_file: The user's file that defines the task; None for a built-in task, and then not in the JSON.
        identity: A hash of the configuration, the data and the seed.
        seconds: Time of training.
        commit: The commit of the code; None if it is not known.
        curve: One row for each epoch: loss, validation score, gradient evaluations, seconds, and `walk`, the means over
            the epoch's walks.
        dirty: Whether the code had uncommitted changes.
        updates: Number of optimizer steps.
        best_epoch: The epoch with the best validation score, counted from 1.
        diverged: Whether the loss became infinite or NaN.
        parameters: Number of weights of the model.
        machine: The hardware, see `provenance.machine`.
        versions: The versions of Python and of the libraries.
        evaluation_seconds: Time of the final evaluation.
        valid_error: Standard error of `valid`.
        test_error: Standard error of `test`.
        worthless: The test metric of guessing without reading the input.
    """

    model_config = ConfigDict(strict=True, extra="allow", populate_by_name=True)

    schema_version: Literal[1] = Field(alias="schema")
    identity: str
    seconds: float
    commit: str | None
    curve: list[dict[str, Any]]
    dirty: bool | None = None
    updates: int | None = None
    best_epoch: int | None = None
    diverged: bool = False
    parameters: int | None = None
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}
    evaluation_seconds: float | None = None
    valid_error: float | None = None
    test_error: float | None = None
    worthless: float | None = None

    @property
    def extras(self) -> dict[str, Any]:
        return self.model_extra or {}


class AnalysedRun(RunSummary):
    """The run that an analysis measured."""

    name: str
    identity: str | None = None


class AnalysisRecord(BaseModel):
    """The record of an analysis of one run: `options` determine the numbers, `found` holds them."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    schema_version: Literal[1] = Field(alias="schema")
    kind: str
    options: dict[str, Any]
    run: AnalysedRun
    found: dict[str, Any]
    examples: int | None = None
    seconds: float = 0.0
    commit: str | None = None
    dirty: bool | None = None
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}


def configuration_key(config: Mapping[str, Any]) -> str:
    return json.dumps([config["settings"], config["method"]], sort_keys=True)


def _is_number(value: Any) -> bool:
    """JSON has no infinity: an infinite norm is written as text."""
    return (isinstance(value, int | float) and not isinstance(value, bool)) or value == "inf"
