"""Measure everything, or the parts named; write results.json and docs/performance.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

import torch

from benchmarks import memory, peer, report, step, workers
from benchmarks.measure import commit

RESULTS = Path(__file__).with_name("results.json")
PARTS = {
    "overhead": lambda rounds: step.run(max(3, rounds // 5)),
    "peer": peer.run,
    "memory": lambda rounds: memory.run(),
    "workers": workers.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all unless named")
    parser.add_argument("--rounds", type=int, default=50, help="rounds of the interleaved timings (default 50)")
    parser.add_argument("--shared", action="store_true", help="note that other programs were running meanwhile")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(threads)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.parts or PARTS:
        print(f"measuring {name} ...", flush=True)
        machine = {
            "commit": commit("src", "benchmarks/*.py"),
            "torch": torch.__version__,
            "threads": threads,
            "cpu": platform.machine(),
        }
        results[name] = {"measured": PARTS[name](options.rounds), **machine, "shared": options.shared}
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    text = report.page(results)
    report.PAGE.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
