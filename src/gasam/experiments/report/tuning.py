"""Searches for epsilon: a table of what was found, and the picture of metric against radius."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gasam.analysis.pictures import BASELINE, GA_SAM, OKABE_ITO, sheet
from gasam.experiments.methods import METHODS
from gasam.experiments.report.tables import Table
from gasam.experiments.search.finding import Finding, candidate_of
from gasam.experiments.search.strategy import Candidate
from gasam.experiments.tasks import find

COLUMNS = ("method", "norm", "epsilon", "validation", "vs baseline", "tries", "given up", "gradient evaluations")


def title(found: Finding) -> str:
    return METHODS[found.method].title + (", full grid" if found.full_grid else "")


def tuning_table(findings: Sequence[Finding]) -> Table:
    """Rows for each method of one task and size: what to use and what it took to find it."""
    parts = [part for found in findings for part in found.by_norm()]
    first = findings[0]
    notes = [
        f"The baseline has {first.metric.name} {first.baseline['valid']:.2f} on validation with seed {first.seed}."
    ]
    if len(parts) > len(findings):
        notes.append("Where both norms were searched the first one is used: the other is no better on validation.")
    about = f"{first.task}, size {first.size}: epsilon, chosen on validation"
    return Table(about, COLUMNS, tuple(_row(part) for part in parts), tuple(notes))


def _row(found: Finding) -> tuple[str, ...]:
    best = found.chosen()
    shown = ("", "none", "", "")
    if best is not None:
        valid = found.one(best)["valid"]
        norm, epsilon = str(best).split()
        shown = (norm, epsilon, f"{valid:.2f}", f"{valid - found.baseline['valid']:+.2f}")
    given_up = sum(one["valid"] is None for one in found.tries)
    return title(found), *shown, str(len(found.tries)), str(given_up), f"{found.gradient_evaluations:,}"


def tuning_figure(findings: Sequence[Finding]) -> Figure:
    """A panel for each search: what was tried, the baseline as a line, what collapsed as crosses beyond the rest: their
    height says nothing."""
    figure, panels = sheet(len(findings))
    for axes, found in zip(panels, findings, strict=True):
        _panel(axes, found)
    return figure


def _panel(axes: Axes, found: Finding) -> None:
    metric = find(found.task).family.metric
    base = found.baseline["valid"]
    ended = [(candidate_of(one), one["valid"]) for one in found.tries if one["valid"] is not None]
    spread = max([abs(valid - base) for _, valid in ended] + [abs(base) * found.tolerance])
    edge = base - 1.3 * spread if metric.higher_is_better else base + 1.3 * spread
    axes.axhline(base, color=BASELINE, lw=1.2, ls="--", label="baseline")
    norms = sorted({candidate_of(one).norm for one in found.tries}, reverse=True)
    for norm, colour in zip(norms, (GA_SAM, OKABE_ITO[0]), strict=False):
        some = sorted((each.epsilon, valid) for each, valid in ended if each.norm == norm)
        label = str(Candidate(norm, 0)).split()[0]
        axes.plot([x for x, _ in some], [y for _, y in some], color=colour, marker="o", ms=4, lw=1.6, label=label)
        lost = [candidate_of(one).epsilon for one in found.tries if one["valid"] is None and float(one["norm"]) == norm]
        if lost:
            text = f"{label}, given up (not to scale)"
            axes.plot(lost, [edge] * len(lost), color=colour, marker="x", ls="none", label=text)
    best = found.chosen()
    if best is not None:
        axes.axvline(best.epsilon, color="black", lw=0.9, ls=":", label=f"chosen: {best}")
    axes.set_xscale("log")
    axes.set_title(f"{title(found)} on {found.task}, size {found.size}", fontsize=10)
    axes.set_xlabel("epsilon")
    axes.set_ylabel(f"{metric.name} on validation")
    axes.legend(fontsize=8)
