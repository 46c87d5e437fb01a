"""How much freedom the size of the walk leaves: the usable window on docstrings.

A size is usable if its mean gain on validation over three seeds is at least half of the best mean gain. The window is
the ratio of the largest to the smallest usable size, without a gap between them. Epsilon, the paper's form, is compared
with a budget under a cap and the recommended schedule. Sizes, seeds and this rule were fixed before anything was run;
the caps above the recommended one were added when its results were known.

    python -m benchmarks.window run --out DIR     # 147 runs; finished ones are skipped
    python -m benchmarks.window table             # from benchmarks/window.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gasam import recommended
from gasam.lab.engines.execution import run_all
from gasam.lab.engines.jobs import prepare
from gasam.lab.engines.local import LocalEngine
from gasam.lab.storage import write_json
from gasam.lab.training.plan import Plan, make

TASK, SIZE = "docstrings", "small"
SEEDS = (1, 2, 3)
CAPS = (0.01, 0.03, 0.1)
EPSILONS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)
BUDGETS = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1.0, 2.0, 5.0, 10.0)
RESULTS = Path(__file__).with_suffix(".json")


def plans() -> dict[tuple[str, float], list[Plan]]:
    """By quantity and size, a plan for each seed; the baseline has size 0."""
    progress = recommended()[1].progress
    walks: dict[tuple[str, float], dict[str, Any]] = {("baseline", 0.0): {}}
    walks |= {("epsilon", size): {"epsilon": size} for size in EPSILONS}
    walks |= {
        (f"budget, cap {cap:g}", size): {"budget": size, "cap": cap, "walk_progress": progress}
        for cap in CAPS
        for size in BUDGETS
    }
    return {key: [_plan(walk, seed) for seed in SEEDS] for key, walk in walks.items()}


def _plan(walk: Mapping[str, Any], seed: int) -> Plan:
    return make(TASK, "ga-sam", SIZE, seed, walk=walk) if walk else make(TASK, "baseline", SIZE, seed)


def run(out: Path, parallel: int) -> dict[str, Any]:
    wanted = plans()
    jobs = prepare([plan for some in wanted.values() for plan in some], out)
    by_plan = {(job.plan.seed, json.dumps(job.plan.choice.identity(), sort_keys=True)): job for job in jobs}
    run_all(
        jobs,
        out,
        LocalEngine(parallel),
        lambda job, event: print(job.name, event[0], flush=True) if event[0] != "update" else None,
    )
    rows = []
    for (quantity, size), some in wanted.items():
        found = [by_plan[plan.seed, json.dumps(plan.choice.identity(), sort_keys=True)].record for plan in some]
        scores = {
            split: [getattr(record, split) if record else None for record in found] for split in ("valid", "test")
        }
        rows.append({"quantity": quantity, "size": size, **scores})
    return {"task": TASK, "size": SIZE, "seeds": list(SEEDS), "rows": rows}


def mean_gains(results: Mapping[str, Any], quantity: str, split: str) -> dict[float, float]:
    """Over the baseline, paired by seed; a run that gave no number counts as guessing level would: minus 100."""
    [baseline] = [row for row in results["rows"] if row["quantity"] == "baseline"]
    return {
        row["size"]: sum(
            (ours if ours is not None else plain - 100) - plain
            for ours, plain in zip(row[split], baseline[split], strict=True)
        )
        / len(baseline[split])
        for row in results["rows"]
        if row["quantity"] == quantity
    }


def window(gains: Mapping[float, float]) -> tuple[float, float]:
    """The smallest and the largest usable size around the best."""
    sizes = sorted(gains)
    best = max(sizes, key=lambda size: gains[size])
    usable = [gains[size] >= gains[best] / 2 for size in sizes]
    low = high = sizes.index(best)
    while low > 0 and usable[low - 1]:
        low -= 1
    while high < len(sizes) - 1 and usable[high + 1]:
        high += 1
    return sizes[low], sizes[high]


def table(results: Mapping[str, Any]) -> str:
    lines = [
        "| walk | usable from | to | ratio | best gain, validation | its gain, test |",
        "|---|---|---|---|---|---|",
    ]
    for quantity in dict.fromkeys(row["quantity"] for row in results["rows"] if row["quantity"] != "baseline"):
        valid, test = (mean_gains(results, quantity, split) for split in ("valid", "test"))
        low, high = window(valid)
        best = max(valid, key=lambda size: valid[size])
        edge = "at least " if high == max(valid) or low == min(valid) else ""
        lines.append(
            f"| {quantity} | {low:g} | {high:g} | {edge}{high / low:g} "
            f"| {valid[best]:+.2f} at {best:g} | {test[best]:+.2f} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure the usable window of the size of the walk.")
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--out", type=Path, default=Path("runs/window"), help="Folder of records.")
    parser.add_argument("--jobs", type=int, default=2, help="Runs at a time.")
    options = parser.parse_args(arguments)
    if options.command == "run":
        write_json(RESULTS, run(options.out, options.jobs))
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))), end="")


if __name__ == "__main__":
    main()
