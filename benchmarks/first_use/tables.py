"""What the records say, as Markdown: the table of the guide, and the comparison that the default was chosen by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from benchmarks.first_use.setups import SETUPS
from benchmarks.first_use.training import PLAIN, RECOMMENDED, SAM, VARIANTS, Metric, Record

FINAL_SEEDS = (4, 5, 6)
SELECTION_SEEDS = (11, 12, 13)
MISSING = "-"
GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
START, STOP = "<!-- first use -->\n", "<!-- /first use -->"
HEADER = (
    "set-up", "metric", "plain training", "recommended minus plain", "`sam` minus plain",
    "recommended minus plain, equal cost", "passes",
)  # fmt: skip


class Runs:
    """The runs of one set-up. All series are indexed by seed."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.title: str = records[0]["title"]
        self.metric = Metric(**records[0]["metric"])
        self.epochs: int = records[0]["configuration"]["epochs"]
        self.found: dict[str, dict[int, Record]] = {}
        for record in records:
            self.found.setdefault(record["variant"], {})[record["seed"]] = record["epochs"]

    def values(self, variant: str, split: str) -> pd.Series:
        """The metric at the best of the first E epochs."""
        runs = self.found.get(variant, {})
        return pd.Series({seed: self.best(run, split, self.epochs) for seed, run in runs.items()}, dtype=float)

    def best(self, run: Record, split: str, epochs: int) -> float:
        """The metric at the epoch that is best on validation, of the first `epochs`; of equal ones the first."""
        validation = run["validation"][:epochs]
        chosen = max(validation) if self.metric.higher_is_better else min(validation)
        return float(run[split][validation.index(chosen)])

    def plain_at_cost_of(self, variant: str, split: str) -> pd.Series:
        """The metric of plain training with at most as many passes as the variant took."""
        plain, found = self.found[PLAIN], dict[int, float]()
        for seed, run in self.found.get(variant, {}).items():
            if seed in plain:
                affordable = sum(passes <= run["passes"][-1] for passes in plain[seed]["passes"])
                found[seed] = self.best(plain[seed], split, max(1, affordable))
        return pd.Series(found, dtype=float)

    def passes(self, variant: str) -> float:
        """Passes for each pass of plain training in as many epochs, mean over the seeds; NaN without runs."""
        taken = [
            pd.Series({seed: run["passes"][self.epochs - 1] for seed, run in self.found.get(each, {}).items()})
            for each in (variant, PLAIN)
        ]
        return float((taken[0] / taken[1]).mean())

    def gain(self, new: pd.Series, old: pd.Series) -> float:
        """How much better `new` is on average, paired by seed; NaN without pairs."""
        return float((new - old).mean()) * (1 if self.metric.higher_is_better else -1)

    def is_worse(self, new: pd.Series, old: pd.Series) -> bool:
        """Whether `new` is worse by more than one standard deviation of `old`, with two paired seeds or more."""
        paired = old[(new - old).dropna().index]
        return len(paired) > 1 and -self.gain(new, old) > paired.std()

    def difference(self, new: pd.Series, old: pd.Series) -> str:
        """New minus old, marked if it is clearly worse."""
        return self.spread((new - old).dropna(), "+") + (" **worse**" if self.is_worse(new, old) else "")

    def spread(self, values: pd.Series, sign: str = "") -> str:
        """The mean and the standard deviation of three or more values; fewer are listed."""
        digits = self.metric.digits
        if len(values) < 3:
            return ", ".join(f"{value:{sign}.{digits}f}" for value in values) or MISSING
        return f"{values.mean():{sign}.{digits}f} ± {values.std():.{digits}f}"


def by_setup(records: Iterable[Record], seeds: Iterable[int]) -> list[Runs]:
    """The last runs with these seeds of each set-up, with its last configuration."""
    found: dict[str, list[Record]] = {name: [] for name in SETUPS}
    for record in records:
        some = found.setdefault(record["setup"], [])
        if some and json.dumps(some[-1]["configuration"]) != json.dumps(record["configuration"]):
            some.clear()
        some.append(record)
    kept = ([record for record in some if record["seed"] in seeds] for some in found.values())
    return [Runs(some) for some in kept if some]


def table(records: Iterable[Record], seeds: Iterable[int] = FINAL_SEEDS) -> str:
    """A row for each set-up, judged on the test split.

    With three or more seeds a cell is the mean and the standard deviation, with fewer it lists the seeds. Differences
    are paired by seed. "Equal cost" is plain training with as many passes as the recommended setting took. A mean that
    is worse than plain training by more than one standard deviation of plain training is marked.
    """
    rows = []
    for runs in by_setup(records, seeds):
        plain, new, sam = (runs.values(variant, "test") for variant in (PLAIN, RECOMMENDED, SAM))
        equal_cost = runs.plain_at_cost_of(RECOMMENDED, "test")
        differences = [runs.difference(*pair) for pair in ((new, plain), (sam, plain), (new, equal_cost))]
        passes = _number(runs.passes(RECOMMENDED), 2)
        rows.append([runs.title, runs.metric.name, runs.spread(plain), *differences, passes])
    return markdown(HEADER, rows)


def write_guide(records: Iterable[Record]) -> None:
    """Put the table into the guide, between its two marks."""
    before, rest = GUIDE.read_text(encoding="utf-8").split(START)
    GUIDE.write_text(f"{before}{START}\n{table(records)}\n{STOP}{rest.split(STOP)[1]}", encoding="utf-8")


def choose(records: Iterable[Record], seeds: Iterable[int] = SELECTION_SEEDS) -> str:
    """The mean on the validation split of all variants after E epochs; then how often each is better or worse."""
    setups = by_setup(records, seeds)
    variants = [variant for variant in VARIANTS if any(variant in runs.found for runs in setups)]
    means, totals = [], []
    for runs in setups:
        values = {variant: runs.values(variant, "validation") for variant in variants}
        shown = [_number(value.mean(), runs.metric.digits) for value in values.values()]
        means.append([runs.title, runs.metric.name, *shown])
        for variant, value in values.items():
            gain, worse = runs.gain(value, values[PLAIN]), runs.is_worse(value, values[PLAIN])
            totals.append([variant, gain > 0, gain < 0, worse, runs.passes(variant)])
    counts = ["better than plain", "worse than plain", "worse by more than one sd of plain", "passes of plain"]
    frame = pd.DataFrame(totals, columns=["variant", *counts]).groupby("variant", sort=False)
    rows = [[count, "set-ups", *map(str, frame[count].sum())] for count in counts[:3]]
    rows.append([counts[3], "", *(_number(value, 2) for value in frame[counts[3]].mean())])
    return markdown(["set-up", "metric", *variants], [*means, *rows])


def _number(value: float, digits: int) -> str:
    return MISSING if pd.isna(value) else f"{value:.{digits}f}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
