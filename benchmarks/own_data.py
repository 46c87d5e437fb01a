"""A user's own texts: do the defaults harm, and does `gasam tune` recommend something that harms?

The texts are the first 40 words of IMDB reviews: 6,000 to train, 800 to validate, 3,000 to test. Decided before any
run:

- Defaults: GA-SAM as recommended and plain training, seeds 1 and 2.
- Tuning: five searches with the seeds 101 to 105 and these 800 validation rows. The walk that each search recommends is
  trained with seeds 1 and 2 and compared with plain training on test. It must not be worse by more than the noise of
  the validation split, the standard error of a difference of two scores on 800 rows.

    python -m benchmarks.own_data run --data DIR --out DIR
    python -m benchmarks.own_data table            # from benchmarks/own_data.json
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gasam.lab.engines.execution import run_all
from gasam.lab.engines.jobs import prepare
from gasam.lab.engines.local import LocalEngine
from gasam.lab.search.driver import tune
from gasam.lab.search.finding import Finding
from gasam.lab.search.question import Question
from gasam.lab.search.tuned_walk import with_tuned_walk
from gasam.lab.storage import write_json
from gasam.lab.tasks import Origin, imdb
from gasam.lab.training.plan import Plan, make

WORDS = 40
ROWS = {"train": 6_000, "valid": 800, "test": 3_000}
SEEDS = (1, 2)
SEARCHES = (101, 102, 103, 104, 105)
RESULTS = Path(__file__).with_suffix(".json")


def write_texts(data: Path, out: Path) -> Origin:
    """CSV files as a user would have them."""
    corpus = imdb.source(data).read()
    files = {split: out / f"{split}.csv" for split in ROWS}
    out.mkdir(parents=True, exist_ok=True)
    for split, rows in ROWS.items():
        with files[split].open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(("text", "label"))
            for text, label in getattr(corpus, split)[:rows]:
                writer.writerow((" ".join(text.split()[:WORDS]), corpus.classes[label]))
    return Origin(train=str(files["train"]), valid=str(files["valid"]), test=str(files["test"]))


def scores(plans: Sequence[Plan], out: Path, jobs: int) -> list[float | None]:
    """On test, in the order of the plans."""
    runs = prepare(plans, out)
    run_all(runs, out, LocalEngine(jobs), lambda job, event: print(job.name, event[0]) if event[0] == "done" else None)
    by_name = {run.name: run.record for run in runs}
    hashed = {"hash": plans[0].data().hash}
    records = [by_name[plan.name(hashed)] for plan in plans]
    return [record.test if record else None for record in records]


def searched(origin: Origin, seed: int, out: Path, jobs: int) -> dict[str, Any]:
    """One search, and what its recommendation is worth on test."""
    found: Finding = tune(Question("classify", "ga-sam", seed=seed, origin=origin), out, engine=LocalEngine(jobs))
    best = found.chosen()
    assert best is not None
    plans = [with_tuned_walk(make("classify", "ga-sam", seed=each, origin=origin), out) for each in SEEDS]
    return {
        "seed": seed,
        "walk": str(best),
        "baseline_valid": found.baseline_score,
        "valid": found.one(best).valid,
        "noise": found.error,
        "tries": {str(one.candidate): one.valid for one in found.tries},
        "test": scores(plans, out, jobs),
    }


def run(data: Path, out: Path, jobs: int) -> dict[str, Any]:
    origin = write_texts(data, out)
    found = {
        method: scores([make("classify", method, seed=seed, origin=origin) for seed in SEEDS], out, jobs)
        for method in ("baseline", "ga-sam")
    }
    return {
        "seeds": list(SEEDS),
        **found,
        "searches": [searched(origin, seed, out / str(seed), jobs) for seed in SEARCHES],
    }


def table(results: Mapping[str, Any]) -> str:
    plain = fmean(results["baseline"])
    lines = ["| walk | gain on validation | noise of the split | test | vs plain training |", "|---|---|---|---|---|"]
    lines.append(f"| plain training | | | {plain:.2f} | |")
    ours = fmean(results["ga-sam"])
    lines.append(f"| GA-SAM as recommended | | | {ours:.2f} | {ours - plain:+.2f} |")
    for found in results["searches"]:
        test, gain = fmean(found["test"]), found["valid"] - found["baseline_valid"]
        name = f"search with seed {found['seed']}: {found['walk']}"
        lines.append(f"| {name} | {gain:+.2f} | {found['noise']:.2f} | {test:.2f} | {test - plain:+.2f} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Try the defaults and the search on a user's own texts.")
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--data", type=Path, default=Path("data"), help="Folder that has IMDB.")
    parser.add_argument("--out", type=Path, default=Path("runs/own_data"), help="Folder of texts and records.")
    parser.add_argument("--jobs", type=int, default=2, help="Runs at a time.")
    options = parser.parse_args(arguments)
    if options.command == "run":
        write_json(RESULTS, run(options.data, options.out, options.jobs))
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))), end="")


if __name__ == "__main__":
    main()
