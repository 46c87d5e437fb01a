"""Train the set-ups with the variants, and print what the records say."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from benchmarks.first_use import records
from benchmarks.first_use.comparison import at_best_epoch
from benchmarks.first_use.data import MissingDataError
from benchmarks.first_use.records import RESULTS
from benchmarks.first_use.setup import Setup
from benchmarks.first_use.setups import SETUPS
from benchmarks.first_use.tables import FINAL_SEEDS, SELECTION_SEEDS, choose, table, write_guide
from benchmarks.first_use.training import train
from benchmarks.first_use.variants import PLAIN, RECOMMENDED, SAM, VARIANTS

USUAL = (PLAIN, RECOMMENDED, SAM)


def run(setups: Iterable[Setup], variants: Sequence[str], seeds: Sequence[int], path: Path = RESULTS) -> None:
    """Train every combination that has no record yet, and append a record for each.

    Args:
        setups: The set-ups.
        variants: Names of `VARIANTS`.
        seeds: The seeds; all set-ups are run with the first one before the second.
        path: The file of the records.
    """
    remaining = {setup.name: setup for setup in setups}
    for seed in seeds:
        for name, setup in list(remaining.items()):
            try:
                for variant in variants:
                    run_once(setup, variant, seed, path)
            except (MissingDataError, ModuleNotFoundError) as missing:
                print(f"{name} is skipped: {missing}", flush=True)
                del remaining[name]


def run_once(setup: Setup, variant: str, seed: int, path: Path = RESULTS) -> None:
    """Train one combination and append its record, unless there is one. Plain training takes 2E epochs."""
    this = records.identity(setup, variant, seed)
    if records.is_recorded(this, records.read(path)):
        return
    start = time.process_time()
    history = train(setup, VARIANTS[variant], seed, setup.epochs * (2 if variant == PLAIN else 1))
    record = records.finished(this, setup, history, time.process_time() - start)
    records.append(record, path)
    digits = setup.metric.digits
    valid, test = (at_best_epoch(record, split, setup.epochs) for split in ("validation", "test"))
    print(
        f"{setup.name}, {variant}, seed {seed}: validation {valid:.{digits}f}, test {test:.{digits}f} "
        f"({setup.metric.name}), {record['seconds']:.0f} s",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if options.command == "run":
        run([SETUPS[name] for name in options.setups], options.variants, options.seeds, options.results)
    elif options.command == "table":
        print(table(records.read(options.results), options.seeds), end="")
    elif options.command == "guide":
        write_guide(records.read(options.results), options.seeds)
    else:
        print(choose(records.read(options.results), options.seeds), end="")


def _parser() -> argparse.ArgumentParser:
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
            _add_names(command, "--setups", SETUPS, tuple(SETUPS))
            _add_names(command, "--variants", VARIANTS, USUAL)
    return parser


def _add_names(command: argparse.ArgumentParser, option: str, names: Iterable[str], usual: tuple[str, ...]) -> None:
    choices = tuple(names)
    default = "all" if usual == choices else ", ".join(usual)
    text = f"one or more of: {', '.join(choices)} (default {default})"
    command.add_argument(option, nargs="+", choices=choices, default=usual, metavar="NAME", help=text)


if __name__ == "__main__":
    main()
