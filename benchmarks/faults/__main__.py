"""Inject faults, write what was lost to results.json, and make docs/reliability.md from it.

Exit code 0 if nothing was lost and every planted bug was caught, else 1.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from benchmarks.faults import page

PARTS = ("walk", "processes", "runs", "cluster", "inputs")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="all faults follow from it (default 0)")
    parser.add_argument("--only", choices=PARTS, help="run one part only")
    parser.add_argument(
        "--size", choices=("full", "sample"), default="full", help="sample: print the figures of a few, write nothing"
    )
    parser.add_argument("--jobs", type=int, default=1, help="the number of processes that inject faults (default 1)")
    options = parser.parse_args(words)
    good = True
    for name in [options.only] if options.only else PARTS:
        print(f"injecting faults: {name} ...", file=sys.stderr, flush=True)
        found = import_module(f"benchmarks.faults.{name}").campaign(options.seed, options.size, options.jobs)
        good &= is_good(found)
        if options.size == "sample":
            print(json.dumps(found, indent=1))
            continue
        results = page.results() | {name: found | {"python": platform.python_version()}}
        page.RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        page.PAGE.write_text(page.page(results), encoding="utf-8")
    told = "nothing was lost" if good else "something was lost, or a planted bug was not caught: see the figures"
    print(told, file=sys.stderr)
    return 0 if good else 1


def is_good(found: dict[str, Any]) -> bool:
    return not found["lost"] and None not in found.get("planted", {}).values()


if __name__ == "__main__":
    sys.exit(main())
