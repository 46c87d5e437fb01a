"""What records say: the metric at the best epoch, plain training at equal cost, differences paired by seed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.first_use.records import Record, metric_of
from benchmarks.first_use.setup import Metric
from benchmarks.first_use.variants import PLAIN

Judged = Literal["validation", "test"]
BySeed = dict[int, float]


def latest(records: Iterable[Record]) -> list[Record]:
    """The last record of each set-up, variant and seed; only those with the set-up's last configuration."""
    rows = list(records)
    configurations = {row["setup"]: row["configuration"] for row in rows}
    kept = {
        (row["setup"], row["variant"], row["seed"]): row
        for row in rows
        if row["configuration"] == configurations[row["setup"]]
    }
    return list(kept.values())


def at_best_epoch(record: Record, judged: Judged, epochs: int | None = None) -> float:
    """The metric at the epoch that is best on validation; of equal epochs the first.

    Args:
        record: A run.
        judged: The split whose value is returned.
        epochs: Only the first epochs count; None means all.
    """
    best = metric_of(record).best(record["epochs"]["validation"][:epochs])
    return float(record["epochs"][judged][best])


def epochs_for(passes: int, record: Record) -> int:
    """How many epochs a run had finished before it took more than this many passes; at least one."""
    taken: list[int] = record["epochs"]["passes"]
    return max(1, sum(count <= passes for count in taken))


@dataclass(frozen=True)
class Runs:
    """The runs of one set-up, of which `records` has no two with the same variant and seed."""

    records: Sequence[Record]

    @property
    def metric(self) -> Metric:
        return metric_of(self.records[0])

    @property
    def title(self) -> str:
        return str(self.records[0]["title"])

    def of(self, variant: str) -> dict[int, Record]:
        found = {record["seed"]: record for record in self.records if record["variant"] == variant}
        return dict(sorted(found.items()))

    def values(self, variant: str, judged: Judged) -> BySeed:
        """By seed, the metric of a run of E epochs: all epochs, of plain training the first half."""
        return {
            seed: at_best_epoch(record, judged, record["configuration"]["epochs"])
            for seed, record in self.of(variant).items()
        }

    def plain_at_cost_of(self, variant: str, judged: Judged) -> BySeed:
        """By seed, the metric of plain training with at most as many passes as the variant took."""
        plain = self.of(PLAIN)
        return {
            seed: at_best_epoch(plain[seed], judged, epochs_for(record["epochs"]["passes"][-1], plain[seed]))
            for seed, record in self.of(variant).items()
            if seed in plain
        }

    def passes(self, variant: str) -> float | None:
        """Passes for each pass of plain training in as many epochs, mean over the seeds; None without runs."""
        plain = self.of(PLAIN)
        ratios = []
        for seed, record in self.of(variant).items():
            if seed in plain:
                epochs = record["configuration"]["epochs"]
                ratios.append(record["epochs"]["passes"][epochs - 1] / plain[seed]["epochs"]["passes"][epochs - 1])
        return statistics.fmean(ratios) if ratios else None


def by_setup(records: Iterable[Record], seeds: Iterable[int], order: Iterable[str] = ()) -> dict[str, Runs]:
    """The latest runs with these seeds for each set-up, first the set-ups of `order`."""
    wanted = set(seeds)
    rows = [record for record in latest(records) if record["seed"] in wanted]
    present = {row["setup"] for row in rows}
    names = dict.fromkeys([name for name in order if name in present] + [row["setup"] for row in rows])
    return {name: Runs([row for row in rows if row["setup"] == name]) for name in names}


def differences(new: BySeed, old: BySeed) -> list[float]:
    """New minus old, paired by seed."""
    return [value - old[seed] for seed, value in new.items() if seed in old]


def is_worse(new: BySeed, old: BySeed, metric: Metric) -> bool | None:
    """Whether the mean is worse by more than one standard deviation of `old`; None with fewer than two paired seeds."""
    paired = [seed for seed in new if seed in old]
    if len(paired) < 2:
        return None
    before = [old[seed] for seed in paired]
    gain = metric.gain(statistics.fmean(new[seed] for seed in paired), statistics.fmean(before))
    return -gain > statistics.stdev(before)
