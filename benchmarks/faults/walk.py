"""Faults in the walk: one fault for each call, in one warm process, and the state afterwards compared bit by bit.

Every subject has a twin that gets the same calls without faults. After a fault the weights, `.grad`, the schedule and
the state of the base optimizer must be as before the call. If the fault comes after the last moment at which the step
can be undone, they must all be as after a complete step instead. Then both take a step, whose results must be equal.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

# Some processors advertise matrix instructions for bfloat16 that their machine does not give.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import torch

import gasam.portions
from benchmarks.faults import kept
from benchmarks.faults.drawn_walks import Adjustable, PassFault, Subject, draw
from benchmarks.faults.injection import AtLine, AtOperation
from benchmarks.faults.pair import NOT_FINITE, Fault, Pair
from gasam.portions import Limits

SIZES = {"full": 10_000, "sample": 500}
FAULTS_OF_A_PART = 250
SOURCES = ("walk", "pair", "drawn_walks", "injection", "planted")
FAULTS_OF_A_CASE = 40
EXCEPTION, INTERRUPT, ALLOCATION = "exception at an operation", "interrupt at an operation", "failed allocation"
LINE, USER, CLEANUP = "interrupt at a line of gasam", "exception in the user's code", "interrupt during a cleanup"
VANISHING = "vanishing gradient"
KINDS = (EXCEPTION, INTERRUPT, ALLOCATION, LINE, USER, CLEANUP, NOT_FINITE, VANISHING)

WORDED = {
    "loss": "the loss",
    "gradient": "a gradient",
    "scale": "the scale T",
    "hook": "a hook",
    "enter": "around a pass",
    "leave": "around a pass",
}


class Lost(NamedTuple):
    """A fault after which something was not as it must be."""

    number: int  # of the fault, counted from 0
    kind: str
    place: str
    what: str
    case: str


def make(kind: str, pair: Pair, random: Random) -> Fault:
    """A fault of this kind at a drawn place."""
    subject = pair.subject
    if kind == LINE:
        function = random.choice(sorted(set(pair.lines)))
        line = AtLine(random.choice([i for i, place in enumerate(pair.lines) if place == function]))

        def at_line() -> None:
            with line():
                subject.call()

        return Fault(kind, at_line, lambda: line.raised_in)
    if kind == USER:
        fault = user_fault(subject, random)
        return Fault(kind, lambda: subject.call(fault), lambda: fault.where if subject.failed else None)
    if kind == CLEANUP:
        first = user_fault(subject, random)
        second = AtOperation(random.randrange(8), KeyboardInterrupt, counting=lambda: subject.failed)
        return Fault(kind, lambda: _under(second, subject, first), lambda: second.raised_in)
    if kind in (NOT_FINITE, VANISHING):
        return bad_numbers(kind, subject, random)
    failures: Any = {
        EXCEPTION: [lambda: RuntimeError("injected"), lambda: ValueError("injected")],
        INTERRUPT: [KeyboardInterrupt],
        ALLOCATION: [MemoryError, lambda: torch.OutOfMemoryError("injected")],
    }[kind]
    places = [place for place, allocates in pair.operations if allocates or kind != ALLOCATION]
    chosen = random.choice(sorted(set(places)))
    at = random.choice([i for i, place in enumerate(places) if place == chosen])
    mode = AtOperation(at, random.choice(failures), only_allocations=kind == ALLOCATION)
    return Fault(kind, lambda: _under(mode, subject), lambda: mode.raised_in)


def _under(mode: AtOperation, subject: Subject, fault: PassFault | None = None) -> None:
    with mode:
        subject.call(fault)


def user_fault(subject: Subject, random: Random) -> PassFault:
    where = random.choice(["loss", "hook", "enter", "leave"])
    failure = random.choice([ValueError, RuntimeError, KeyboardInterrupt, MemoryError])
    return PassFault(random.randrange(subject.case.perturbation.steps + 1), where, failure=failure)


def bad_numbers(kind: str, subject: Subject, random: Random) -> Fault:
    places = ["loss", "gradient"] + (["scale"] if isinstance(subject.scale, Adjustable) else [])
    value = random.choice([float("nan"), float("inf"), -float("inf")] if kind == NOT_FINITE else [0.0, 1e-30])
    fault = PassFault(random.randrange(subject.case.perturbation.steps + 1), random.choice(places), value)

    def call() -> None:
        if subject.base is not None:
            subject.base.skip = True
        try:
            subject.call(fault)
        finally:
            if subject.base is not None:
                subject.base.skip = False

    return Fault(kind, call, lambda: fault.where if fault.k < subject.passes else None, raises=False)


def campaign(seed: int = 0, size: str = "full", jobs: int = 1) -> dict[str, Any]:
    """Inject the faults in parts with seeds of their own. Finished parts are kept in runs/faults, and not run again.

    Args:
        seed: All faults follow from it, whatever the number of processes.
        size: One of `SIZES`.
        jobs: The number of parts that run at a time.
    """
    from benchmarks.faults import planted

    parts = SIZES[size] // FAULTS_OF_A_PART
    folder = kept.FOLDER / f"walk-{kept.source_hash(kept.CORE, SOURCES)}"
    files = {folder / f"{size}-{seed}-{part}.json": parts * seed + part for part in range(parts)}
    bugs = {folder / f"planted-{number}.json": name for number, name in enumerate(planted.BUGS)}
    missing = [file for file in (*files, *bugs) if not file.exists()]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [
            pool.submit(_write_part, file, files[file])
            if file in files
            else pool.submit(planted.write_one, file, bugs[file])
            for file in missing
        ]
        for number, job in enumerate(as_completed(running), 1):
            job.result()
            print(f"{number} of {len(running)} parts are finished", file=sys.stderr, flush=True)
    caught = {name: json.loads(file.read_text())["faults"] for file, name in bugs.items()}
    return merged([json.loads(file.read_text()) for file in files], seed) | {"planted": caught}


def merged(parts: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    total: dict[str, Any] = {"seed": seed, "torch": torch.__version__}
    for name in ("faults", "cases", "seconds"):
        total[name] = sum(each[name] for each in parts)
    for name in ("kinds", "places", "entries", "methods", "weights"):
        total[name] = dict(sorted(sum((Counter(each[name]) for each in parts), Counter()).items()))
    return total | {"lost": [lost for each in parts for lost in each["lost"]]}


def _write_part(file: Path, seed: int) -> None:
    torch.set_num_threads(1)
    kept.write(file, run(seed, FAULTS_OF_A_PART))


def run(seed: int, faults: int, *, stop_at_first: bool = False) -> dict[str, Any]:
    """Inject this many faults; return how many of each kind and place, and what was lost.

    Args:
        seed: All faults follow from it.
        faults: The number of faults.
        stop_at_first: Return as soon as something is lost.
    """
    random, began = Random(seed), time.process_time()
    kinds, places, entries, methods, weights = (Counter[str]() for _ in range(5))
    lost = list[Lost]()
    done = cases = 0
    while done < faults:
        case = draw(random)
        cases += 1
        with cut_into_portions(case.cut), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pair = Pair(case, random)
            for attempt in range(2 * FAULTS_OF_A_CASE):
                kind = random.choice(KINDS)
                place, wrong = pair.judge(make(kind, pair, random))
                if place is None and not wrong:
                    continue  # the step was too short for this fault
                kinds[kind] += 1
                places["a line of gasam" if kind == LINE else WORDED.get(str(place), str(place))] += 1
                entries[case.entry] += 1
                methods[case.method] += 1
                weights[case.weights] += 1
                lost += [Lost(done, kind, str(place), what, str(case)) for what in wrong]
                done += 1
                if wrong or attempt >= FAULTS_OF_A_CASE or done >= faults:
                    break  # after a loss the pair is of no further use
        if lost and stop_at_first:
            break
    return {
        "faults": done,
        "cases": cases,
        "seed": seed,
        "seconds": round(time.process_time() - began),
        "kinds": dict(sorted(kinds.items())),
        "places": dict(sorted(places.items())),
        "entries": dict(sorted(entries.items())),
        "methods": dict(sorted(methods.items())),
        "weights": dict(sorted(weights.items())),
        "lost": [each._asdict() for each in lost],
    }


@contextmanager
def cut_into_portions(cut: bool) -> Iterator[None]:
    """Handle a few weights at once, so that a small model is cut as a large one is."""
    before = gasam.portions.CPU
    if cut:
        gasam.portions.CPU = Limits(small=12, largest=40)
    try:
        yield
    finally:
        gasam.portions.CPU = before
