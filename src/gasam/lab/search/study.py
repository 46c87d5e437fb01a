"""Searches by Optuna on the validation split, for the size of a method's walk or for settings of training.

The study's journal holds every trial, so a search that was killed goes on. No trial sees the test split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from shutil import rmtree

import optuna
from filelock import FileLock, Timeout
from optuna.pruners import PercentilePruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from gasam import recommended
from gasam.lab.engines.engine import Engine, Event, Job, OnEvent, do_all, prepare
from gasam.lab.errors import InputError
from gasam.lab.methods import find_method
from gasam.lab.record import Metric, Record
from gasam.lab.search.finding import FOLDER, Choice, Finding, in_words
from gasam.lab.search.question import Search, Values, as_text, paper_order, values_of
from gasam.lab.storage import write_json
from gasam.lab.training.loop import OnUpdate, Update
from gasam.lab.training.plan import Plan
from gasam.lab.training.run import run

FINALISTS = 3
TRIALS = 20
"""The number of trials of a search for settings."""


class TrialFailedError(RuntimeError):
    """A trial failed. The same search repeats it."""


def tune(
    search: Search, out: Path, engine: Engine, watch: OnEvent = lambda job, event: None, cpu: bool = False
) -> Finding:
    """Search, or continue a search that was interrupted. The study is `out/search/NAME.journal`, the finding `.json`.

    Args:
        search: What to tune.
        out: The folder of records.
        engine: Where to run the trials.
        watch: Called with each job and its events.
        cpu: Use the CPU even if there is a GPU.

    Raises:
        TrialFailedError: If a trial fails. Its message names the log file.
    """
    data_hash, metric = search.plan().data().hash, search.plan().definition.family.metric
    file = out / FOLDER / f"{search.name(data_hash)}.json"
    with opened(file.with_suffix(".journal"), file.stem, metric) as study:
        driver = Driver(search, study, file.parent / "runs", engine, watch, cpu)
        finding = driver.search(file.stem, data_hash)
        write_json(file, finding.model_dump(mode="json"))
        return finding


@contextmanager
def opened(journal: Path, name: str, metric: Metric) -> Iterator[optuna.Study]:
    """The study in a journal, for this process alone."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(journal.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"{name} is being tuned by another process: wait for it, or choose another --out") from None
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        _cut_torn_line(journal)
        backend = JournalFileBackend(str(journal), lock_obj=JournalFileOpenLock(str(journal), grace_period=5))
        yield optuna.create_study(
            storage=JournalStorage(backend),
            study_name=name,
            load_if_exists=True,
            direction="maximize" if metric.higher_is_better else "minimize",
            pruner=PercentilePruner(75.0, n_startup_trials=5, n_warmup_steps=6),
        )
    finally:
        optuna.logging.set_verbosity(verbosity)
        lock.release()


def _cut_torn_line(journal: Path) -> None:
    """Delete what a killed process wrote of a last line: with the next line it would make the journal unreadable."""
    if journal.exists():
        whole = journal.read_bytes()
        with journal.open("r+b") as stream:
            stream.truncate(whole.rfind(b"\n") + 1)


def work(job: Job, folder: Path, on_update: OnUpdate, *, cpu: bool) -> Record:
    """Train a trial, whose data has no test split."""
    return run(job.plan, folder, on_update=on_update, cpu=cpu, test=False)


@dataclass
class Driver:
    """Runs the trials of a study in rounds. `folder` has the runs of all searches, which share equal ones."""

    asked: Search
    study: optuna.Study
    folder: Path
    engine: Engine
    watch: OnEvent
    cpu: bool
    reporting: dict[str, optuna.Trial] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    def search(self, name: str, data_hash: str) -> Finding:
        """Run plain training, or the task's own settings, then trials until there are no more, then more seeds."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.asked.of_walk and self.plain.valid is None:
            raise InputError(f"the baseline of {self.asked.task} diverged: change its settings before you tune a walk")
        while trials := self.next_trials():
            records = self.trained([self.asked.plan(trial.params) for trial in trials], trials)
            for trial, record in zip(trials, records, strict=True):
                value = None if record is None else record.valid
                lost = TrialState.PRUNED if record is None else TrialState.FAIL
                self.study.tell(trial.number, value, state=lost if value is None else None)
        return self.conclude(name, data_hash)

    @cached_property
    def plain(self) -> Record:
        with self.shared_lock():
            [record] = self.trained([self.asked.plan()])
        assert record is not None, "it is never stopped early"
        return record

    def shared_lock(self) -> FileLock:
        """Plain training serves the searches of all methods: they wait for it, and then read its records."""
        return FileLock(self.folder / f"{self.asked.plan().task_name}.lock")

    def trained(self, wanted: Sequence[Plan], trials: Sequence[optuna.Trial | FrozenTrial] = ()) -> list[Record | None]:
        """The records of plans, read from files or trained now; None for a trial that was stopped early."""
        jobs = prepare(wanted, self.folder)
        for job in jobs:
            job.data = None if job.data is None else job.data.without_test()
        place = [next(job for job in jobs if job.plan == plan) for plan in wanted]
        for job, trial in zip(place, trials, strict=False):
            job.detail = in_words(trial.params)
        new = [(job.name, trial) for job, trial in zip(place, trials, strict=False) if isinstance(trial, optuna.Trial)]
        self.reporting = dict(new)
        do_all(jobs, self.folder, self.engine, self._heard, partial(work, cpu=self.cpu))
        for job in jobs:
            if job.error is not None:
                raise TrialFailedError(f"{job.name}: {job.error} ({job.log})")
            if job.record is None:
                rmtree(self.folder / job.name)  # the checkpoint of a trial that was stopped early
        return [job.record for job in place]

    def _heard(self, job: Job, event: Event) -> None:
        kind, value = event
        if kind == "update" and job.name in self.reporting and value.valid is not None and not value.note:
            self._report(job, value)
        self.watch(job, event)

    def _report(self, job: Job, update: Update) -> None:
        """Tell Optuna the score at each tenth of training, because trials differ in epochs, and stop a hopeless one.

        None is stopped in the first half of training, or before its learning rate was halved twice.
        """
        ended, family, settings = update.epoch - 1, job.plan.definition.family, job.plan.settings
        step, trial = 10 * ended // update.epochs, self.reporting[job.name]
        if step <= self.steps.get(job.name, 0) or update.valid is None:
            return
        self.steps[job.name] = step
        same_direction = family.followed.higher_is_better == family.metric.higher_is_better
        trial.report(update.valid if same_direction else -update.valid, step)
        patience = settings.halve_after + 2 if settings.schedule == "halving" else 0
        if patience <= ended < update.epochs and trial.should_prune():
            self.engine.cancel(job)

    def next_trials(self) -> Sequence[optuna.Trial | FrozenTrial]:
        """The trials that a killed search left, or else new ones; none when the search has ended."""
        if left := self.study.get_trials(states=(TrialState.RUNNING,)):
            return left
        begun = sum(trial.state != TrialState.WAITING for trial in self.study.get_trials(deepcopy=False))
        count, limit = self.engine.parallel, self.asked.trials or TRIALS
        if self.asked.of_walk:
            for values in self._proposed():
                self.study.enqueue_trial(dict(values), skip_if_exists=True)
            count = len(self.study.get_trials(states=(TrialState.WAITING,)))
            limit = self.asked.trials or begun + count
        # The storage keeps no state of the sampler, so its seed says how far the search is.
        self.study.sampler = TPESampler(seed=self.asked.seed + begun, n_startup_trials=5, constant_liar=True)
        return [self.study.ask(dict(self.asked.ranges)) for _ in range(min(count, limit - begun))]

    def _proposed(self) -> list[Values]:
        """The walks to try next: the recommended one, and the sizes in the paper's order, in turns between norms."""
        what, ranges, usual = self.asked.what, self.asked.ranges, recommended()[0]
        shared = {"cap": values_of(ranges["cap"])[0]} if what == "budget" else {}
        norms = values_of(ranges["norm"])
        found: list[Values] = [{"norm": as_text(usual.norm), "budget": usual.budget, "cap": usual.cap}]
        if what == "epsilon" or self.asked.space or usual.norm != find_method(self.asked.method).preset.norm:
            found = []
        turns = [paper_order(self._known({"norm": norm} | shared), ranges[what], self.noise) for norm in norms]
        for turn in zip_longest(*turns):
            found += [{"norm": n, what: size} | shared for n, size in zip(norms, turn, strict=True) if size is not None]
        return found

    def _known(self, shared: Values) -> dict[float, float]:
        """The gain of each size that was tried, as a share of the worth of plain training; -inf if it was lost."""
        ended = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.is_finished()]
        return {
            trial.params[self.asked.what]: -math.inf if trial.value is None else self.gain(trial.value) / self.worth
            for trial in ended
            if shared.items() <= trial.params.items()
        }

    def gain(self, value: float | None, other: float | None = None) -> float:
        """How much better a score is than another, by default plain training's, in units of the metric."""
        difference = (value or 0.0) - ((self.plain.valid or 0.0) if other is None else other)
        return difference if self.plain.metric.higher_is_better else -difference

    @property
    def worth(self) -> float:
        """What plain training has gained over guessing, or its perplexity."""
        plain, guessing = self.plain.valid or 0.0, self.plain.worthless or 0.0
        return max(abs(plain - guessing if self.plain.metric.higher_is_better else plain), 1e-12)

    @property
    def error(self) -> float:
        """The standard error of a difference of two scores on the split, if they were of different examples."""
        return math.sqrt(2) * (self.plain.valid_error or 0.0)

    @property
    def noise(self) -> float:
        return self.error / self.worth

    def conclude(self, name: str, data_hash: str) -> Finding:
        """Repeat the best trials with more seeds, choose one of them, and say what was found."""
        ended = self.study.get_trials(states=(TrialState.COMPLETE,))
        tried = {in_words(trial.params): trial for trial in sorted(ended, key=lambda trial: -self.gain(trial.value))}
        scored = list(tried.values())
        best = [trial for trial in scored[:FINALISTS] if self.gain(trial.value, scored[0].value) >= -self.error]
        count = max(self.asked.seeds, self.study.user_attrs.get("seeds", 1))
        self.study.set_user_attr("seeds", count)
        plain = self.with_seeds(None, count)
        runs = [self.with_seeds(trial.params, count if trial in best else 1) for trial in scored]
        choice = Choice(self.asked, self.error, plain, runs[: len(best)], [trial.params for trial in best])
        chosen = choice.values
        plan = self.asked.plan(chosen)
        walk = {"norm", "budget", "epsilon", "cap"} & chosen.keys()
        walk |= {"walk_progress"} if "budget" in walk else set()
        every = [*plain, *(record for some in runs for record in some)]
        lost = [trial for trial in self.study.get_trials() if trial.state in (TrialState.PRUNED, TrialState.FAIL)]
        return Finding(
            name=name,
            task=plan.task_name,
            size=plan.size,
            method=self.asked.method,
            quantity=self.asked.what,
            seeds=[record.seed for record in plain],
            settings=self.asked.plan().settings.model_dump(mode="json"),
            changes={
                k: v
                for k, v in plan.settings.model_dump(mode="json").items()
                if k in {**self.asked.settings, **choice.values}
            },
            walk=plan.walk.model_dump(mode="json", include=walk),
            data=data_hash,
            plain=[record.valid for record in plain],
            trials=[
                {"values": trial.params, "valid": [record.valid for record in some], "chosen": trial.params == chosen}
                for trial, some in zip([*scored, *lost], [*runs, *([] for _ in lost)], strict=True)
            ],
            gain=choice.gain,
            gradient_evaluations=sum(record.gradient_evaluations for record in every),
            sentence=choice.sentence(f"{len(scored) + len(lost)} trials"),
        )

    def with_seeds(self, values: Values | None, count: int) -> list[Record]:
        """The records of a trial, or of plain training, with the first `count` seeds."""
        with self.shared_lock():
            found = self.trained([self.asked.plan(values, repetition) for repetition in range(count)])
        return [record for record in found if record is not None]
