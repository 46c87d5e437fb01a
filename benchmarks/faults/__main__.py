"""Inject faults, write what was lost to results.json, and make docs/reliability.md from it.

Exit code 0 if nothing was lost and every planted bug was noticed, else 1.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from benchmarks.faults import page

PARTS = [name for name in ("walk", "runs", "inputs") if find_spec(f"benchmarks.faults.{name}") is not None]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="all faults follow from it (default 0)")
    parser.add_argument("--only", choices=PARTS, help="run one part only")
    parser.add_argument("--faults", type=int, help="the number of faults of each part (default: its own)")
    parser.add_argument(
        "--finished", action="store_true", help="sum up the finished parts of the walk, and run nothing"
    )
    options = parser.parse_args(words)
    results = page.results()
    good = True
    for name in [options.only] if options.only else PARTS:
        print(f"injecting faults: {name} ...", flush=True)
        part = import_module(f"benchmarks.faults.{name}")
        counts: dict[str, int] = {} if options.faults is None else {"faults": options.faults}
        if options.finished and name == "walk":
            counts["only_finished"] = True
        found = part.campaign(options.seed, **counts)
        good &= not found["lost"] and None not in found.get("planted", {}).values()
        results[name] = found | {"python": platform.python_version(), "command": f"faults --only {name}"}
        page.RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    page.PAGE.write_text(page.page(results), encoding="utf-8")
    print("nothing was lost" if good else "something was lost, or a planted bug was not noticed: see results.json")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
