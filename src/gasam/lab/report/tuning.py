"""Searches for a budget or an epsilon: a table, one sentence, and a picture of the metric against what was searched."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gasam.analysis.pictures import BASELINE, GA_SAM, OKABE_ITO, sheet
from gasam.lab.methods import METHODS
from gasam.lab.search.finding import Finding
from gasam.lab.search.strategy import Candidate, in_words
from gasam.lab.tables import Table, of_texts


def title(found: Finding) -> str:
    return METHODS[found.method].title + (", full grid" if found.full_grid else "")


def tuning_table(findings: Sequence[Finding]) -> Table:
    """Rows for each method of one task and size: what to use and what it took to find it."""
    parts = [part for found in findings for part in found.by_norm()]
    first = findings[0]
    error = f"; two scores on this split differ by chance by about {first.error:.2f} or less" if first.error else ""
    baseline = f"{first.metric.name} {first.baseline_score:.2f}"
    notes = [f"The baseline has {baseline} on validation with seed {first.seed}{error}."]
    if len(first.seeds) > 1:
        notes.append(f"Finalists and baseline have {len(first.seeds)} seeds: their means are shown.")
    notes += [sentence for found in findings for sentence in _guessing(found)]
    if len(parts) > len(findings):
        notes.append("The norm in the first row of a method is used, because it scored best on validation.")
    about = f"{first.task}, size {first.size}: {first.quantity}, chosen on validation"
    return of_texts(about, [_row(part) for part in parts], notes)


def _row(found: Finding) -> dict[str, str]:
    best = found.chosen()
    norm, size, valid, gain = "", "none", "", ""
    if best is not None:
        ours, plain = found.means(best)
        norm, size = str(best).split(maxsplit=1)
        valid, gain = f"{ours:.2f}", f"{ours - plain:+.2f}"
    return {
        "method": title(found),
        "norm": norm,
        found.quantity: size,
        "validation": valid,
        "vs baseline": gain,
        "tries": str(len(found.tries)),
        "given up": str(sum(one.valid is None for one in found.tries)),
        "gradient evaluations": f"{found.gradient_evaluations:,}",
    }


def _guessing(found: Finding) -> Iterator[str]:
    """Says which runs learned nothing."""
    level = f"{found.metric.name} {found.baseline.worthless:.2f}"
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
    measured = f"{found.metric.name} {ours:.2f} on validation, {ours - plain:+.2f} compared with the baseline"
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
        return f"that is {word} twice the standard error over {len(differences)} seeds ({error:.2f})"
    if gain <= found.error:
        return f"that is within the noise of the split ({found.error:.2f} or less): --seeds 3 repeats the finalists"
    return "it was chosen on this split, so expect less on test"


def tuning_figure(findings: Sequence[Finding]) -> Figure:
    """A panel for each search: what was tried, the baseline as a line, what collapsed as crosses beyond the rest: their
    height says nothing."""
    figure, panels = sheet(len(findings))
    for axes, found in zip(panels, findings, strict=True):
        _panel(axes, found)
    return figure


def _panel(axes: Axes, found: Finding) -> None:
    base = found.baseline_score
    ended = [(one.candidate, one.valid) for one in found.tries if one.valid is not None]
    spread = max([abs(valid - base) for _, valid in ended] + [abs(base) * found.tolerance])
    edge = base - 1.3 * spread if found.metric.higher_is_better else base + 1.3 * spread
    axes.axhline(base, color=BASELINE, lw=1.2, ls="--", label="baseline")
    norms = sorted({one.candidate.norm for one in found.tries}, reverse=True)
    for norm, colour in zip(norms, (GA_SAM, OKABE_ITO[0]), strict=False):
        some = sorted((each.value, valid) for each, valid in ended if each.norm == norm and each.cap is None)
        label = in_words(norm)
        axes.plot([x for x, _ in some], [y for _, y in some], color=colour, marker="o", ms=4, lw=1.6, label=label)
        lost = [one.candidate.value for one in found.tries if one.valid is None and one.norm == norm]
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
    axes.set_ylabel(f"{found.metric.name} on validation")
    axes.legend(fontsize=8)
