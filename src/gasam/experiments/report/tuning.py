"""Searches for a budget or an epsilon: a table, one sentence, and a picture of the metric against what was searched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gasam.analysis.pictures import BASELINE, GA_SAM, OKABE_ITO, sheet
from gasam.experiments.methods import METHODS
from gasam.experiments.report.tables import Table
from gasam.experiments.search.finding import Finding, candidate_of
from gasam.experiments.search.strategy import in_words
from gasam.experiments.tasks import find

COLUMNS = ("method", "norm", "{quantity}", "validation", "vs baseline", "tries", "given up", "gradient evaluations")


def title(found: Finding) -> str:
    return METHODS[found.method].title + (", full grid" if found.full_grid else "")


def tuning_table(findings: Sequence[Finding]) -> Table:
    """Rows for each method of one task and size: what to use and what it took to find it."""
    parts = [part for found in findings for part in found.by_norm()]
    first = findings[0]
    seeds = f"seed {first.seed}" if len(first.seeds) == 1 else f"the mean of {len(first.seeds)} seeds"
    error = f"; the standard error of a difference on this split is {first.error:.2f}" if first.error else ""
    notes = [f"The baseline has {first.metric.name} {first.mean(None):.2f} on validation ({seeds}){error}."]
    notes += [sentence for found in findings for sentence in guessing(found)]
    if len(parts) > len(findings):
        notes.append("Where both norms were searched the first one is used: the other is no better on validation.")
    quantity = first.quantity
    about = f"{first.task}, size {first.size}: {quantity}, chosen on validation"
    columns = tuple(column.format(quantity=quantity) for column in COLUMNS)
    return Table(about, columns, tuple(_row(part) for part in parts), tuple(notes))


def _row(found: Finding) -> tuple[str, ...]:
    best = found.chosen()
    shown = ("", "none", "", "")
    if best is not None:
        valid = found.mean(best)
        norm, value = str(best).split(maxsplit=1)
        shown = (norm, value, f"{valid:.2f}", f"{valid - found.mean(None):+.2f}")
    given_up = sum(one["valid"] is None for one in found.tries)
    return title(found), *shown, str(len(found.tries)), str(given_up), f"{found.gradient_evaluations:,}"


def guessing(found: Finding) -> Iterator[str]:
    """Says which runs learned nothing."""
    level = f"guessing level ({found.metric.name} {found.baseline['worthless']:.2f})"
    if found.at_guessing_level(found.baseline):
        yield f"The baseline stays at {level}: no walk can be judged by it. Train longer or change its settings."
    stuck = [str(candidate_of(one)) for one in found.tries if found.at_guessing_level(one)]
    if stuck:
        yield f"At {level} stay: {', '.join(stuck)}."


def conclusion(found: Finding) -> str:
    """What to do, in one sentence, and how far to trust it."""
    best = found.chosen()
    spent = f"{found.tried} with {found.gradient_evaluations:,} gradient evaluations"
    if best is None:
        return f"every {found.quantity} that was tried collapsed ({spent}): raise --trials, or give smaller --exponents"
    spent += "" if found.finished or found.full_grid else "; more --trials would try more"
    name = f"{found.method} on {found.task}"
    gain, plain = found.mean(best) - found.mean(None), found.mean(None)
    measured = f"{found.metric.name} {found.mean(best):.2f} on validation, {gain:+.2f} to the baseline's {plain:.2f}"
    cost = found.one(best)["gradient_evaluations"] / found.baseline["gradient_evaluations"]
    options = " ".join(f"--{option.replace('_', '-')} {value:g}" for option, value in found.options(best).items())
    if found.gains()[best] <= 0:
        best_is = f"plain training is cheaper; the best is {options}: {measured}"
        return f"{name}: no {found.quantity} is better than none, {best_is} ({spent})"
    if abs(gain) <= found.error:
        doubt = (
            f"within the noise of the split ({found.error:.2f}), so it may not help; --seeds 3 repeats the finalists"
        )
    else:
        doubt = "the best of several on the split that chose it, so expect less on test"
    return f"{name}: use {options}: {measured}, for {cost:.1f} times its gradient evaluations; {doubt} ({spent})"


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
        some = sorted((each.value, valid) for each, valid in ended if each.norm == norm and each.cap is None)
        label = in_words(norm)
        axes.plot([x for x, _ in some], [y for _, y in some], color=colour, marker="o", ms=4, lw=1.6, label=label)
        lost = [candidate_of(one).value for one in found.tries if one["valid"] is None and float(one["norm"]) == norm]
        if lost:
            text = f"{label}, given up (not to scale)"
            axes.plot(lost, [edge] * len(lost), color=colour, marker="x", ls="none", label=text)
    for each, valid in ended:
        if each.cap is not None:
            axes.plot(each.value, valid, color="black", marker="D", ms=5, ls="none", label=f"recommended: {each}")
    best = found.chosen()
    if best is not None:
        axes.axvline(best.value, color="black", lw=0.9, ls=":", label=f"chosen: {best}")
    axes.set_xscale("log")
    axes.set_title(f"{title(found)} on {found.task}, size {found.size}", fontsize=10)
    axes.set_xlabel(found.quantity)
    axes.set_ylabel(f"{metric.name} on validation")
    axes.legend(fontsize=8)
