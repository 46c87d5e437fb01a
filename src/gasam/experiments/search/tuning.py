"""Choosing epsilon on validation: rounds of tries in processes until the strategy or the budget ends it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gasam.experiments import plan as plans
from gasam.experiments.compare import Job, Watch, do_all, prepare
from gasam.experiments.errors import InputError
from gasam.experiments.plan import Plan
from gasam.experiments.progress import Watch as Told
from gasam.experiments.search.finding import GRID, Finding
from gasam.experiments.search.journal import Journal
from gasam.experiments.search.strategy import NORMS, Candidate, FullGrid, TwoStages
from gasam.experiments.search.trial import try_out
from gasam.experiments.storage import write_json
from gasam.experiments.tasks import Origin

TOLERANCE = 0.02
EXPONENTS = (-6, 0)
SEED = 0
"""Not one of those that results are taken with."""


class TryFailedError(RuntimeError):
    """A try ended without an outcome; the same command runs it again."""


@dataclass
class Attempt(Job):
    """`number` is the try's in the journal; the baseline has none."""

    number: int | None = None


@dataclass(frozen=True)
class Question:
    """What is to be tuned, and where its answer is kept."""

    task: str
    method: str
    size: str = plans.DEFAULT_SIZE
    seed: int = SEED
    origin: Origin = field(default_factory=Origin)
    settings: Mapping[str, Any] = field(default_factory=dict)
    norms: tuple[float, ...] = NORMS
    exponents: tuple[int, int] = EXPONENTS
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        if self.method == "baseline":
            raise InputError("the baseline does not walk and has no epsilon: name a method to tune")
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

    def plan(self, candidate: Candidate | None) -> Plan:
        """Of a try, or of the baseline."""
        method, walk = ("baseline", None) if candidate is None else (self.method, _walk(candidate))
        return plans.make(
            self.task, method, self.size, self.seed, origin=self.origin, settings=self.settings, walk=walk
        )

    def name(self, data_hash: str) -> str:
        """Of the journal and of the answer: another for other settings, data or seeds, the same for other ranges."""
        config = self.plan(Candidate(math.inf, 0)).config()
        config["method"] = {k: v for k, v in config["method"].items() if k not in ("epsilon", "norm")}
        text = json.dumps([config, data_hash, self.seed], sort_keys=True)
        return f"{self.task}-{self.size}-{self.method}-{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def tune(
    question: Question,
    out: Path,
    *,
    budget: int | None = None,
    full_grid: bool = False,
    parallel: int = 1,
    watch: Watch = lambda job, event: None,
    cpu: bool = False,
) -> Finding:
    """Search, going on with what an earlier call left; the answer is in `out/tuning/NAME.json` after every round."""
    folder = out / "tuning"
    [baseline] = prepare([question.plan(None)], folder / "tries")
    data_hash = baseline.plan.data()["hash"]
    name = question.name(data_hash) + (GRID if full_grid else "")
    journal = Journal(folder / f"{name}.journal", name, None if full_grid else question.tolerance)
    low, high = question.exponents
    strategy = (
        FullGrid(question.norms, low, high) if full_grid else TwoStages(question.norms, low, high, question.tolerance)
    )
    with _alone(folder / f"{name}.lock", name):
        journal.mend()
        journal.forget_unfinished()
        if journal.baseline is None:
            _settle_baseline(baseline, folder, parallel, watch, journal, cpu)
        while True:
            finding = Finding.of(question, journal, data_hash)
            write_json(folder / f"{name}.json", finding.as_json())
            known = finding.gains(question.norms)
            wanted = strategy.propose(known)[: None if budget is None else max(0, budget - len(known))]
            if not wanted:
                return finding
            _do([_attempt(question, each, folder, journal) for each in wanted], folder, parallel, watch, journal, cpu)


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
    for attempt in attempts:
        if attempt.error is not None:
            raise TryFailedError(f"{attempt.name}: {attempt.error} ({attempt.log})")


def _try(job: Attempt, folder: Path, watch: Told, *, journal: Journal, cpu: bool) -> dict[str, Any]:
    return try_out(job.plan, folder, watch, journal, job.number, cpu)


def _walk(candidate: Candidate) -> dict[str, float]:
    return {"norm": candidate.norm, "epsilon": candidate.epsilon}


@contextmanager
def _alone(file: Path, name: str) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(file, timeout=0):
            yield
    except Timeout:
        raise InputError(f"{name} is being tuned by another process: wait for it, or choose another --out") from None
