"""Choosing the size of the walk on validation: rounds of trials in processes, until nothing is left to try."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gasam import recommended
from gasam.experiments import plan as plans
from gasam.experiments.compare import Job, Watch, do_all, prepare
from gasam.experiments.errors import InputError
from gasam.experiments.methods import METHODS, recommended_norm
from gasam.experiments.plan import Plan
from gasam.experiments.progress import Watch as Told
from gasam.experiments.search.finding import GRID, Finding, described
from gasam.experiments.search.journal import Journal
from gasam.experiments.search.strategy import NORMS, Candidate, FullGrid, TwoStages, finalists
from gasam.experiments.search.trial import try_out
from gasam.experiments.storage import write_json
from gasam.experiments.tasks import Origin

TOLERANCE = 0.02
EXPONENTS = {"budget": (-2, -1), "epsilon": (-6, 0)}
SEED = 0
"""Not one of those that results are taken with."""
SEED_STEP = 1_000_000
"""Finalists are repeated with the seeds SEED + 1,000,000, SEED + 2,000,000 and so on."""
CAP = 0.1
"""Ten times the recommended one: validation decides here, and on some tasks it allows three times the gain."""


class TryFailedError(RuntimeError):
    """A trial ended without an outcome; the same command runs it again."""


@dataclass
class Attempt(Job):
    """`number` is the trial's in the journal; the baseline and repetitions have none."""

    number: int | None = None


def usual_quantity(method: str) -> str:
    """What is searched by default: methods that move embeddings have no budget."""
    return "epsilon" if method in METHODS and METHODS[method].moved == "embeddings" else "budget"


def usual_norms(method: str, quantity: str) -> tuple[float, ...]:
    """For a budget the norm of the recommended walk, for an epsilon both."""
    return NORMS if quantity == "epsilon" or method not in METHODS else (recommended_norm(METHODS[method]),)


@dataclass(frozen=True)
class Question:
    """What is to be tuned, and where its answer is kept.

    Args:
        quantity: "budget", with a cap and the recommended schedule, or "epsilon", the paper's form.
        cap: For a budget. The recommended walk, with its own cap, is always tried as well.
        exponents: The smallest and the largest power of ten of the quantity.
        tolerance: A trial that loses more of the baseline's worth, and more than the noise of the split, has collapsed.
    """

    task: str
    method: str
    size: str = plans.DEFAULT_SIZE
    seed: int = SEED
    origin: Origin = field(default_factory=Origin)
    settings: Mapping[str, Any] = field(default_factory=dict)
    quantity: str = "budget"
    norms: tuple[float, ...] = (math.inf,)
    exponents: tuple[int, int] = EXPONENTS["budget"]
    tolerance: float = TOLERANCE
    cap: float = CAP

    def __post_init__(self) -> None:
        if self.method == "baseline":
            raise InputError("the baseline does not walk: name a method to tune")
        if self.quantity not in EXPONENTS:
            raise InputError(f"quantity must be budget or epsilon, got {self.quantity!r}")
        if not self.norms or not set(self.norms) <= set(NORMS) or len(set(self.norms)) < len(self.norms):
            raise InputError(f"norms must be 2, inf or both, got {', '.join(f'{norm:g}' for norm in self.norms)}")
        low, high = self.exponents
        if not -30 <= low <= high <= 30:
            raise InputError(
                f"exponents must be two whole numbers, the smaller first, from -30 to 30, got {low},{high}"
            )
        if not 0 < self.tolerance < 1:
            raise InputError(f"tolerance must be a number between 0 and 1, got {self.tolerance:g}")
        self.plan(Candidate(math.inf, 0))  # whatever else is wrong is said before anything is prepared

    def plan(self, candidate: Candidate | None, repetition: int = 0) -> Plan:
        """Of a trial, or of the baseline."""
        method, walk = ("baseline", None) if candidate is None else (self.method, self._walk(candidate))
        seed = self.seed + repetition * SEED_STEP
        return plans.make(self.task, method, self.size, seed, origin=self.origin, settings=self.settings, walk=walk)

    def fixed(self) -> dict[str, Any]:
        """The options of the walk that every trial has."""
        return {} if self.quantity == "epsilon" else {"cap": self.cap, "walk_progress": recommended()[1].progress}

    def always(self) -> tuple[Candidate, ...]:
        """The recommended walk, if its norm is searched."""
        if self.quantity == "epsilon":
            return ()
        norm, perturbation = recommended_norm(METHODS[self.method]), recommended()[0]
        mantissa, exponent = f"{perturbation.budget:.0e}".split("e")
        found = Candidate(norm, int(exponent), int(mantissa), perturbation.cap)
        return (found,) if norm in self.norms else ()

    def _walk(self, candidate: Candidate) -> dict[str, Any]:
        own = {} if candidate.cap is None else {"cap": candidate.cap}
        return {"norm": candidate.norm, self.quantity: candidate.value} | self.fixed() | own

    def name(self, data_hash: str) -> str:
        """Of the journal and of the answer: another for other settings, data or seeds, the same for other ranges."""
        config = self.plan(Candidate(math.inf, 0)).config()
        config["method"] = {k: v for k, v in config["method"].items() if k not in ("epsilon", "budget", "norm")}
        text = json.dumps([config, data_hash, self.seed], sort_keys=True)
        return f"{self.task}-{self.size}-{self.method}-{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def tune(
    question: Question,
    out: Path,
    *,
    trials: int | None = None,
    seeds: int = 1,
    full_grid: bool = False,
    parallel: int = 1,
    watch: Watch = lambda job, event: None,
    cpu: bool = False,
) -> Finding:
    """Search, going on with what an earlier call left; the answer is in `out/tuning/NAME.json` after every round.

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
    folder = out / "tuning"
    [baseline] = prepare([question.plan(None)], folder / "tries")
    data_hash = baseline.plan.data()["hash"]
    name = question.name(data_hash) + (GRID if full_grid else "")
    journal = Journal(folder / f"{name}.journal", name, None)
    with _alone(folder / f"{name}.lock", name):
        journal.mend()
        journal.forget_unfinished()
        if journal.baseline is None:
            _settle_baseline(baseline, folder, parallel, watch, journal, cpu)
        noise = Finding.of(question, journal, data_hash).noise
        if not full_grid:
            journal = replace(journal, prune=max(question.tolerance, noise))
        strategy = _strategy(question, noise, full_grid)
        while True:
            finding = Finding.of(question, journal, data_hash)
            write_json(folder / f"{name}.json", finding.as_json())
            known = finding.gains(question.norms)
            wanted = strategy.propose(known)[: None if trials is None else max(0, trials - len(known))]
            if not wanted:
                break
            _do([_attempt(question, each, folder, journal) for each in wanted], folder, parallel, watch, journal, cpu)
        if seeds > 1 and known:
            finding = _repeated(question, finding, range(1, seeds), folder, parallel, watch, cpu)
            write_json(folder / f"{name}.json", finding.as_json())
        return finding


def _strategy(question: Question, noise: float, full_grid: bool) -> FullGrid | TwoStages:
    low, high = question.exponents
    if full_grid:
        return FullGrid(question.norms, low, high)
    return TwoStages(question.norms, low, high, question.tolerance, noise, question.always())


def _repeated(
    question: Question,
    finding: Finding,
    repetitions: Iterable[int],
    folder: Path,
    parallel: int,
    watch: Watch,
    cpu: bool,
) -> Finding:
    """The finding with the finalists and the baseline run again with other seeds; finished ones are read."""
    place = folder / "repeats"
    found: list[tuple[Candidate | None, Attempt]] = []
    for candidate in (None, *finalists(finding.gains(question.norms), finding.noise)):
        for repetition in repetitions:
            plan = question.plan(candidate, repetition)
            name = plan.name({"hash": finding.data})
            file = place / f"{name}.json"
            outcome = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
            remark = "" if candidate is None else str(candidate)
            found.append((candidate, Attempt(plan, name, record=outcome, remark=remark)))
    attempts = [attempt for _, attempt in found]
    do_all(attempts, place, parallel, watch, partial(_try, journal=None, cpu=cpu))
    _check(attempts)
    repeats = [
        described(candidate, attempt.plan.seed, attempt.record) for candidate, attempt in found if attempt.record
    ]
    return replace(finding, repeats=tuple(repeats))


def _settle_baseline(job: Job, folder: Path, parallel: int, watch: Watch, journal: Journal, cpu: bool) -> None:
    """Run it once for the searches of all methods; one that comes meanwhile waits for it."""
    file = folder / "baselines" / f"{job.name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        if file.exists():
            journal.tell(None, json.loads(file.read_text(encoding="utf-8")))
            return
        _do([Attempt(job.plan, job.name, job.notes)], folder, parallel, watch, journal, cpu)
        write_json(file, journal.baseline)


def _attempt(question: Question, candidate: Candidate, folder: Path, journal: Journal) -> Attempt:
    [job] = prepare([question.plan(candidate)], folder / "tries")
    return Attempt(job.plan, job.name, job.notes, remark=str(candidate), number=journal.begin(candidate))


def _do(attempts: Sequence[Attempt], folder: Path, parallel: int, watch: Watch, journal: Journal, cpu: bool) -> None:
    do_all(attempts, folder / "tries", parallel, watch, partial(_try, journal=journal, cpu=cpu))
    _check(attempts)


def _check(attempts: Sequence[Attempt]) -> None:
    for attempt in attempts:
        if attempt.error is not None:
            raise TryFailedError(f"{attempt.name}: {attempt.error} ({attempt.log})")


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
