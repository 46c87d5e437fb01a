"""How far the paper's two substitutions are off, over training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gasam.lab import tasks
from gasam.lab.analyses.substitutions import Substitutions, epochs_of
from gasam.lab.paper.figures import FigureStudy, Finding, Setting, analysed, finding, rows_for
from gasam.lab.records import RunRecord
from gasam.lab.tasks import Origin
from gasam.lab.training import plan
from gasam.lab.training.plan import Plan


class OverTraining(FigureStudy):
    """Runs of 1, 2, 4, .. epochs: with a constant rate and one seed each is the beginning of the next.

    Their last weights (`average` 1), not those of the epoch that validation chose, which may be the same for all.
    """

    title = "The paper's two substitutions over training"
    tasks = ("imdb",)
    otherwise = ("docstrings",)
    methods = ("baseline",)

    def plans(self, size: str, names: Sequence[str], seeds: Sequence[int], origin: Origin) -> list[Plan]:
        return [
            plan.make(task, "baseline", size, seed, origin=origin, settings={"epochs": epochs, "average": 1})
            for task in names
            for seed in seeds
            for epochs in doubling(tasks.find(task).settings(size).epochs)
        ]

    def find(self, runs: Sequence[Path], found: Sequence[RunRecord], setting: Setting) -> Finding:
        analysis = Substitutions(rows=rows_for(setting.size, 1024, 256, 32))
        return finding(self.title, analysis, sorted(analysed(analysis, runs, setting), key=epochs_of))


def doubling(last: int) -> list[int]:
    """1, 2, 4, .. and the last."""
    powers = [2**power for power in range(last.bit_length()) if 2**power < last]
    return [*powers, last]
