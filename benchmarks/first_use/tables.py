"""What the records say, as Markdown: the table of the guide, and the comparison that the default was chosen by."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import pandas as pd

from benchmarks.first_use.setups import SETUPS
from benchmarks.first_use.training import PLAIN, RECOMMENDED, SAM, VARIANTS, Metric, Record, Split

FINAL_SEEDS = (4, 5, 6)
SELECTION_SEEDS = (11, 12, 13)
MISSING = "-"
GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
START, STOP = "<!-- first use -->\n", "<!-- /first use -->"
HEADER = (
    "set-up", "metric", "plain training", "recommended minus plain", "`sam` minus plain",
    "recommended minus plain, equal cost", "passes",
)  # fmt: skip


def frame(records: Sequence[Record], seeds: Collection[int], split: Split) -> pd.DataFrame:
    """A row for each run, indexed by set-up, variant and seed.

    "value" is the metric at its best epoch on validation, "plain" that of plain training with the same seed in as many
    epochs, "equal cost" that of plain training with at most as many passes, and "passes" the ratio to plain training.
    """
    plain = {(each["setup"], each["seed"]): each["epochs"] for each in records if each["variant"] == PLAIN}
    rows = []
    for name in SETUPS:
        for record in (each for each in records if each["setup"] == name and each["seed"] in seeds):
            variant, seed, run = record["variant"], record["seed"], record["epochs"]
            epochs = len(run["validation"]) // (2 if variant == PLAIN else 1)
            row = {"setup": name, "variant": variant, "seed": seed, "value": best(name, run, split, epochs)}
            if base := plain.get((name, seed)):
                affordable = sum(passes <= run["passes"][-1] for passes in base["passes"])
                row["plain"] = best(name, base, split, epochs)
                row["equal cost"] = best(name, base, split, max(1, affordable))
                row["passes"] = run["passes"][epochs - 1] / base["passes"][epochs - 1]
            rows.append(row)
    return pd.DataFrame(rows).set_index(["setup", "variant", "seed"])


def best(setup: str, run: Record, split: Split, epochs: int) -> float:
    """The metric at the epoch that is best on validation, of the first `epochs`; of equal ones the first."""
    validation = run["validation"][:epochs]
    chosen = max(validation) if SETUPS[setup].metric.higher_is_better else min(validation)
    return float(run["validation" if split == "valid" else split][validation.index(chosen)])


def is_worse(new: pd.Series, old: pd.Series, metric: Metric) -> bool:
    """Whether `new` is worse by more than one standard deviation of `old`, with two paired seeds or more."""
    loss = (old - new).dropna() * (1 if metric.higher_is_better else -1)
    return len(loss) > 1 and bool(loss.mean() > old[loss.index].std())


def difference(new: pd.Series, old: pd.Series, metric: Metric) -> str:
    """New minus old, marked if it is clearly worse."""
    return spread(new - old, metric, "+") + (" **worse**" if is_worse(new, old, metric) else "")


def spread(values: pd.Series, metric: Metric, sign: str = "") -> str:
    """The mean and the standard deviation of three or more values; fewer are listed."""
    values = values.dropna()
    if len(values) < 3:
        return ", ".join(f"{value:{sign}.{metric.digits}f}" for value in values) or MISSING
    return f"{values.mean():{sign}.{metric.digits}f} ± {values.std():.{metric.digits}f}"


def table(records: Sequence[Record], seeds: Collection[int] = FINAL_SEEDS) -> str:
    """A row for each set-up, judged on the test split.

    With three or more seeds a cell is the mean and the standard deviation, with fewer it lists the seeds. Differences
    are paired by seed. "Equal cost" is plain training with as many passes as the recommended setting took. A mean that
    is worse than plain training by more than one standard deviation of plain training is marked.
    """
    rows = []
    for name, runs in frame(records, seeds, "test").groupby("setup", sort=False):
        setup = SETUPS[str(name)]
        plain, new, walk = (runs[runs.index.isin([each], "variant")] for each in (PLAIN, RECOMMENDED, SAM))
        pairs = ((new["value"], new["plain"]), (walk["value"], walk["plain"]), (new["value"], new["equal cost"]))
        differences = [difference(*pair, setup.metric) for pair in pairs]
        passes = _number(new["passes"].mean(), 2)
        rows.append([setup.title, setup.metric.name, spread(plain["value"], setup.metric), *differences, passes])
    return markdown(HEADER, rows)


def write_guide(records: Sequence[Record]) -> None:
    """Put the table into the guide, between its two marks."""
    before, rest = GUIDE.read_text(encoding="utf-8").split(START)
    GUIDE.write_text(f"{before}{START}\n{table(records)}\n{STOP}{rest.split(STOP)[1]}", encoding="utf-8")


def choose(records: Sequence[Record], seeds: Collection[int] = SELECTION_SEEDS) -> str:
    """The mean on the validation split of all variants after E epochs; then how often each is better or worse."""
    found = frame(records, seeds, "valid")
    variants = [variant for variant in VARIANTS if variant in found.index.unique("variant")]
    counts = ["better than plain", "worse than plain", "worse by more than one sd of plain"]
    rows, totals = [], pd.DataFrame(0.0, columns=variants, index=counts)
    for name, runs in found.groupby("setup", sort=False):
        metric, cells = SETUPS[str(name)].metric, []
        for variant in variants:
            some = runs[runs.index.isin([variant], "variant")]
            gain = (some["value"] - some["plain"]).mean() * (1 if metric.higher_is_better else -1)
            totals[variant] += [gain > 0, gain < 0, is_worse(some["value"], some["plain"], metric)]
            cells.append(_number(some["value"].mean(), metric.digits))
        rows.append([SETUPS[str(name)].title, metric.name, *cells])
    rows += [[count, "set-ups", *(f"{number:.0f}" for number in totals.loc[count])] for count in counts]
    passes = found["passes"].groupby("variant").mean()
    rows.append(["passes of plain", "", *(_number(passes[variant], 2) for variant in variants)])
    return markdown(["set-up", "metric", *variants], rows)


def _number(value: float, digits: int) -> str:
    return MISSING if pd.isna(value) else f"{value:.{digits}f}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
