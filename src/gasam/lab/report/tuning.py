"""Searches for a budget or an epsilon: a table, one sentence, and a picture of the metric against what was searched."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gasam.analysis.pictures import BASELINE, GA_SAM, OKABE_ITO, finish, in_sheets, sheet
from gasam.lab.methods import METHODS
from gasam.lab.output import Table
from gasam.lab.search.finding import Finding
from gasam.lab.search.strategy import Candidate, in_words
from gasam.lab.statistics import number


def title(found: Finding) -> str:
    return METHODS[found.method].title + (", full grid" if found.full_grid else "")


def tuning_table(findings: Sequence[Finding]) -> Table:
    """Rows for each method of one task and size: what to use and what it took to find it."""
    parts = [part for found in findings for part in found.by_norm()]
    first = findings[0]
    by = f"{number(first.error, first.metric.decimals)} {first.metric.unit_of_differences}"
    error = f"; a difference of two scores on this split has a standard error of at most {by}" if first.error else ""
    baseline = f"{first.metric.name} {first.metric.shown(first.baseline_score)}"
    notes = [f"The baseline has {baseline} on validation with seed {first.seed}{error}."]
    if len(first.seeds) > 1:
        notes.append(f"Finalists and baseline have {len(first.seeds)} seeds: their means are shown.")
    notes += [sentence for found in findings for sentence in _guessing(found)]
    if len(parts) > len(findings):
        notes.append("The norm in the first row of a method is used, because it scored best on validation.")
    about = f"{first.task}, size {first.size}: {first.quantity}, chosen on validation"
    return Table(about, [_row(part) for part in parts], notes)


def _row(found: Finding) -> dict[str, str]:
    best = found.chosen()
    norm, size, valid, gain = "", "none", "", ""
    if best is not None:
        ours, plain = found.means(best)
        norm, size = str(best).split(maxsplit=1)
        valid, gain = number(ours, found.metric.decimals), found.metric.difference(ours - plain)
    return {
        "method": title(found),
        "norm": norm,
        found.quantity: size,
        f"validation {found.metric.name}{f', {found.metric.unit}' if found.metric.unit else ''}": valid,
        f"vs baseline, {found.metric.unit_of_differences}": gain,
        "tries": str(len(found.tries)),
        "given up": str(sum(one.valid is None for one in found.tries)),
        "gradient evaluations": f"{found.gradient_evaluations:,}",
    }


def _guessing(found: Finding) -> Iterator[str]:
    """Says which runs learned nothing."""
    level = f"{found.metric.name} {found.metric.shown(found.baseline.worthless)}"
    if found.at_guessing_level(found.baseline):
        yield f"The baseline is no better than guessing ({level})."
    stuck = [str(one.candidate) for one in found.tries if found.at_guessing_level(one)]
    if stuck:
        yield f"No better than guessing ({level}): {', '.join(stuck)}."


def conclusion(found: Finding) -> str:
    """What to do, in one sentence, and how far to trust it."""
    best, name = found.chosen(), f"{found.method} on {found.task}"
    spent = f"({found.tried} with {found.gradient_evaluations:,} gradient evaluations)"
    if not found.finished and not found.full_grid:
        spent = f"{spent[:-1]}; more --trials would try more)"
    if found.at_guessing_level(found.baseline):
        return f"{name}: the baseline is no better than guessing, so no walk can be judged: train longer {spent}"
    if best is None:
        return f"{name}: every {found.quantity} that was tried collapsed: give smaller --exponents {spent}"
    if found.never_walked:
        return f"{name}: the walk never began, because the loss did not fall enough: train longer {spent}"
    ours, plain = found.means(best)
    options = " ".join(f"--{option.replace('_', '-')} {value:g}" for option, value in found.options(best).items())
    metric = found.metric
    gain = f"{metric.difference(ours - plain)} {metric.unit_of_differences}"
    measured = f"{metric.name} {metric.shown(ours)} on validation, {gain} compared with the baseline"
    if found.gains()[best] <= 0:
        return f"{name}: no {found.quantity} improved on plain training; the best was {options}: {measured} {spent}"
    cost = found.one(best).gradient_evaluations / found.baseline.gradient_evaluations
    return f"{name}: use {options}: {measured}, for {cost:.1f} times its gradients; {_trust(found, best)} {spent}"


def _trust(found: Finding, best: Candidate) -> str:
    """Whether the gain is larger than the noise: that of the seeds if there are several, else that of the split."""
    differences = [ours - plain for ours, plain in found.pairs(best) if ours is not None]
    gain = abs(sum(differences) / len(differences))
    if len(differences) > 1:
        error = stdev(differences) / math.sqrt(len(differences))
        word = "more than" if gain > 2 * error else "less than"
        spread = number(error, found.metric.decimals)
        return f"that is {word} twice the standard error over {len(differences)} seeds ({spread})"
    if gain <= found.error:
        noise = number(found.error, found.metric.decimals)
        return f"that is within the noise of the split ({noise} or less): --seeds 3 repeats the finalists"
    return "it was chosen on this split, so expect less on test"


def tuning_figures(findings: Sequence[Finding]) -> list[Figure]:
    """A panel for each search: what was tried, the baseline as a line, what collapsed as crosses beyond the rest: their
    height says nothing. Finalists that have several seeds have their standard deviation as error bars."""
    figures = []
    for some in in_sheets(len(findings)):
        figure, panels = sheet(len(findings[some]), height=4.2)
        for axes, found in zip(panels, findings[some], strict=True):
            _panel(axes, found)
        figures.append(figure)
    return figures


def _panel(axes: Axes, found: Finding) -> None:
    axes.set_xscale("log")  # first, because a single trial gives a linear axis no extent
    base = found.baseline_score
    ended = [(one.candidate, *_mean(found, one.candidate)) for one in found.tries if one.valid is not None]
    spread = max([abs(valid - base) for _, valid, _ in ended] + [abs(base) * found.tolerance])
    edge = base - 1.3 * spread if found.metric.higher_is_better else base + 1.3 * spread
    axes.axhline(base, color=BASELINE, lw=1.2, ls="--", label="baseline")
    norms = sorted({one.candidate.norm for one in found.tries}, reverse=True)
    for norm, colour in zip(norms, (GA_SAM, OKABE_ITO[0]), strict=False):
        some = sorted((each.value, valid, error) for each, valid, error in ended if each.norm == norm and not each.cap)
        label = in_words(norm)
        axes.plot([x for x, *_ in some], [y for _, y, _ in some], color=colour, marker="o", ms=4, lw=1.6, label=label)
        for x, y, error in some:
            if error is not None:
                axes.errorbar(x, y, yerr=error, color=colour, fmt="none", capsize=3, lw=1)
        lost = [one.candidate.value for one in found.tries if one.valid is None and one.norm == norm]
        if lost:
            text = f"{label}, given up (not to scale)"
            axes.plot(lost, [edge] * len(lost), color=colour, marker="x", ls="none", label=text)
    for each, valid, error in ended:
        if each.cap is not None:
            label = f"recommended: {each}"
            axes.errorbar(each.value, valid, yerr=error, color="black", fmt="D", ms=5, capsize=3, label=label)
    best = found.chosen()
    if best is not None:
        axes.axvline(best.value, color="black", lw=0.9, ls=":", label=f"chosen: {best}")
    unit = f", {found.metric.unit}" if found.metric.unit else ""
    about = f"{title(found)} on {found.task}, size {found.size}"
    finish(axes, about, found.quantity, f"{found.metric.name} on validation{unit}")
    # Below the plot, because a legend inside would hide trials.
    axes.legend(fontsize="small", frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _mean(found: Finding, candidate: Candidate) -> tuple[float, float | None]:
    """The mean score over the candidate's seeds, and their standard deviation if there are several."""
    scores = [ours for ours, _ in found.pairs(candidate) if ours is not None]
    return fmean(scores), stdev(scores) if len(scores) > 1 else None
