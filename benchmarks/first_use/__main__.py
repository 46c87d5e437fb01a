"""Train the set-ups with the variants, and print what the records say."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from benchmarks.first_use.data import MissingDataError
from benchmarks.first_use.setups import SETUPS
from benchmarks.first_use.tables import FINAL_SEEDS, SELECTION_SEEDS, choose, table, write_guide
from benchmarks.first_use.training import PLAIN, RECOMMENDED, RESULTS, SAM, VARIANTS, Setup, read, run_once


def run(setups: Iterable[Setup], variants: Sequence[str], seeds: Sequence[int], path: Path = RESULTS) -> None:
    """Train every combination that has no record yet, all set-ups with the first seed before the second."""
    remaining = {setup.name: setup for setup in setups}
    for seed in seeds:
        for name, setup in list(remaining.items()):
            try:
                for variant in variants:
                    record = run_once(setup, variant, seed, path)
                    if record is not None:
                        print(f"{name}, {variant}, seed {seed}: {record['seconds']:.0f} s", flush=True)
            except (MissingDataError, ModuleNotFoundError) as missing:
                print(f"{name} is skipped: {missing}", flush=True)
                del remaining[name]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_use", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    texts = {
        "run": ("Train; finished runs are skipped. Set GASAM_DATA to the folder of MNIST, IMDB and PTB", FINAL_SEEDS),
        "table": ("Print the results on the test split as Markdown", FINAL_SEEDS),
        "guide": ("Write this table into docs/guide.md", FINAL_SEEDS),
        "choose": ("Compare the variants on the validation split", SELECTION_SEEDS),
    }
    for name, (text, seeds) in texts.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--seeds", nargs="+", type=int, default=seeds, help="seeds (default %(default)s)")
        command.add_argument("--results", type=Path, default=RESULTS, help="file of the records (default %(default)s)")
        if name == "run":
            command.add_argument("--setups", nargs="+", choices=SETUPS, default=list(SETUPS), help="default: all")
            usual = [PLAIN, RECOMMENDED, SAM]
            command.add_argument("--variants", nargs="+", choices=VARIANTS, default=usual, help=f"default: {usual}")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if options.command == "run":
        run([SETUPS[name] for name in options.setups], options.variants, options.seeds, options.results)
    elif options.command == "guide":
        write_guide(read(options.results), options.seeds)
    else:
        print((table if options.command == "table" else choose)(read(options.results), options.seeds), end="")


if __name__ == "__main__":
    main()
