"""What the records say, as Markdown: the table of the guide, and the comparison that the default was chosen by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.first_use.setups import SETUPS
from benchmarks.first_use.training import PLAIN, RECOMMENDED, SAM, VARIANTS, Metric, Record

FINAL_SEEDS = (4, 5, 6)
SELECTION_SEEDS = (11, 12, 13)
MISSING, WORSE = "-", " **worse**"
GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
START, STOP = "<!-- first use -->\n", "<!-- /first use -->"
HEADER = (
    "set-up", "metric", "plain training", "recommended minus plain", "`sam` minus plain",
    "recommended minus plain, equal cost", "passes",
)  # fmt: skip


class Runs:
    """The runs of one set-up. All series are indexed by seed."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = rows
        self.metric = Metric(**rows["metric"].iloc[0])
        self.title: str = rows["title"].iloc[0]

    def of(self, variant: str) -> pd.Series:
        """The records of a variant."""
        return self.rows[self.rows["variant"] == variant].set_index("seed")["record"].sort_index()

    def values(self, variant: str, split: str) -> pd.Series:
        """The metric at the best of the first E epochs."""
        return self.of(variant).map(lambda record: self.best(record, split, record["configuration"]["epochs"]))

    def best(self, record: Record, split: str, epochs: int) -> float:
        """The metric at the epoch that is best on validation, of the first `epochs`; of equal ones the first."""
        validation = pd.Series(record["epochs"]["validation"][:epochs])
        return record["epochs"][split][validation.idxmax() if self.metric.higher_is_better else validation.idxmin()]

    def plain_at_cost_of(self, variant: str, split: str) -> pd.Series:
        """The metric of plain training with at most as many passes as the variant took."""
        plain, found = self.of(PLAIN), {}
        for seed, record in self.of(variant).items():
            if seed in plain:
                passes = pd.Series(plain[seed]["epochs"]["passes"])
                epochs = max(1, int((passes <= record["epochs"]["passes"][-1]).sum()))
                found[seed] = self.best(plain[seed], split, epochs)
        return pd.Series(found, dtype=float)

    def passes(self, variant: str) -> float:
        """Passes for each pass of plain training in as many epochs, mean over the seeds; NaN without runs."""

        def after(record: Record) -> float:
            return record["epochs"]["passes"][record["configuration"]["epochs"] - 1]

        ratios = self.of(variant).map(after) / self.of(PLAIN).map(after)
        return float(ratios.mean())

    def gain(self, new: pd.Series, old: pd.Series) -> float:
        """How much better `new` is on average, paired by seed; NaN without pairs."""
        return float((new - old).mean()) * (1 if self.metric.higher_is_better else -1)

    def is_worse(self, new: pd.Series, old: pd.Series) -> bool:
        """Whether `new` is worse by more than one standard deviation of `old`, with two paired seeds or more."""
        paired = old[(new - old).dropna().index]
        return len(paired) > 1 and -self.gain(new, old) > paired.std()


def by_setup(records: Iterable[Record], seeds: Iterable[int]) -> dict[str, Runs]:
    """The last runs with these seeds of each set-up, with its last configuration."""
    rows = pd.DataFrame([{**record, "record": record} for record in records])
    configurations = rows["configuration"].map(json.dumps)
    rows = rows[configurations == configurations.groupby(rows["setup"]).transform("last")]
    rows = rows.drop_duplicates(["setup", "variant", "seed"], keep="last")
    found = {str(name): Runs(group) for name, group in rows[rows["seed"].isin(seeds)].groupby("setup", sort=False)}
    return {name: found[name] for name in [*(name for name in SETUPS if name in found), *found]}


def table(records: Iterable[Record], seeds: Iterable[int] = FINAL_SEEDS) -> str:
    """A row for each set-up, judged on the test split.

    With three or more seeds a cell is the mean and the standard deviation, with fewer it lists the seeds. Differences
    are paired by seed. "Equal cost" is plain training with as many passes as the recommended setting took. A mean that
    is worse than plain training by more than one standard deviation of plain training is marked.
    """
    rows = []
    for runs in by_setup(records, seeds).values():
        plain, new, sam = (runs.values(variant, "test") for variant in (PLAIN, RECOMMENDED, SAM))
        equal_cost = runs.plain_at_cost_of(RECOMMENDED, "test")
        differences = [_difference(runs, *pair) for pair in ((new, plain), (sam, plain), (new, equal_cost))]
        passes = _number(runs.passes(RECOMMENDED), 2)
        rows.append([runs.title, runs.metric.name, _spread(plain, runs.metric.digits), *differences, passes])
    return markdown(HEADER, rows)


def write_guide(records: Iterable[Record], seeds: Iterable[int] = FINAL_SEEDS, guide: Path = GUIDE) -> None:
    """Put the table into the guide, between its two marks."""
    before, rest = guide.read_text(encoding="utf-8").split(START)
    guide.write_text(f"{before}{START}\n{table(records, seeds)}\n{STOP}{rest.split(STOP)[1]}", encoding="utf-8")


def choose(records: Iterable[Record], seeds: Iterable[int] = SELECTION_SEEDS) -> str:
    """The mean on the validation split of all variants after E epochs; then how often each is better or worse."""
    setups = by_setup(records, seeds).values()
    variants = [variant for variant in VARIANTS if any(len(runs.of(variant)) for runs in setups)]
    rows, found = [], dict[str, list[Any]]()
    for runs in setups:
        values = {variant: runs.values(variant, "validation") for variant in variants}
        means = [_number(values[variant].mean(), runs.metric.digits) for variant in variants]
        rows.append([runs.title, runs.metric.name, *means])
        for variant in variants:
            pair = values[variant], values[PLAIN]
            found.setdefault(variant, []).append((runs.gain(*pair), runs.is_worse(*pair), runs.passes(variant)))
    totals = {variant: pd.DataFrame(each, columns=["gain", "worse", "passes"]) for variant, each in found.items()}
    rows += [
        ["better than plain", "set-ups", *(str((each["gain"] > 0).sum()) for each in totals.values())],
        ["worse than plain", "set-ups", *(str((each["gain"] < 0).sum()) for each in totals.values())],
        ["worse by more than one sd of plain", "set-ups", *(str(each["worse"].sum()) for each in totals.values())],
        ["passes", "passes of plain", *(_number(each["passes"].mean(), 2) for each in totals.values())],
    ]
    return markdown(["set-up", "metric", *variants], rows)


def _difference(runs: Runs, new: pd.Series, old: pd.Series) -> str:
    """New minus old, marked if it is clearly worse."""
    return _spread((new - old).dropna(), runs.metric.digits, "+") + (WORSE if runs.is_worse(new, old) else "")


def _spread(values: pd.Series, digits: int, sign: str = "") -> str:
    """The mean and the standard deviation of three or more values; fewer are listed."""
    if len(values) < 3:
        return ", ".join(f"{value:{sign}.{digits}f}" for value in values) or MISSING
    return f"{values.mean():{sign}.{digits}f} ± {values.std():.{digits}f}"


def _number(value: float, digits: int) -> str:
    return MISSING if pd.isna(value) else f"{value:.{digits}f}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
