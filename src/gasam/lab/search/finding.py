"""What a search has found: the choice, the sentence that says how far to trust it, and plans with a tuned walk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel

from gasam.lab.errors import InputError
from gasam.lab.methods import Walk
from gasam.lab.output import Table
from gasam.lab.record import Metric, Record, read_as
from gasam.lab.search.question import Quantity, Search, Values
from gasam.lab.training.plan import Plan

FOLDER = "search"
"""The folder of searches in a folder of records. It has the runs of all trials in `runs`."""
SHOWN = 5


@dataclass
class Choice:
    """The best of the finalists: by the mean of the differences to plain training, paired by seed.

    Args:
        asked: The search.
        error: The standard error of a difference of two scores on the split.
        plain: The records of plain training, or of the task's own settings, by seed.
        runs: The records of each finalist by seed, the best of the first seed first.
        tried: The values of each finalist.
    """

    asked: Search
    error: float
    plain: Sequence[Record]
    runs: Sequence[Sequence[Record]]
    tried: Sequence[Values]

    def differences(self, runs: Sequence[Record]) -> list[float]:
        """How much better the runs are than plain training, by seed."""
        pairs = [(ours.valid, plain.valid) for ours, plain in zip(runs, self.plain, strict=False)]
        sign = 1 if self.metric.higher_is_better else -1
        return [sign * (ours - plain) for ours, plain in pairs if ours is not None and plain is not None]

    @property
    def metric(self) -> Metric:
        return self.plain[0].metric

    @cached_property
    def place(self) -> int | None:
        """The number of the best finalist that did not diverge with any seed."""
        kept = [i for i, runs in enumerate(self.runs) if all(run.valid is not None for run in runs)]
        return max(kept, key=lambda i: fmean(self.differences(self.runs[i]) or [0.0]), default=None)

    @property
    def gain(self) -> float | None:
        differences = [] if self.place is None else self.differences(self.runs[self.place])
        return fmean(differences) if differences else None

    @property
    def values(self) -> Values:
        """What was chosen; nothing if the task's own settings are better."""
        if self.place is None or (not self.asked.of_walk and self.gain is not None and self.gain <= 0):
            return {}
        return self.tried[self.place]

    def sentence(self, trials: str) -> str:
        """What to do, and how far to trust it."""
        name, what, metric = f"{self.asked.method} on {self.asked.plan().task_name}", self.asked.what, self.metric
        plain, of_walk = self.plain[0], self.asked.of_walk
        if of_walk and self._is_guessing(plain):
            return f"{name}: the baseline is no better than guessing, so no walk can be judged: train longer ({trials})"
        if self.place is None:
            return f"{name}: every trial of {what} diverged or was stopped: give another range with --space ({trials})"
        runs, gain = self.runs[self.place], self.gain
        if of_walk and all(each[0].gradient_evaluations <= plain.gradient_evaluations for each in self.runs):
            return f"{name}: the walk never began, because the loss did not fall enough: train longer ({trials})"
        score = f"{metric.name} {metric.shown(fmean(run.valid or 0.0 for run in runs))} on validation"
        if gain is not None:
            sign = 1 if metric.higher_is_better else -1
            score += f", {metric.difference(sign * gain)} {metric.unit_of_differences} compared with "
            score += "plain training" if of_walk else "the task's own settings"
        said = in_words(self.tried[self.place])
        if gain is not None and gain <= 0:
            nothing = (
                f"no {what} improved on plain training" if of_walk else "no settings are better than the task's own"
            )
            return f"{name}: {nothing}; the best was {said}: {score} ({trials})"
        cost = runs[0].gradient_evaluations / plain.gradient_evaluations
        return f"{name}: use {said}: {score}, for {cost:.1f} times its gradients; {self._trust(runs)} ({trials})"

    def _is_guessing(self, run: Record) -> bool:
        """Whether a run is better than guessing by at most two standard errors."""
        if run.valid is None or run.worthless is None or run.valid_error is None:
            return False
        better = run.valid - run.worthless if self.metric.higher_is_better else run.worthless - run.valid
        return better <= 2 * run.valid_error

    def _trust(self, runs: Sequence[Record]) -> str:
        """Whether the gain is larger than the noise: that of the seeds if there are several, else that of the split."""
        differences, decimals = self.differences(runs), self.metric.decimals
        if len(differences) > 1:
            error = stdev(differences) / math.sqrt(len(differences))
            word = "more than" if fmean(differences) > 2 * error else "less than"
            return f"that is {word} twice the standard error over {len(differences)} seeds ({error:.{decimals}f})"
        if not differences or differences[0] <= self.error:
            return f"that is within the noise of the split ({self.error:.{decimals}f}): --seeds 3 repeats the best"
        return "it was chosen on this split, so expect less on test"


class Finding(BaseModel):
    """What a search has found: the content of its JSON file.

    Args:
        name: The name of the search and of its files.
        task: The name of the task.
        size: The name of the size.
        method: The name of the method.
        quantity: The searched quantity.
        seeds: The seeds that were used.
        settings: The settings of the task without those that were searched.
        changes: The chosen settings that differ from those of the size, for `--settings-from`.
        walk: The options of the chosen walk, for `--tuned`.
        data: The hash of the data.
        plain: The validation scores of plain training, or of the task's own settings, by seed.
        trials: Each trial with its values, its scores by seed, whether it was chosen, and its cost.
        gain: The gain of what was chosen over plain training, positive if it is better; None if nothing was.
        gradient_evaluations: The cost of the whole search; trials that were stopped early are not counted.
        sentence: What to do, and how far to trust it.
    """

    name: str
    task: str
    size: str
    method: str
    quantity: Quantity
    seeds: list[int]
    settings: dict[str, Any]
    changes: dict[str, Any] = {}
    walk: dict[str, Any] = {}
    data: str
    plain: list[float | None]
    trials: list[dict[str, Any]]
    gain: float | None = None
    gradient_evaluations: int
    sentence: str

    def table(self) -> Table:
        """The best trials beside plain training; those without a score are only counted."""
        rows = [{"tried": "plain training" if self.walk_searched else "the task's own settings", **_scores(self.plain)}]
        scored = [each for each in self.trials if each["valid"] and each["valid"][0] is not None]
        chosen_first = sorted(scored, key=lambda each: not each["chosen"])
        for each in chosen_first[:SHOWN]:
            mark = "yes" if each["chosen"] else ""
            rows.append({"tried": in_words(each["values"]), **_scores(each["valid"]), "chosen": mark})
        lost = len(self.trials) - len(scored)
        note = f"{len(self.trials)} trials, of which {lost} diverged or were stopped early."
        return Table(f"{self.task}, size {self.size}: {self.quantity} of {self.method} on validation", rows, [note])

    @property
    def walk_searched(self) -> bool:
        return self.quantity in ("budget", "epsilon")


def _scores(valid: Sequence[float | None]) -> dict[str, str]:
    known = [each for each in valid if each is not None]
    return {"validation": f"{fmean(known):.4g}" if known else "diverged", "seeds": str(len(valid))}


def in_words(values: Values) -> str:
    return ", ".join(
        f"{name}={each:.2g}" if isinstance(each, float) else f"{name}={each}" for name, each in values.items()
    )


def read(file: Path) -> Finding:
    """Read what a search has found."""
    return read_as(Finding, "what a search found", file)


def with_tuned_walk(plan: Plan, folder: Path, times: float | None = None) -> Plan:
    """The plan with the walk that was tuned for its method, settings and data; a baseline is returned unchanged.

    Args:
        plan: The plan to change. Its other options of the walk stay.
        folder: The folder of records whose searches to use.
        times: Use this multiple of the epsilon that was tuned in the plan's own norm.
    """
    if plan.walk.moved == "nothing":
        return plan
    if plan.walk.source == "given" and times is None:
        raise InputError(f"{plan.walk.method} has a given radius and --tuned: leave out one of the two")
    data_hash = plan.data().hash
    found = [
        _when_ended(file) for file in sorted((folder / FOLDER).glob("*.json")) if _serves(read(file), plan, data_hash)
    ]
    if times is not None:
        found = [each for each in found if each.quantity == "epsilon" and Walk(**each.walk).norm == plan.walk.norm]
    best = max(found, key=lambda each: (each.quantity == "budget", each.gain or -math.inf), default=None)
    if best is None:
        method, task = plan.walk.method, plan.task
        raise InputError(
            f"{folder / FOLDER} has no search for the walk of {method} on {task}, size {plan.size}, with these "
            f"settings and this data: run `gasam tune {task} --method {method} --size {plan.size} --out {folder}` "
            "first, with the same --epochs, --set and files and another --seed"
        )
    size = {"budget": None, "epsilon": None, **best.walk}
    if times is not None:
        size["epsilon"] = float(f"{size['epsilon'] * times:.6g}")
    return replace(plan, walk=Walk(**dict(plan.walk) | size | {"source": "tuned"}))


def _serves(found: Finding, plan: Plan, data_hash: str) -> bool:
    """Whether a search for a walk has the plan's task, method, settings and data, and other seeds than the plan."""
    searched = (found.task, found.method, found.settings, found.data)
    planned = (plan.task_name, plan.walk.method, plan.settings.model_dump(mode="json"), data_hash)
    return bool(found.walk) and found.walk_searched and searched == planned and plan.seed not in found.seeds


def _when_ended(file: Path) -> Finding:
    """Read a finding; raise if its search is still running, because it may yet choose another walk."""
    try:
        with FileLock(file.with_suffix(".lock"), timeout=1):
            return read(file)
    except Timeout:
        raise InputError(
            f"{file.stem} is still being tuned: wait for it, or give the walk instead of --tuned"
        ) from None
