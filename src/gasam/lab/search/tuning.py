"""Choosing the size of the walk on validation: rounds of trials in processes, until nothing is left to try."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gasam.lab.engines.local import Job, OnEvent, do_all, prepare
from gasam.lab.errors import InputError
from gasam.lab.search.finding import GRID, Finding, described, read
from gasam.lab.search.journal import Journal
from gasam.lab.search.question import Question
from gasam.lab.search.strategy import Candidate, FullGrid, TwoStages, finalists
from gasam.lab.search.trial import try_out
from gasam.lab.storage import write_json
from gasam.lab.training.plan import Plan
from gasam.lab.training.progress import OnUpdate as Told


class TryFailedError(RuntimeError):
    """A trial ended without an outcome; the same command runs it again."""


@dataclass
class Attempt(Job):
    """`number` is the trial's in the journal; the baseline and repetitions have none."""

    number: int | None = None


@dataclass(frozen=True)
class Runner:
    """Runs trials in processes. `folder` is the `tuning` folder of the records."""

    folder: Path
    parallel: int
    watch: OnEvent
    cpu: bool

    def run(self, attempts: Sequence[Attempt], place: str, journal: Journal | None) -> None:
        """Raise an error if any of them fails."""
        work = partial(_try, journal=journal, cpu=self.cpu)
        do_all(attempts, self.folder / place, self.parallel, self.watch, work)
        for attempt in attempts:
            if attempt.error is not None:
                raise TryFailedError(f"{attempt.name}: {attempt.error} ({attempt.log})")


def tune(
    question: Question,
    out: Path,
    *,
    trials: int | None = None,
    seeds: int = 1,
    full_grid: bool = False,
    parallel: int = 1,
    watch: OnEvent = lambda job, event: None,
    cpu: bool = False,
) -> Finding:
    """Search, continuing what an earlier call left; the answer is in `out/tuning/NAME.json` after every round.

    Args:
        question: What to search.
        out: The folder of records.
        trials: At most that many trials.
        seeds: Repeat the finalists and the baseline until they have that many seeds, and choose by the means.
        full_grid: Run every point of the grid to completion.
        parallel: Runs at a time.
        watch: Is told how far each run is.
        cpu: Do not use an accelerator.
    """
    if full_grid and seeds > 1:
        raise InputError("a full grid chooses nothing, so there is nothing to repeat: leave out --seeds or --full-grid")
    question.plan(None, seeds - 1)  # a seed that is too large is named before anything is run
    runner = Runner(out / "tuning", parallel, watch, cpu)
    [baseline] = prepare([question.plan(None)], runner.folder / "tries")
    data_hash = baseline.plan.data().hash
    name = question.name(data_hash) + (GRID if full_grid else "")
    file, journal = runner.folder / f"{name}.json", Journal(runner.folder / f"{name}.journal", name, None)
    with _alone(runner.folder / f"{name}.lock", name):
        journal.mend()
        journal.forget_unfinished()
        if journal.baseline is None or "error" not in journal.baseline:
            _settle_baseline(baseline, runner, journal)
        repeats = read(file).repeats if file.exists() else ()
        found = _search(question, runner, journal, file, Finding.of(question, journal, data_hash, repeats), trials)
        if found.tries and not full_grid:
            found = _repeat(question, runner, found, seeds)
            write_json(file, found.as_json())
        return found


def _search(
    question: Question, runner: Runner, journal: Journal, file: Path, found: Finding, trials: int | None
) -> Finding:
    """Rounds of trials with one seed."""
    low, high = question.exponents
    strategy: FullGrid | TwoStages = FullGrid(question.norms, low, high)
    if not found.full_grid:
        journal = replace(journal, prune=max(question.tolerance, found.noise))
        strategy = TwoStages(question.norms, low, high, question.tolerance, found.noise, question.always())
    while True:
        found = Finding.of(question, journal, found.data, found.repeats)
        write_json(file, found.as_json())
        known = found.gains_of_first_seed(question.norms)
        wanted = strategy.propose(known)[: None if trials is None else max(0, trials - len(known))]
        if not wanted:
            return found
        runner.run([_attempt(question, each, runner.folder, journal) for each in wanted], "tries", journal)


def _repeat(question: Question, runner: Runner, found: Finding, seeds: int) -> Finding:
    """The finding with the finalists and the baseline repeated until they have that many seeds, or as many as before.

    Finished ones are read. Another search that repeats the same baseline waits.
    """
    place = runner.folder / "repeats"
    place.mkdir(parents=True, exist_ok=True)
    best = finalists(found.gains_of_first_seed(question.norms), found.noise)
    wanted = [
        (candidate, question.plan(candidate, repetition))
        for repetition in range(1, max(seeds, len(found.seeds)))
        for candidate in (None, *best)
    ]
    with FileLock(place / "repeats.lock"):
        attempts = [_repetition(candidate, plan, found.data, place) for candidate, plan in wanted]
        runner.run(attempts, "repeats", None)
    repeats = [
        described(candidate, plan.seed, attempt.record or {})
        for (candidate, plan), attempt in zip(wanted, attempts, strict=True)
    ]
    return replace(found, repeats=tuple(repeats))


def _repetition(candidate: Candidate | None, plan: Plan, data_hash: str, place: Path) -> Attempt:
    name = plan.name(data_hash)
    file = place / f"{name}.json"
    outcome = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    return Attempt(plan, name, record=outcome, remark="" if candidate is None else str(candidate))


def _settle_baseline(job: Job, runner: Runner, journal: Journal) -> None:
    """Run it once for the searches of all methods; one that comes meanwhile waits for it.

    Older versions did not store the error of the score: such a baseline is run again.
    """
    file = runner.folder / "baselines" / f"{job.name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if "error" in known:
            journal.tell(None, known)
            return
        runner.run([Attempt(job.plan, job.name, job.notes)], "tries", journal)
        write_json(file, journal.baseline)


def _attempt(question: Question, candidate: Candidate, folder: Path, journal: Journal) -> Attempt:
    [job] = prepare([question.plan(candidate)], folder / "tries")
    return Attempt(job.plan, job.name, job.notes, remark=str(candidate), number=journal.begin(candidate))


def _try(job: Attempt, folder: Path, watch: Told, *, journal: Journal | None, cpu: bool) -> dict[str, Any]:
    return try_out(job.plan, folder, watch, journal, job.number, cpu)


@contextmanager
def _alone(file: Path, name: str) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(file, timeout=0):
            yield
    except Timeout:
        raise InputError(f"{name} is being tuned by another process: wait for it, or choose another --out") from None
