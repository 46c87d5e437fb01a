"""The table of a task and size: a row a configuration, beside its baseline and the paper, with what each costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gasam.lab import tasks
from gasam.lab.families import Metric
from gasam.lab.methods import METHODS
from gasam.lab.paper.studies import Expected
from gasam.lab.paper.verdicts import Verdict
from gasam.lab.records import RunRecord
from gasam.lab.report.collapse import collapsed, warnings
from gasam.lab.report.frame import Group, groups_of, shared_settings
from gasam.lab.report.labels import differing, in_words, label, named, radius
from gasam.lab.report.matching import paper_of
from gasam.lab.statistics import Standing, counted, number
from gasam.lab.tables import Cell, Column, Table, tabulated

TORN = 5
"""How many times the baseline's spread over seeds a row's may be before its scores are shown one by one."""
SAID: dict[Standing, str] = {"better": "better", "worse": "worse", "no difference": "no clear difference"}


@dataclass(frozen=True)
class Line:
    """A row of a table: a group of runs, or None for what was not run, and what the paper prints for it.

    `step_time` is how many times as long as the baseline's a step takes, where it was measured. In a table of the paper
    `lead` is the group of the paper's best row, and `speaks` marks the group that is judged for its row.
    """

    task: str
    method: str
    name: str
    differing: str
    group: Group | None
    paper: Expected | None
    step_time: float | None = None
    verdict: Verdict | None = None
    lead: Group | None = None
    speaks: bool = True


def result(group: Group) -> str:
    """Mean and standard deviation on the test split, over how many seeds, and how many runs diverged."""
    if group.summary is None:
        return f"diverged ({counted(len(group.lost), 'seed')})"
    late = f", {group.diverged_later} of them diverged later" if group.diverged_later else ""
    lost = f", {len(group.lost)} more diverged" if group.lost else ""
    return f"{group.summary} ({counted(len(group.scores), 'seed')}{late}{lost})"


def _test(group: Group) -> Cell:
    mean, std = (group.summary.mean, group.summary.std) if group.summary else (None, None)
    seeds = {str(seed): score for seed, score in group.scores.items()}
    value = {"mean": mean, "std": std, "seeds": seeds, "diverged": len(group.lost) + group.diverged_later}
    return Cell(result(group) + (", collapsed" if collapsed(group) else ""), value)


def _difference(group: Group) -> Cell:
    found = group.difference(group.baseline)
    return Cell(group.versus(group.baseline), found._asdict()) if found else Cell()


def _evaluations(group: Group) -> Cell:
    spent, relative = group.mean("gradient_evaluations"), group.relative_cost
    times = "" if relative is None else f" ({relative:.2f}x)"
    return Cell(f"{spent:,.0f}{times}", {"mean": spent, "relative": relative})


def _beats_both(group: Group) -> str:
    """Whether a method beats the baseline with as many epochs and the one that was as expensive."""
    if group.baseline is None or group.longer is None:
        return ""
    standings = {group.standing(group.baseline), group.standing(group.longer)}
    if "worse" in standings:
        return "no"
    return "yes" if standings == {"better"} else "undecided"


def _by_seed(group: Group) -> str:
    """Of two seeds, and where some learn and others do not, a mean and its interval say little."""
    found, plain = group.summary, group.baseline.summary if group.baseline else None
    if found is None or found.std is None:
        return ""
    torn = plain is not None and plain.std is not None and found.std > TORN * plain.std
    return ", ".join(map(number, group.scores.values())) if torn or found.seeds == 2 else ""


def _paper(line: Line) -> Cell:
    paper = line.paper
    return Cell(paper.text, {"mean": float(paper.mean), "std": float(paper.std)}) if paper else Cell()


def _paper_difference(line: Line) -> Cell:
    if line.paper is None or line.paper.difference is None:
        return Cell()
    slip = f" (printed {line.paper.slip})" if line.paper.slip else ""
    return Cell(f"{line.paper.difference:+}{slip}", float(line.paper.difference))


def _optional(found: float | None, form: str) -> Cell:
    return Cell() if found is None else Cell(form.format(found), found)


def of_runs(cell: Callable[[Group], Cell | str], missing: str = "") -> Callable[[Line], Cell | str]:
    return lambda line: missing if line.group is None else cell(line.group)


LABEL: Column[Line] = Column("", lambda line: Cell("", named(line.name, line.differing)), "label")
NAME: Column[Line] = Column("method", lambda line: Cell(line.name, line.method), "method")
SETTINGS: Column[Line] = Column("settings", lambda line: line.differing)
TEST = Column("test", of_runs(_test, "not run"), "test")
COLUMNS: tuple[Column[Line], ...] = (
    Column("vs baseline [95% interval]", of_runs(_difference), "difference"),
    Column("paper", _paper, "paper"),
    Column("paper's difference", _paper_difference, "paper_difference"),
    Column("gradient evaluations", of_runs(_evaluations), "gradient_evaluations"),
    Column("passes a step", of_runs(lambda group: _optional(group.passes, "{:.2f}")), "passes"),
    Column("step time", lambda line: _optional(line.step_time, "{:.2f}x"), "step_time"),
)
MORE_COLUMNS: tuple[Column[Line], ...] = (
    Column("vs baseline, equal gradient evaluations [95% interval]", of_runs(lambda group: group.versus(group.longer))),
    Column("better than both baselines", of_runs(_beats_both)),
    Column("vs fresh masks [95% interval]", of_runs(lambda group: group.versus(group.fresh))),
    Column("by seed", of_runs(_by_seed)),
)
"""What a table of the paper does not show."""


def comparison(
    records: Iterable[RunRecord],
    task: str,
    size: str,
    flags: str | None = None,
    step_times: Mapping[str, float] | None = None,
) -> Table:
    """Every configuration that was run on a task in a size, a row each, in the order of the methods.

    Args:
        records: Those of other tasks and sizes are left out.
        task: The task.
        size: The size, as records name it.
        flags: What `gasam tune` needs to use the same data and settings; None if it is not known.
        step_times: Those of `step_time.step_times`, by configuration.
    """
    groups = groups_of(records, task, size)
    lines = [
        Line(
            task,
            group.method,
            group.title,
            differing(group, group.other_walk()),
            group,
            paper_of(group) if group.usual else None,
            (step_times or {}).get(group.key),
        )
        for group in groups
    ]
    test = TEST._replace(title=described(tasks.find(task).family.metric))
    notes = [*_conclusion(groups), *warnings(groups, flags), *_radii(groups), *_champion(groups)]
    return tabulated(
        f"{task}, size {size}",
        [LABEL, NAME, SETTINGS, test, *COLUMNS, *MORE_COLUMNS],
        lines,
        [*notes, *remarks(task, size, groups)],
    )


def described(metric: Metric) -> str:
    unit = f", {metric.unit}" if metric.unit else ""
    return f"{metric.name}{unit} ({'higher' if metric.higher_is_better else 'lower'} is better)"


def contrast(name: str, lead: Group, others: Iterable[tuple[str, Group]]) -> str:
    """What the intervals of `lead` minus each of the others say.

    Groups with less than two common seeds are left out, and so are those in which a run diverged: the remaining seeds
    would be the lucky ones.
    """
    said: dict[Standing, list[str]] = {}
    for other, group in others:
        if standing := lead.standing(group):
            said.setdefault(standing, []).append(f"{other}: {lead.versus(group)}")
    told = [f"{word} ({', '.join(said[standing])})" for standing, word in SAID.items() if standing in said]
    return f"{name} minus each other method, paired by seed: {'; '.join(told)}." if told else ""


def remarks(task: str, size: str, groups: Sequence[Group]) -> Iterator[str]:
    """What differs from the paper in data and in numbers; the latter from what was run, not from what is planned."""
    definition = tasks.find(task)
    if definition.kind.startswith("twin"):
        yield f"{task} is a {definition.kind}, to try and to test with: it is no evidence."
    records = [record for group in groups for record in group.records]
    yield from (f"Data: {note}." for note in data_notes(groups))
    for copied in [record.remarks["bleu_of_copying"] for record in records if "bleu_of_copying" in record.remarks][:1]:
        yield f"The source itself, copied, has BLEU {copied:.2f}."
    if shared := shared_settings(groups):
        usual = definition.settings(size).recorded()
        yield f"All rows: {in_words(shared)}; size {size} has {in_words({name: usual[name] for name in shared})}."
    if groups and definition.kind == "paper":
        paper = definition.settings("paper").recorded()
        ours = next((group for group in groups if group.usual), groups[0]).settings
        if other := {name: value for name, value in ours.items() if name in paper and paper[name] != value}:
            yield f"These runs: {in_words(other)}; the paper has {in_words({name: paper[name] for name in other})}."


def data_notes(groups: Sequence[Group]) -> list[str]:
    """How the data differs from the paper's, each thing once."""
    every = [note for group in groups for record in group.records for note in record.data.notes]
    return [note.rstrip(".") for note in dict.fromkeys(every)]


def _conclusion(groups: Sequence[Group]) -> Iterator[str]:
    """One sentence: what the table shows of GA-SAM, or else of its first method."""
    walking = [group for group in groups if group.scores and group.method != "baseline"]
    for group in sorted(walking, key=lambda group: group.method != "ga-sam")[:1]:
        found = group.difference(group.baseline)
        if found is None:
            return
        if found.pairs == 1:
            yield "Conclusion: one seed shows that everything works, and nothing about the methods. Use --seeds 4."
            return
        standing = found.standing(group.metric.higher_is_better)
        told = f"no clear difference between {group.title} and the baseline"
        if standing != "no difference":
            told = f"{group.title} is {standing} than the baseline"
        yield f"Conclusion: {told}: {group.versus(group.baseline)} over {found.pairs} seeds."


def _radii(groups: Sequence[Group]) -> Iterator[str]:
    """How far each method walks, and who says so."""
    told: dict[str, dict[str, None]] = {}
    for group in groups:
        if group.method != "baseline":
            told.setdefault("; ".join(group.sources), {})[f"{group.title} {radius(group)}"] = None
    if told:
        walks = [f"{', '.join(walks)} ({source})" for source, walks in told.items()]
        yield f"Size of the walks: {'; '.join(walks)}."


def _champion(groups: Sequence[Group]) -> Iterator[str]:
    """GA-SAM beside every other method: of several groups of one method the usual one."""
    first: dict[str, Group] = {}
    for group in groups:
        if group.usual and group.method != "baseline":
            first.setdefault(group.method, group)
    if lead := first.pop("ga-sam", None):
        others = [(METHODS[method].title, group) for method, group in first.items()]
        yield from filter(None, [contrast(label(lead), lead, others)])
