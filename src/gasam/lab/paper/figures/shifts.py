"""Figures 1 and 2: the shift of the minimum on MNIST, or on the embedded digits where it is not at hand."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from gasam.lab.analyses.mixtures import Mixtures
from gasam.lab.analyses.shift import Shift, check_images
from gasam.lab.analyses.shifted_line import ShiftedLine
from gasam.lab.paper.figures import FigureStudy, Finding, Setting, analysed, finding, rows_for
from gasam.lab.records import RunRecord
from gasam.lab.tasks import Origin
from gasam.lab.training.plan import Plan


class ShiftStudy(FigureStudy):
    tasks = ("mnist",)
    otherwise = ("digits",)
    methods = ("baseline",)

    @abstractmethod
    def analysis(self, size: str) -> Shift: ...

    def plans(self, size: str, names: Sequence[str], seeds: Sequence[int], origin: Origin) -> list[Plan]:
        for task in names:
            check_images(task)
        return super().plans(size, names, seeds, origin)

    def find(self, runs: Sequence[Path], found: Sequence[RunRecord], setting: Setting) -> Finding:
        analysis = self.analysis(setting.size)
        return finding(self.title, analysis, analysed(analysis, runs, setting))


class Figure1(ShiftStudy):
    title = "Figure 1: training loss, test loss and shifted training loss"

    def analysis(self, size: str) -> Shift:
        return ShiftedLine(
            rows=rows_for(size, 10_000, 2000, 100), epochs=rows_for(size, 20, 5, 1), points=rows_for(size, 61, 31, 7)
        )


class Figure2(ShiftStudy):
    title = "Figure 2: the length of the shift against the share of shifted data"

    def analysis(self, size: str) -> Shift:
        return Mixtures(
            rows=rows_for(size, 10_000, 2000, 100),
            epochs=rows_for(size, 20, 5, 1),
            trials=rows_for(size, 100, 100, 5),
            controls=rows_for(size, 10, 5, 2),
        )
