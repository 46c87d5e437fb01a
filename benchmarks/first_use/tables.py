"""What the records say, as Markdown tables for the guide."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import pandas as pd

from benchmarks.first_use.setups import SETUPS
from benchmarks.first_use.training import AVERAGE, PLAIN, PRECISIONS, VARIANTS, Metric, Record, Setup, Split

FINAL_SEEDS = (21, 22, 23)
MISSING = "-"
GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
COSTS = {"1 pass": 1.0, "1.1 passes": 1.1, "1.25 passes": 1.25, "2 passes": 2.0, "rounding": 1.0}
"""Passes of the recommended settings. Plain training of equal cost has as many epochs more, rounded down."""
LONGER = "plain, 2 passes"
MEMORY = {"1 pass": "one pass, random offsets", "rounding": "one pass, random offsets"}
"""The case of benchmarks/memory.py, for settings other than "K = 1"."""
MEASURED = Path(__file__).parents[1] / "results.json"
README, PERFORMANCE = (Path(__file__).parents[2] / name for name in ("README.md", "docs/performance.md"))
CLEAN = (LONGER, *(variant for variant in VARIANTS if variant != PLAIN), AVERAGE)
ROUNDED = (LONGER, "2 passes", "1 pass", "rounding")


def frame(records: Sequence[Record], seeds: Collection[int], split: Split = "test") -> pd.DataFrame:
    """A row for each run, indexed by set-up, variant and seed, with the score of each precision.

    The epoch is the one that is best on validation at full precision; in a variant that walks late, of the epochs that
    end with walks. Plain training has a row for each of COSTS.
    """
    rows = []
    for record in (each for each in records if each["seed"] in seeds and each["setup"] in SETUPS):
        name, variant, run, setting = record["setup"], record["variant"], record["epochs"], VARIANTS[record["variant"]]
        epochs = len(run["validation"])
        chosen = [(variant, run, range(int(epochs * (setting[1].start if setting else 0)), epochs))]
        if variant == PLAIN:
            half = epochs // 2
            chosen = [(f"plain, {label}", run, range(int(half * cost))) for label, cost in COSTS.items()]
            chosen += [(PLAIN, run, range(half)), (AVERAGE, record["averaged"], range(half))]
        for label, history, allowed in chosen:
            best_of = max if SETUPS[name].metric.higher_is_better else min
            best = best_of(allowed, key=history["validation"].__getitem__)
            prefix = "validation" if split == "valid" else split
            scores = {suffix: history[f"{prefix}{suffix}"][best] for suffix in PRECISIONS}
            rows.append({"setup": name, "variant": label, "seed": record["seed"], **scores})
    return pd.DataFrame(rows).set_index(["setup", "variant", "seed"]).sort_index()


def score(found: pd.DataFrame, name: str, variant: str, suffix: str = "") -> pd.Series:
    """The scores by seed."""
    known = (name, variant) in found.index.droplevel("seed")
    return found.loc[name, variant][suffix] if known else pd.Series(dtype=float)


def verdict(new: pd.Series, old: pd.Series, metric: Metric) -> str:
    """ "better" or "worse" if the means, paired by seed, differ by more than one standard deviation of `old`."""
    gain = (new - old).dropna() * (1 if metric.higher_is_better else -1)
    if len(gain) < 3 or abs(gain.mean()) <= old[gain.index].std():
        return ""
    return "better" if gain.mean() > 0 else "worse"


def difference(new: pd.Series, old: pd.Series, metric: Metric) -> str:
    return f"{spread(new - old, metric, '+')} {verdict(new, old, metric)}".strip()


def spread(values: pd.Series, metric: Metric, sign: str = "") -> str:
    """The mean and the standard deviation of three or more values; fewer are listed."""
    values = values.dropna()
    if len(values) < 3:
        return ", ".join(f"{value:{sign}.{metric.digits}f}" for value in values) or MISSING
    return f"{values.mean():{sign}.{metric.digits}f} ± {values.std():.{metric.digits}f}"


def clean_table(found: pd.DataFrame) -> str:
    """Plain training, and the difference of every variant to it; the last row counts set-ups."""
    rows, counts = [], {variant: [0, 0] for variant in CLEAN}
    for name, setup in run_of(found):
        plain, cells = score(found, name, PLAIN), []
        for variant in CLEAN:
            new = score(found, name, variant)
            cells.append(difference(new, plain, setup.metric))
            for i, word in enumerate(("better", "worse")):
                counts[variant][i] += verdict(new, plain, setup.metric) == word
        rows.append([setup.title, spread(plain, setup.metric), *cells])
    rows.append(["better, worse", "", *(f"{better}, {worse}" for better, worse in counts.values())])
    return markdown(["set-up", PLAIN, *CLEAN], rows)


def rounded_table(found: pd.DataFrame) -> str:
    """Weights rounded to 3 bits, as differences to plain training rounded alike; the last rows count set-ups."""
    rows, counts = [], []
    for suffix in (each for each in PRECISIONS if each):
        words = []
        for name, setup in run_of(found):
            plain = score(found, name, PLAIN, suffix)
            new = [score(found, name, each, suffix) for each in ROUNDED]
            words.append([verdict(each, plain, setup.metric) for each in new])
            lost = spread(plain - score(found, name, PLAIN), setup.metric, "+")
            cells = [difference(each, plain, setup.metric) for each in new]
            rows += [[setup.title, spread(plain, setup.metric), lost, *cells]] if suffix == " 3 bits" else []
        total = [f"{each.count('better')}, {each.count('worse')}" for each in zip(*words, strict=True)]
        counts.append([f"better, worse with{suffix}", "", "", *total])
    return markdown(["rounded to 3 bits", PLAIN, "lost by rounding", *ROUNDED], [*rows, *counts])


def run_of(found: pd.DataFrame) -> list[tuple[str, Setup]]:
    """The set-ups that were run."""
    return [(name, setup) for name, setup in SETUPS.items() if name in found.index.unique("setup")]


def options_table(found: pd.DataFrame) -> str:
    """What each recommended setting costs and keeps: counts of set-ups, and means of the gain over all of them.

    The gain is in standard deviations of plain training. Step times are ranges over the paper's models.
    """
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    steps = [model["steps"] for model in measured["overhead"]["measured"].values()]
    rows = []
    for variant, cost in COSTS.items():
        timed = {"1 pass": "1 pass, random", "rounding": "1 pass, random", "1.1 passes": ""}.get(variant, variant)
        times = [step[timed] for step in steps if timed]
        memory = measured["memory"]["measured"].get(MEMORY.get(variant, "K = 1"))
        cells = [f"{cost:g}", f"{min(times):.2f} to {max(times):.2f}" if times else MISSING]
        cells.append(MISSING if memory is None else f"{memory:.1f}")
        for plain in (PLAIN, f"plain, {variant}"):
            words, gains = [], []
            for name, setup in run_of(found):
                new, old = score(found, name, variant), score(found, name, plain)
                words.append(verdict(new, old, setup.metric))
                sign = 1 if setup.metric.higher_is_better else -1
                gains.append(sign * (new - old).mean() / score(found, name, PLAIN).std())
            mean = pd.Series(gains).dropna().mean()
            cells += [f"{words.count('better')}, {words.count('worse')}", f"{mean:+.2f}"]
        given = '"rounding"' if variant == "rounding" else f"passes={cost:g}"
        rows.append([f"`recommended({given})`", *cells])
    header = [
        "setting",
        "passes",
        "step time",
        "memory",
        "better, worse",
        "gain",
        "at equal cost",
        "gain at equal cost",
    ]
    return markdown(header, rows)


def text(records: Sequence[Record], seeds: Collection[int], split: Split) -> str:
    found = frame(records, seeds, split)
    return f"{clean_table(found)}\n{rounded_table(found)}"


def pages(records: Sequence[Record]) -> dict[Path, str]:
    """The guide, the README and the page of performance with the tables between their marks."""
    found = frame(records, FINAL_SEEDS)
    options = options_table(found)
    tables = {GUIDE: {"options": options, "first use": clean_table(found)}, README: {"options": options}}
    tables[PERFORMANCE] = {"rounded": rounded_table(found)}
    written = {}
    for page, made in tables.items():
        written[page] = page.read_text(encoding="utf-8")
        for mark, table in made.items():
            before, rest = written[page].split(f"<!-- {mark} -->")
            end = f"<!-- /{mark} -->"
            written[page] = f"{before}<!-- {mark} -->\n\n{table}\n{end}{rest.split(end)[1]}"
    return written


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
