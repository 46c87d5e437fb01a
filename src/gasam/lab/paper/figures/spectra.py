"""Figure 3: the 50 largest eigenvalues of baseline and GA-SAM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gasam.lab.analyses.spectrum import Spectrum
from gasam.lab.paper.figures import FigureStudy, Finding, Setting, analysed, finding, rows_for
from gasam.lab.records import RunRecord


class Figure3(FigureStudy):
    """By the empirical Fisher matrix, as the paper has it."""

    title = "Figure 3: largest eigenvalues of the empirical Fisher matrix"
    tasks = ("imdb", "ptb", "en-vi", "de-en")

    def find(self, runs: Sequence[Path], found: Sequence[RunRecord], setting: Setting) -> Finding:
        analysis = Spectrum(rows=rows_for(setting.size, 1024, 512, 64), k=rows_for(setting.size, 50, 50, 10))
        return finding(self.title, analysis, analysed(analysis, runs, setting))
