"""The part of the results page that is about choosing epsilon: made from `results/tuning`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gasam.lab.methods import METHODS
from gasam.lab.records import RunRecord
from gasam.lab.report.groups import as_recorded, data_hash
from gasam.lab.report.origins import commit
from gasam.lab.report.regret import Regret, regret
from gasam.lab.report.statistics import Summary, summary
from gasam.lab.report.tuning import tuning_figure, tuning_table
from gasam.lab.search.finding import Finding
from gasam.lab.search.question import CAP, EXPONENTS, SEED, TOLERANCE
from gasam.lab.tables import markdown
from gasam.lab.tasks import asked_size, find

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT = 4
"""A budget that two cores can afford for every method of a table."""
MANNER = (
    "The order of magnitude by bisection on the exponent, then the grid {1, 2, 5, 8} within it, until the budget ends; "
    "with one seed that no result is taken with, on validation alone; hopeless tries are given up early. `given up` "
    "counts those and the ones that diverged. Gains are the best of so many tries on the split that chose them, too "
    "high by construction: see the test results. Where every radius of a grid was tried to its end, the search is "
    "replayed on it: its regret is what its choice loses to the grid's best on validation, its cost includes the "
    "baseline's run."
)


def sections(
    findings: Sequence[Finding], records: Sequence[RunRecord], remarked: Mapping[str, str] | None = None
) -> Iterator[str]:
    """By task and size: a table, a picture, the regret of the search where a full grid was measured, a remark."""
    if not findings:
        return
    yield "## The size of the walk, chosen on validation"
    yield MANNER
    for name, some in _sheets(findings).items():
        first = some[0]
        yield f"### Size of the walk on {first.task}, size {first.size}"
        if find(first.task).kind != "paper":
            yield f"{first.task} is here to measure the search: it is no evidence for the paper's claims."
        yield markdown(tuning_table(some))
        yield f"![validation against the size of the walk on {first.task}](figures/{name}.svg)"
        if judged := [sentence for found in some if (sentence := regret_sentence(found, records))]:
            yield "\n".join(f"- {sentence}" for sentence in judged)
        if remark := (remarked or {}).get(first.task):
            yield remark
        commits = ", ".join(
            dict.fromkeys(commit(one.commit, one.dirty) for found in some for one in (found.baseline, *found.tries))
        )
        yield f"From {commits}. Again: {', '.join(f'`{again(found)}`' for found in some)}."


def again(found: Finding) -> str:
    """The command that searches as this search did."""
    norms = dict.fromkeys(f"{one.norm:g}" for one in found.tries)
    size = asked_size(found.task, found.size)
    words = [f"gasam tune {found.task} --method {found.method} --size {size} --norms {','.join(norms)}"]
    words += [f"--quantity {found.quantity}", "--full-grid" if found.full_grid else f"--trials {len(found.tries)}"]
    usual_exponents = EXPONENTS[found.quantity]
    words += [f"--exponents={found.exponents[0]},{found.exponents[1]}"] if found.exponents != usual_exponents else []
    words += [f"--seeds {len(found.seeds)}"] if found.repeats else []
    cap = (found.walk or {}).get("cap", CAP)
    words += [f"--cap {cap:g}"] if cap != CAP else []
    words += [f"--tolerance {found.tolerance:g}"] if found.tolerance != TOLERANCE else []
    words += [f"--seed {found.seed}"] if found.seed != SEED else []
    usual = as_recorded(find(found.task).settings(found.size))
    other = {name: value for name, value in found.settings.items() if usual.get(name) != value}
    words += [f"--set {name}={json.dumps(value, separators=(',', ':'))}" for name, value in other.items()]
    return " ".join(words)


def pictures(findings: Sequence[Finding]) -> Iterator[tuple[str, Figure]]:
    return ((name, tuning_figure(some)) for name, some in _sheets(findings).items())


def regret_sentence(finding: Finding, records: Sequence[RunRecord]) -> str:
    """Of the whole search and of one cut short; nothing where no full grid was measured."""
    whole, short = regret(finding), regret(finding, SHORT)
    if whole is None or short is None:
        return ""
    best = f"{whole.best} with {finding.metric.name} {finding.one(whole.best).valid:.2f}"
    parts = [f"{METHODS[finding.method].title}, replayed on {_extent(finding, whole)}, whose best is {best}."]
    for name, found in (("The search", whole), (f"With a budget of {SHORT}, it", short)):
        chosen = "no radius" if found.chosen is None else str(found.chosen)
        parts.append(
            f"{name} tries {found.tries}, gives {found.given_up} up and takes {chosen}: regret {found.lost:.2f}, "
            f"{_beside(found.lost, finding, records)}, for {found.share:.0%} of the grid's gradient evaluations."
        )
    return " ".join(parts)


def _extent(finding: Finding, found: Regret) -> str:
    low, high = finding.exponents
    return f"the full grid of {found.grid} radii from 1e{low} to 8e{high}, to which it keeps"


def baseline_spread(finding: Finding, records: Sequence[RunRecord]) -> Summary | None:
    """Of the baseline's validation over seeds, with the settings and data of the search."""
    by_seed = {
        record.seed: record.valid
        for record in records
        if (record.task, record.size, record.method) == (finding.task, finding.size, "baseline")
        and record.settings == finding.settings
        and data_hash(record) == finding.data
        and record.valid is not None
    }
    return summary(by_seed.values())


def _beside(lost: float, finding: Finding, records: Sequence[RunRecord]) -> str:
    spread = baseline_spread(finding, records)
    if spread is None or spread.std is None:
        return "with no two seeds of the baseline to compare it with"
    word = "at most" if lost <= spread.std else "more than"
    return f"{word} one standard deviation of the baseline over {spread.seeds} seeds ({spread.std:.2f})"


def _sheets(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Findings of one task, size, seed, data and settings under the name of their picture, in the order of methods."""
    alike: dict[str, list[Finding]] = {}
    order = list(METHODS)
    for found in sorted(
        findings, key=lambda found: (found.task, found.size, order.index(found.method), found.full_grid)
    ):
        key = json.dumps(
            [found.task, found.size, found.seed, found.quantity, found.data, found.settings], sort_keys=True
        )
        alike.setdefault(key, []).append(found)
    sheets: dict[str, list[Finding]] = {}
    for some in alike.values():
        name = f"tuning-{some[0].task}-{some[0].size}"
        number = sum(other == name or other.startswith(f"{name}-") for other in sheets) + 1
        sheets[name if number == 1 else f"{name}-{number}"] = some
    return sheets
