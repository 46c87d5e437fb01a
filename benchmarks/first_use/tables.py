"""Records as Markdown: the table of the guide, and the comparison that the default was chosen by."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.first_use.comparison import BySeed, Runs, by_setup, differences, is_worse
from benchmarks.first_use.records import Record
from benchmarks.first_use.setup import Metric
from benchmarks.first_use.setups import SETUPS
from benchmarks.first_use.variants import PLAIN, RECOMMENDED, SAM, VARIANTS

FINAL_SEEDS = (4, 5, 6)
SELECTION_SEEDS = (11, 12, 13)
MISSING = "-"

WORSE = " **worse**"
GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
START, STOP = "<!-- first use -->\n", "<!-- /first use -->"

HEADER = (
    "set-up", "metric", "plain training", "recommended minus plain", "`sam` minus plain",
    "recommended minus plain, equal cost", "passes",
)  # fmt: skip


def table(records: Iterable[Record], seeds: Iterable[int] = FINAL_SEEDS) -> str:
    """A row for each set-up, judged on the test split.

    With three or more seeds a cell is the mean and the standard deviation, with fewer it lists the seeds. Differences
    are paired by seed. "Equal cost" is plain training with as many passes as the recommended setting took. A mean that
    is worse than plain training by more than one standard deviation of plain training is marked.

    Args:
        records: Records of finished runs, as `records.read` returns them.
        seeds: The seeds that count.
    """
    rows = [_row(runs) for runs in by_setup(records, seeds, SETUPS).values()]
    return markdown(HEADER, rows)


def _row(runs: Runs) -> list[str]:
    plain, new, sam = (runs.values(variant, "test") for variant in (PLAIN, RECOMMENDED, SAM))
    passes = runs.passes(RECOMMENDED)
    return [
        runs.title,
        runs.metric.name,
        _spread(plain.values(), runs.metric.digits),
        _difference(new, plain, runs.metric),
        _difference(sam, plain, runs.metric),
        _difference(new, runs.plain_at_cost_of(RECOMMENDED, "test"), runs.metric),
        MISSING if passes is None else f"{passes:.2f}",
    ]


def _difference(new: BySeed, old: BySeed, metric: Metric) -> str:
    """New minus old, marked if it is clearly worse."""
    return _spread(differences(new, old), metric.digits, sign="+") + (WORSE if is_worse(new, old, metric) else "")


def write_guide(records: Iterable[Record], seeds: Iterable[int] = FINAL_SEEDS, guide: Path = GUIDE) -> None:
    """Put the table into the guide, between its two marks."""
    before, rest = guide.read_text(encoding="utf-8").split(START)
    after = rest.split(STOP)[1]
    guide.write_text(f"{before}{START}\n{table(records, seeds)}\n{STOP}{after}", encoding="utf-8")


def choose(records: Iterable[Record], seeds: Iterable[int] = SELECTION_SEEDS) -> str:
    """The mean on the validation split of all variants after E epochs; then how often each is better or worse.

    Args:
        records: Records of finished runs.
        seeds: The seeds that count.
    """
    setups = by_setup(records, seeds, SETUPS)
    found = {record["variant"] for runs in setups.values() for record in runs.records}
    variants = [variant for variant in VARIANTS if variant in found]
    values = {name: {v: runs.values(v, "validation") for v in variants} for name, runs in setups.items()}
    rows = [
        [runs.title, runs.metric.name, *(_mean(values[name][v], runs.metric.digits) for v in variants)]
        for name, runs in setups.items()
    ]
    gains = {v: _gains(setups, values, v) for v in variants}
    worse = {v: [is_worse(values[n][v], values[n][PLAIN], runs.metric) for n, runs in setups.items()] for v in variants}
    rows += [
        ["better than plain", "set-ups", *(str(sum(gain > 0 for gain in gains[v])) for v in variants)],
        ["worse than plain", "set-ups", *(str(sum(gain < 0 for gain in gains[v])) for v in variants)],
        ["worse by more than one sd of plain", "set-ups", *(str(worse[v].count(True)) for v in variants)],
        ["passes", "passes of plain", *(_passes(setups, v) for v in variants)],
    ]
    return markdown(["set-up", "metric", *variants], rows)


def _gains(setups: dict[str, Runs], values: dict[str, dict[str, BySeed]], variant: str) -> list[float]:
    """For each set-up with runs of both, how much better the variant is than plain training, paired by seed."""
    gains = []
    for name, runs in setups.items():
        if paired := differences(values[name][variant], values[name].get(PLAIN, {})):
            gains.append(runs.metric.gain(statistics.fmean(paired), 0.0))
    return gains


def _passes(setups: dict[str, Runs], variant: str) -> str:
    ratios = [ratio for runs in setups.values() if (ratio := runs.passes(variant)) is not None]
    return f"{statistics.fmean(ratios):.2f}" if ratios else MISSING


def _mean(values: BySeed, digits: int) -> str:
    return f"{statistics.fmean(values.values()):.{digits}f}" if values else MISSING


def _spread(values: Iterable[float], digits: int, sign: str = "") -> str:
    """The mean and the standard deviation of three or more values; fewer are listed."""
    found = list(values)
    if len(found) < 3:
        return ", ".join(f"{value:{sign}.{digits}f}" for value in found) or MISSING
    return f"{statistics.fmean(found):{sign}.{digits}f} ± {statistics.stdev(found):.{digits}f}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
