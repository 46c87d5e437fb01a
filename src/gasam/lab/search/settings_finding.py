"""The finding of a search for settings: every trial, the chosen settings, and what it took to find them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from gasam import recommended
from gasam.lab import tasks
from gasam.lab.families.spaces import Space, Span
from gasam.lab.record import Metric, read_as
from gasam.lab.search.outcome import Outcome
from gasam.lab.search.strategy import FINALISTS
from gasam.lab.tasks import Task
from gasam.lab.tasks.own_model import TaskFile, recorded_task

SCHEMA = 1
FOLDER = "settings"
"""The folder of searches for settings, in a folder of records."""
WALK_SPACE: Space = {"budget": Span(0.01, 1.0, log=True), "cap": Span(0.003, 0.1, log=True)}
"""What a joint search tries of the walk, beside the settings."""
WALK_SCHEDULE = {"walk_progress": recommended()[1].progress}
"""The schedule of every walk of a joint search: the recommended one."""


class SettingsTrial(Outcome):
    """The outcome of training with some settings. `values` are those that differ from the task's own."""

    values: dict[str, Any]


@dataclass(frozen=True)
class SettingsFinding:
    """Everything that a search for settings has measured.

    Args:
        schema: The version of the format of the file.
        name: The name of the search and its file.
        task: The name of the task.
        size: The name of the size.
        method: The name of the method.
        joint: Whether the budget and the cap of the walk were searched as well.
        seed: The seed of the search.
        settings: The task's own settings, with those that all trials share.
        shared: The settings that the user gave to all trials.
        data: The hash of the data.
        space: The ranges of the values.
        trials: The trials with the seed of the search, in their order. The first has the task's own settings.
        repeats: The finalists and the task's own settings with other seeds.
        parallel: The number of trials that were proposed at a time; other numbers give other proposals.
        task_file: The user's file that defines the task; None for a built-in task.
    """

    schema: int
    name: str
    task: str
    size: str
    method: str
    joint: bool
    seed: int
    settings: dict[str, Any]
    shared: dict[str, Any]
    data: str
    space: dict[str, Span | tuple[Any, ...]]
    trials: tuple[SettingsTrial, ...] = ()
    repeats: tuple[SettingsTrial, ...] = ()
    parallel: int = 1
    task_file: TaskFile | None = None

    @classmethod
    def read(cls, file: Path) -> SettingsFinding:
        return read_as(cls, "what a search for settings found", file)

    def as_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = TypeAdapter(SettingsFinding).dump_python(self, mode="json", exclude_unset=True)
        best = self.chosen()
        return fields | {"chosen": best and best.values, "gradient_evaluations": self.gradient_evaluations}

    @property
    def definition(self) -> Task:
        return recorded_task(self.task, self.task_file) if self.task_file else tasks.find(self.task)

    @property
    def metric(self) -> Metric:
        return self.definition.family.metric

    @property
    def own(self) -> SettingsTrial:
        """The trial with the task's own settings."""
        return self.trials[0]

    @property
    def error(self) -> float:
        """The standard error of a difference of two scores on the validation split; an upper bound, see `Finding`.

        0 if no trial was completed, or if the metric has no error.
        """
        return math.sqrt(2) * max((one.error or 0.0 for one in self.trials if one.valid is not None), default=0.0)

    @property
    def seeds(self) -> int:
        """The number of seeds of the finalists."""
        return 1 + len({one.seed for one in self.repeats})

    @property
    def gradient_evaluations(self) -> int:
        return sum(one.gradient_evaluations for one in (*self.trials, *self.repeats))

    def walk(self, trial: SettingsTrial) -> dict[str, Any]:
        """The options of the walk among the values of a trial: a joint search has some."""
        if not self.joint or not WALK_SPACE.keys() & trial.values.keys():
            return {}
        return {name: trial.values[name] for name in WALK_SPACE if name in trial.values} | WALK_SCHEDULE

    def settings_of(self, trial: SettingsTrial) -> dict[str, Any]:
        """The settings of a trial that differ from those of the task's size."""
        walk = self.walk(trial)
        return self.shared | {name: value for name, value in trial.values.items() if name not in walk}

    def scores(self, trial: SettingsTrial) -> list[float | None]:
        """The scores of a trial's values with all seeds that they were run with; None for a seed that diverged."""
        return [trial.valid, *(one.valid for one in self.repeats if one.values == trial.values)]

    def mean(self, trial: SettingsTrial) -> float | None:
        """The mean score over seeds; None if one of them diverged or was stopped early."""
        scores = [score for score in self.scores(trial) if score is not None]
        return sum(scores) / len(scores) if len(scores) == len(self.scores(trial)) else None

    def ranked(self) -> list[SettingsTrial]:
        """The completed trials, the best of the first seed first, each set of values once."""
        completed = [one for i, one in enumerate(self.trials) if one.valid is not None and self._is_new(i)]
        sign = -1 if self.metric.higher_is_better else 1
        return sorted(completed, key=lambda one: sign * (one.valid or 0.0))

    def _is_new(self, place: int) -> bool:
        return all(one.values != self.trials[place].values for one in self.trials[:place])

    def finalists(self) -> list[SettingsTrial]:
        """The best trials of the first seed, all within the noise of the split of the very best."""
        best = self.ranked()[:FINALISTS]
        return [one for one in best if abs((one.valid or 0.0) - (best[0].valid or 0.0)) <= self.error]

    def chosen(self) -> SettingsTrial | None:
        """The best of the repeated trials by their mean, or else the best trial; None if all diverged."""
        repeated = [one for one in self.ranked() if len(self.scores(one)) > 1 and self.mean(one) is not None]
        candidates = repeated or self.ranked()
        return self.metric.best(candidates, lambda one: self.mean(one) or 0.0) if candidates else None


def read_all(folder: Path) -> Iterator[SettingsFinding]:
    """Read the searches for settings in a folder of records, in the order of their names."""
    return map(SettingsFinding.read, sorted((folder / FOLDER).glob("*.json")))
