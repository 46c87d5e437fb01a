"""How much of the gain is left when the walk is cheaper.

Decided before any run, on `imdb` and `docstrings`, size small:

- Variants: the full walk; a walk on every fourth step with weight 4 (the default), with weight 4 and the same dropout
  masks in both passes, and with weight 2; the full walk in the second half of training.
- Each variant has the same four trials: budget and cap (0.1, 0.01), (0.1, 0.03), (0.1, 0.1), (0.3, 0.1), with the
  recommended schedule. The trial with the best mean on validation is taken: seed 11 on imdb, seeds 11 and 12 on
  docstrings, which is smaller.
- The variant is then trained with the seeds 1, 2 and 3 and compared with plain training on test, paired by seed.
- The time of a step is measured for all variants side by side. In the second half of training, half of the steps walk.

    python -m benchmarks.affordable run --task imdb --data DIR --out DIR
    python -m benchmarks.affordable time --task imdb --data DIR     # on an idle machine
    python -m benchmarks.affordable table          # from benchmarks/affordable.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gasam import recommended
from gasam.lab.engines.execution import run_all
from gasam.lab.engines.jobs import prepare
from gasam.lab.engines.local import LocalEngine
from gasam.lab.engines.step_time import step_times
from gasam.lab.records import RunRecord
from gasam.lab.storage import write_json
from gasam.lab.tasks import Origin
from gasam.lab.training.plan import Plan, make

SIZE = "small"
SELECTION = {"imdb": (11,), "docstrings": (11, 12)}
SEEDS = (1, 2, 3)
TRIALS = ((0.1, 0.01), (0.1, 0.03), (0.1, 0.1), (0.3, 0.1))
VARIANTS: dict[str, dict[str, Any]] = {
    "every step": {},
    "every 4th step, weight 4": {"walk_every": 4},
    "every 4th step, weight 4, same masks": {"walk_every": 4, "same_noise": True},
    "every 4th step, weight 2": {"walk_every": 4, "walk_weight": 2.0},
    "every step of the second half": {"walk_start": 0.5},
}
RESULTS = Path(__file__).with_suffix(".json")


class Runs:
    """Trains plans and keeps their records in a folder; finished ones are read."""

    def __init__(self, task: str, data: Path | None, out: Path, jobs: int) -> None:
        self.task, self.origin, self.out, self.jobs = task, Origin(data), out, jobs

    def plan(self, walk: Mapping[str, Any] | None, seed: int) -> Plan:
        method = "baseline" if walk is None else "ga-sam"
        return make(self.task, method, SIZE, seed, origin=self.origin, walk=walk)

    def records(self, plans: Sequence[Plan]) -> list[RunRecord]:
        """In the order of the plans."""
        jobs = prepare(plans, self.out)
        engine = LocalEngine(self.jobs)
        run_all(jobs, self.out, engine, lambda job, event: print(job.name) if event[0] == "done" else None)
        by_name = {job.name: job for job in jobs}
        found = [by_name[plan.name({"hash": plan.data().hash})].record for plan in plans]
        return [record for record in found if record is not None]


def walk_of(variant: str, trial: tuple[float, float]) -> dict[str, Any]:
    budget, cap = trial
    return {"budget": budget, "cap": cap, "walk_progress": recommended()[1].progress} | VARIANTS[variant]


def run(runs: Runs) -> dict[str, Any]:
    seeds = SELECTION[runs.task]
    walks = {(variant, trial): walk_of(variant, trial) for variant in VARIANTS for trial in TRIALS}
    plans = [runs.plan(walk, seed) for walk in (None, *walks.values()) for seed in seeds]
    valid = [record.valid for record in runs.records(plans)]
    means = [fmean(valid[start : start + len(seeds)]) for start in range(0, len(valid), len(seeds))]
    gains = dict(zip(walks, (mean - means[0] for mean in means[1:]), strict=True))
    chosen = {variant: max(TRIALS, key=lambda trial: gains[variant, trial]) for variant in VARIANTS}
    final = [runs.plan(walk, s) for walk in (None, *(walk_of(v, t) for v, t in chosen.items())) for s in SEEDS]
    found = runs.records(final)
    rows = {name: found[len(SEEDS) * n : len(SEEDS) * (n + 1)] for n, name in enumerate(("plain training", *VARIANTS))}
    return {
        name: {
            "valid": [record.valid for record in records],
            "test": [record.test for record in records],
            "passes": fmean(record.gradient_evaluations / record.updates for record in records),
            "chosen": chosen.get(name),
            "trials": {f"{b:g}, {c:g}": gains[name, (b, c)] for b, c in TRIALS} if name in chosen else None,
        }
        for name, records in rows.items()
    }


def timed(runs: Runs, rows: Mapping[str, Any]) -> dict[str, float]:
    """The time of a step over that of plain training, averaged over training."""
    plans = {name: runs.plan(walk_of(name, rows[name]["chosen"]), SEEDS[0]) for name in VARIANTS}
    plain = runs.plan(None, SEEDS[0])
    found = step_times([plain, *plans.values()], runs.jobs)
    shares = {name: 1 - VARIANTS[name].get("walk_start", 0) for name in VARIANTS}
    return {name: 1 + shares[name] * (found[plan.key] - 1) for name, plan in plans.items()}


def table(results: Mapping[str, Any]) -> str:
    lines = [
        "| task | walk | budget, cap | passes a step | step time | gain on test, 3 seeds | share of the full gain |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for task, rows in results.items():
        plain = rows["plain training"]["test"]
        full = fmean(rows["every step"]["test"]) - fmean(plain)
        for name in VARIANTS:
            gains = [ours - other for ours, other in zip(rows[name]["test"], plain, strict=True)]
            size = ", ".join(f"{number:g}" for number in rows[name]["chosen"])
            gain = f"{fmean(gains):+.2f} ± {stdev(gains):.2f}"
            ratio = rows[name].get("step_time")
            cost = f"{rows[name]['passes']:.2f} | {'' if ratio is None else f'{ratio:.2f}x'}"
            lines.append(f"| {task} | {name} | {size} | {cost} | {gain} | {fmean(gains) / full:.0%} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure cheaper walks.")
    parser.add_argument("command", choices=("run", "time", "table"))
    parser.add_argument("--task", choices=tuple(SELECTION), default="docstrings")
    parser.add_argument("--data", type=Path, help="Folder that has IMDB.")
    parser.add_argument("--out", type=Path, default=Path("runs/affordable"), help="Folder of records.")
    parser.add_argument("--jobs", type=int, default=2, help="Runs at a time.")
    options = parser.parse_args(arguments)
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    runs = Runs(options.task, options.data, options.out, options.jobs)
    if options.command == "run":
        results[options.task] = run(runs)
    if options.command == "time":
        for name, ratio in timed(runs, results[options.task]).items():
            results[options.task][name]["step_time"] = ratio
    if options.command != "table":
        write_json(RESULTS, results)
    print(table(results), end="")


if __name__ == "__main__":
    main()
