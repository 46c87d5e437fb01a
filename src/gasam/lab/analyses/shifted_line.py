"""The training loss, moved by the shift, beside the test loss: the trial of the paper's Figure 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from gasam.lab.analyses import Found, Watch
from gasam.lab.analyses.shift import Shift, fine_tuned, on_the_cpu, whole
from gasam.lab.analyses.subjects import Subject
from gasam.lab.records import AnalysisRecord
from gasam.lab.tables import Table
from gasam.lab.training.checkpoints import Weights
from gasam.theory.risk import risks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class ShiftedLine(Shift):
    """Training loss, test loss and shifted training loss along the line through both minima."""

    points: int = 31

    kind = "shifted-line"

    def measure(self, subject: Subject, known: Found, keep: Callable[[Found], None], watch: Watch) -> Found:
        subject = on_the_cpu(subject)
        watch("fine-tuning on the test data")
        delta, _ = fine_tuned(subject, subject.family.data["test"], self.epochs, seed=0)
        sides = [list(whole(subject, split, len(subject.family.data[split][1]))) for split in ("train", "test")]
        watch("the line of fine-tuning")
        tuned = self._line(subject, subject.model, delta, *sides, ridge=0.0)
        watch("solving the regularised problem")
        model, here, there = self.problem(subject)
        found = self.solved(subject, model, there)
        if not found.stationary:
            raise ValueError(f"the regularised minimum on test data was not found: {found.sentence}")
        watch("the line of the regularised problem")
        solved = self._line(subject, model, found.offset, here, there, ridge=self.ridge)
        return {"fine-tuned": tuned, "regularised": solved}

    def _line(
        self, subject: Subject, model: nn.Module, delta: Weights, here: Any, there: Any, *, ridge: float
    ) -> dict[str, Any]:
        """At theta + alpha delta: L(w; D), L(w; D*) and L(w - delta; D) + constant."""
        alphas = [-1 + 3 * number / (self.points - 1) for number in range(self.points)]
        with risks(model, subject.objective, here, there, ridge=ridge) as (train, test):
            step = train.flat("delta", {name: delta[name] for name in train.names})

            def at(risk: Any, alpha: float) -> float:
                with risk.moved_by(alpha * step):
                    return float(risk.loss())

            constant = at(test, 1.0) - at(train, 0.0)
            lines = {
                "train": [at(train, alpha) for alpha in alphas],
                "test": [at(test, alpha) for alpha in alphas],
                "shifted": [at(train, alpha - 1) + constant for alpha in alphas],
            }
            lifted = at(test, 1.0) - at(train, 1.0)
        near = [i for i, alpha in enumerate(alphas) if 0.5 <= alpha <= 1.5]
        gaps = {
            "shifted": root_mean_square(lines["shifted"][i] - lines["test"][i] for i in near),
            "unshifted": root_mean_square(lines["train"][i] + lifted - lines["test"][i] for i in near),
        }
        return {"alphas": alphas, "constant": constant, "delta": float(step.norm()), "gaps": gaps} | lines

    def table(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Table:
        rows = [
            (label, name, f"{line['delta']:.4g}", *(f"{gap:.3g}" for gap in line["gaps"].values()))
            for each, label in zip(found, labels, strict=True)
            for name, line in each.found.items()
        ]
        note = (
            "Root mean square distances from the test loss within half a shift of its minimum, heights matched there."
        )
        columns = ("run", "protocol", "|delta|", "shifted training loss", "training loss, not shifted")
        return Table("The training loss beside the test loss", columns, tuple(rows), (note,))

    def draw(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Figure:
        from gasam.analysis.pictures import Line, draw_lines, sheet

        figure, axes = sheet(2 * len(found))
        names = {"train": "training loss", "test": "test loss", "shifted": "shifted training loss + constant"}
        shown = [(each.run, protocol, line) for each in found for protocol, line in each.found.items()]
        for panel, (run, protocol, line) in zip(axes, shown, strict=True):
            lines = [
                Line(words, line["alphas"], line[name], dashes="--" if name == "shifted" else "-")
                for name, words in names.items()
            ]
            title = f"{run.task}, seed {run.seed}: {protocol}"
            draw_lines(panel, lines, title=title, x="alpha (0 train, 1 test)", y="loss")
        return figure

    def sentence(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> str:
        return "; ".join(
            f"{each.run.task}, seed {each.run.seed}, {protocol}: near the test minimum the shifted "
            f"training loss is {line['gaps']['shifted']:.3g} from the test loss, the unshifted one "
            f"{line['gaps']['unshifted']:.3g}"
            for each in found
            for protocol, line in each.found.items()
        )


def root_mean_square(values: Iterator[float]) -> float:
    squares = [value**2 for value in values]
    return float((sum(squares) / len(squares)) ** 0.5)
