"""The driver of a search: it runs rounds of trials until the strategy proposes no more.

Each trial stores its outcome in its own file, and the finding is written after every round. So the same command
continues a search that was killed: it proposes the same trials, and reads the finished ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from gasam.lab import tasks
from gasam.lab.engines.engine import Engine, OnEvent, do_all, prepare
from gasam.lab.engines.local import LocalEngine
from gasam.lab.errors import InputError
from gasam.lab.record import read_as
from gasam.lab.search.finding import SCHEMA, Finding
from gasam.lab.search.outcome import Outcome, Trial
from gasam.lab.search.question import Question
from gasam.lab.search.strategy import finalists
from gasam.lab.search.trial import OUTCOME, run_trial
from gasam.lab.search.worth import BehindBaseline, Pruner
from gasam.lab.storage import Checkpoints, leftovers, write_json
from gasam.lab.training.plan import Plan


class TrialFailedError(RuntimeError):
    """A trial failed. Calling `tune` again repeats it."""


def tune(
    question: Question,
    out: Path,
    *,
    engine: Engine | None = None,
    watch: OnEvent = lambda job, event: None,
    cpu: bool = False,
) -> Finding:
    """Search for the size of a walk, and continue the search if an earlier call was interrupted.

    The finding is written to `out/tuning/NAME.json` after every round.

    Args:
        question: The task, the method, and the range of the search.
        out: The folder of records.
        engine: Where to run the trials. Default: one process at a time on this machine.
        watch: Called with each job and its events, see `engines.jobs.OnEvent`.
        cpu: Use the CPU even if there is a GPU.

    Raises:
        TrialFailedError: If a trial fails. Its message names the log file.
    """
    folder = out / "tuning"
    runner = Runner(question, folder / "tries", engine or LocalEngine(), watch, cpu)
    data_hash = question.plan(None).data().hash
    file = folder / f"{question.name(data_hash)}.json"
    with locked(file):
        with runner.shared_lock("baseline"):
            [baseline] = runner.outcomes([(None, 0)])
        if baseline.valid is None:
            raise InputError(f"the baseline of {question.task} diverged: change its settings before you tune a walk")
        found = _without_trials(question, file.stem, data_hash, baseline)
        pruner = None if question.full_grid else found.pruner(max(question.tolerance, found.noise))
        if file.exists():
            earlier = Finding.read(file)
            settings = question.plan(None).settings
            tries = tuple(one for one in earlier.tries if one.is_final(settings, pruner))
            found = replace(found, tries=tries, repeats=earlier.repeats)
        found = _search(runner, question, found, pruner, file)
        if found.tries and not question.full_grid:
            found = _repeat_finalists(runner, question, found)
            write_json(file, found.as_json())
        return found


class Searched(Protocol):
    """What a search asks: its trials are runs of one task and size."""

    @property
    def task(self) -> str: ...

    @property
    def size(self) -> str: ...

    def plan(self, candidate: Any, repetition: int = 0) -> Plan:
        """The plan of a trial; repetition 0 has the seed of the search."""

    def described(self, candidate: Any) -> str:
        """A few words about a trial, for the display."""


@dataclass(frozen=True)
class Runner:
    """Runs trials in processes. `folder` has a subfolder for each trial, and searches of all methods share it."""

    question: Searched
    folder: Path
    engine: Engine
    watch: OnEvent
    cpu: bool

    def outcomes(self, wanted: Sequence[tuple[Any, int]], pruner: Pruner | None = None) -> list[Outcome]:
        """The outcomes of trials, read from files or run now. Raises `TrialFailedError` if one of them fails.

        Args:
            wanted: Pairs of a candidate as the question's `plan` takes it, and a repetition. Repetition 0 has the seed
                of the search. No two pairs may give the same plan.
            pruner: Decides which trials to stop early; by default all are run to completion.
        """
        jobs = prepare((self.question.plan(*each) for each in wanted), self.folder)
        for job, (candidate, _) in zip(jobs, wanted, strict=True):
            job.detail = self.question.described(candidate)
            job.data = None if job.data is None else job.data.without_test()
            file = self.folder / job.name / OUTCOME
            if file.exists():
                known = read_as(Outcome, "the outcome of a trial", file)
                job.record = known if known.is_final(job.plan.settings, pruner) else None
            if job.record is not None:
                Checkpoints(file.parent).clean()  # the trial may have been killed just after it wrote its outcome
        work = partial(run_trial, pruner=pruner, cpu=self.cpu)
        do_all(jobs, self.folder, self.engine, self.watch, work)
        for job in jobs:
            if job.error is not None:
                raise TrialFailedError(f"{job.name}: {job.error} ({job.log})")
        return [job.record for job in jobs]

    def shared_lock(self, name: str) -> FileLock:
        """A lock for trials that searches of other methods need as well. They wait for it, then read the outcomes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / f"{tasks.name_of(self.question.task)}-{self.question.size}-{name}.lock")


def _without_trials(question: Question, name: str, data_hash: str, baseline: Outcome) -> Finding:
    return Finding(
        schema=SCHEMA,
        name=name,
        task=tasks.name_of(question.task),
        size=question.size,
        method=question.method,
        seed=question.seed,
        settings=question.plan(None).config()["settings"],
        data=data_hash,
        exponents=question.exponents,
        tolerance=question.tolerance,
        baseline=baseline,
        tries=(),
        quantity=question.quantity,
        walk=question.fixed(),
        **tasks.file_field(question.task),
    )


def _search(runner: Runner, question: Question, found: Finding, pruner: BehindBaseline | None, file: Path) -> Finding:
    """Run rounds of trials with one seed until the strategy proposes no more."""
    strategy = question.strategy(found.noise)
    while True:
        write_json(file, found.as_json())
        known = found.gains_of_first_seed(question.norms)
        wanted = strategy.propose(known)
        if question.trials is not None:
            wanted = wanted[: max(0, question.trials - len(known))]
        if not wanted:
            return found
        outcomes = runner.outcomes([(candidate, 0) for candidate in wanted], pruner)
        found = replace(found, tries=(*found.tries, *map(Trial.of, wanted, outcomes)))


def _repeat_finalists(runner: Runner, question: Question, found: Finding) -> Finding:
    """Repeat the finalists and the baseline with more seeds, as many as asked for now or by an earlier call."""
    best = finalists(found.gains_of_first_seed(question.norms), found.noise)
    repetitions = range(1, max(question.seeds, len(found.seeds)))
    wanted = [(candidate, repetition) for repetition in repetitions for candidate in (None, *best)]
    with runner.shared_lock("repeats"):
        outcomes = runner.outcomes(wanted)
    repeats: list[Trial | Outcome] = []
    for (candidate, repetition), outcome in zip(wanted, outcomes, strict=True):
        seeded = outcome.model_copy(update={"seed": question.plan(None, repetition).seed})
        repeats.append(seeded if candidate is None else Trial.of(candidate, seeded))
    return replace(found, repeats=tuple(repeats))


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Lock the search for this process, and delete what a killed one left; raise if another process runs it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(file.with_suffix(".lock"), timeout=0):
            for left in leftovers(file.parent, file.name):
                left.unlink()
            yield
    except Timeout:
        raise InputError(
            f"{file.stem} is being tuned by another process: wait for it, or choose another --out"
        ) from None
