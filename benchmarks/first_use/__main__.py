"""Train the set-ups with the variants, and say what the records hold."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from benchmarks.first_use.data import MissingDataError
from benchmarks.first_use.setups import SETUPS
from benchmarks.first_use.tables import FINAL_SEEDS, pages, text
from benchmarks.first_use.training import RESULTS, VARIANTS, Setup, read, run_once


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
    train = commands.add_parser("run", help="train; set GASAM_DATA to the folder of MNIST, IMDB and PTB")
    train.add_argument("--setups", nargs="+", choices=SETUPS, default=list(SETUPS))
    train.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    train.add_argument("--seeds", nargs="+", type=int, default=FINAL_SEEDS)
    commands.add_parser("guide", help="write the tables of results on the test split into the pages")
    validation = commands.add_parser("validation", help="print the same tables for the validation split")
    validation.add_argument("--seeds", nargs="+", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if options.command == "run":
        run([SETUPS[name] for name in options.setups], options.variants, options.seeds)
    elif options.command == "guide":
        for page, made in pages(read()).items():
            page.write_text(made, encoding="utf-8")
    else:
        print(text(read(), options.seeds, "valid"), end="")


if __name__ == "__main__":
    main()
