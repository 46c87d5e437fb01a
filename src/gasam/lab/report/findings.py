"""The sentences that each page of results begins with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gasam.lab.paper import studies
from gasam.lab.paper.verdicts import FIGURE_CLAIMS, WORDS, judge_figure
from gasam.lab.report.ablation_questions import Part, ablation_parts, without_ablations
from gasam.lab.report.contents import Contents
from gasam.lab.report.corrected import corrected_standings
from gasam.lab.report.does_it_help import UNCONFIRMED, by_opponent, effects, opponent_at_equal_cost
from gasam.lab.report.family_sections import family_groups
from gasam.lab.report.flatness import ADDITION, flatness_tables
from gasam.lab.report.group import Group
from gasam.lab.report.judgement import collapsed, test_error
from gasam.lab.report.labels import label
from gasam.lab.report.newest_table1 import newest_table1_findings
from gasam.lab.report.notes import conclusion, leads
from gasam.lab.report.one_setting import all_regrets, conclusions
from gasam.lab.report.paper_tables import tally
from gasam.lab.report.regret import regret
from gasam.lab.report.versions import replaced_versions
from gasam.lab.statistics import FEW, counted, number
from gasam.lab.tables import Table
from gasam.lab.tasks import SIZE_NAMES, TASKS


def of_task(contents: Contents, task: str) -> Iterator[str]:
    """GA-SAM and the baseline in each size that is not replaced, and what the intervals leave out."""
    older = replaced_versions(contents, task)
    sizes = [size for size in TASKS[task].sizes if size not in older]
    for size in sizes:
        yield from _of_size(contents, task, size, f"Size {size}")
    plain = [group for size in sizes for group in contents.groups(task, size) if group.method == "baseline"]
    for group, one in [(group, error) for group in plain if (error := test_error(group)) is not None][:1]:
        yield (
            f"Intervals cover seeds only. The choice of the test examples adds a standard error of {one:.2f} to one "
            f"score of plain training (size {group.size}). More seeds do not reduce it. A difference has at most "
            f"{math.sqrt(2) * one:.2f}; how much less was not measured. It is smaller the more the two models agree."
        )


def of_earlier(contents: Contents) -> Iterator[str]:
    """What the replaced versions of each task showed, and what they showed about the parts of GA-SAM."""
    for task in TASKS:
        for size in (size for size in TASKS[task].sizes if size in replaced_versions(contents, task)):
            yield from _of_size(contents, task, size, f"{task}, size {size}")
    yield from (_of_part(part) for part in ablation_parts(contents) if _is_replaced(contents, part))


def _of_size(contents: Contents, task: str, size: str, name: str) -> Iterator[str]:
    """Sentences about one size, which begin with its name."""
    groups = without_ablations(contents.groups(task, size))
    yield from (f"{name}: {sentence}" for sentence in conclusion(groups))
    lead = next((group for group in leads(groups) if group.baseline), None)
    if lead is not None and effects(groups)[lead.key].equal_epochs.endswith(UNCONFIRMED):
        yield f"{name}: the correction for the number of walks does not confirm this difference at equal epochs."
    if any(group.longer_is_the_same for group in groups):
        same = "with twice the epochs validation selects the same epoch"
        yield f"{name}: {same}, so longer plain training ends with the same model."
    yield from (f"{name}, {sentence}" for sentence in _verdicts(groups))


def _verdicts(groups: Sequence[Group]) -> Iterator[str]:
    """The walks that are better and those that are worse than plain training, at equal epochs and at equal cost."""
    walking = [group for group in groups if group.method != "baseline" and group.usual]
    opponents = {
        "equal epochs": by_opponent((group, group.baseline) for group in walking),
        "equal gradient evaluations": by_opponent((group, opponent_at_equal_cost(group)) for group in walking),
    }
    for budget, found in opponents.items():
        for opponent, some in found:
            plain = label(opponent).replace("Baseline", "plain training")
            judged, told = _clear_cases(some, opponent, plain, label)
            if len(judged) > 1:
                yield f"at {budget}, corrected for {len(judged)} walks: {told}."


def _clear_cases(
    groups: Sequence[Group], control: Group | None, opponent: str, name_of: Callable[[Group], str]
) -> tuple[list[Group], str]:
    """The groups that were compared with the control, and a sentence: which are better, worse, or can't be judged."""
    standings = corrected_standings(groups, control) if control else {}
    judged = [group for group in groups if group.key in standings]
    failed = [group for group in groups if collapsed(group)]
    others = [group for group in groups if group not in judged and group not in failed and len(group.runs) >= FEW]
    named_groups = {
        f"better than {opponent}": [group for group in judged if standings[group.key] == "better"],
        f"worse than {opponent}": [group for group in judged if standings[group.key] == "worse"],
        "collapsed": failed,
        "left out, because seeds diverged": [group for group in others if group.lost],
        "left out, because the scores vary far more than those of the others": [
            group for group in others if judged and not group.lost
        ],
    }
    told = [f"{words}: {', '.join(map(name_of, some))}" for words, some in named_groups.items() if some]
    if judged and set(standings.values()) == {"no difference"}:
        told.insert(0, f"none is clearly better or worse than {opponent}")
    if control is not None and (control.lost or collapsed(control)):
        told.append(f"{opponent} itself {'diverged with some seeds' if control.lost else 'collapsed'}")
    return judged, "; ".join(told) or "nothing is decided"


def of_family(contents: Contents) -> Iterator[str]:
    """The methods that are clearly better or worse than plain training on each task."""
    for (task, size), groups in family_groups(contents.records).items():
        walking = [group for group in groups if group.method != "baseline"]
        for plain, some in by_opponent((group, group.baseline) for group in walking):
            judged, told = _clear_cases(some, plain, "plain training", lambda group: group.title)
            seeds = min((len(group.scores) for group in judged), default=0)
            told_of = f"{counted(seeds, 'seed')}, corrected for {counted(len(judged), 'method')}: " if judged else ""
            yield f"{task}, size {size}, {told_of}{told}."


def of_ablations(contents: Contents) -> Iterator[str]:
    """What each question found in the sizes that are not replaced."""
    yield from (_of_part(part) for part in ablation_parts(contents) if not _is_replaced(contents, part))


def _of_part(part: Part) -> str:
    """The rows that are clearly better or worse than GA-SAM, and those that collapsed."""
    judged, verdict = _clear_cases(part.others, part.lead, "GA-SAM", part.full_name_of)
    enough = f"{len(judged)} of {counted(len(part.others), 'row')} judged"
    return f"{part.task}, size {part.size}, {part.question}: {enough}; {verdict}."


def _is_replaced(contents: Contents, part: Part) -> bool:
    return part.size in replaced_versions(contents, part.task)


def is_ablated(contents: Contents, task: str) -> bool:
    """Whether the page of ablations has rows of a task."""
    return any(part.task == task and not _is_replaced(contents, part) for part in ablation_parts(contents))


def of_searches(contents: Contents) -> Iterator[str]:
    yield from conclusions(all_regrets(contents))
    for settings in contents.settings:
        best, own = settings.chosen(), settings.mean(settings.own)
        if best is not None and own is not None:
            gain = number(abs((settings.mean(best) or 0.0) - own), settings.metric.decimals)
            what = "settings and the walk" if settings.joint else "settings"
            yield (
                f"{settings.task}, size {settings.size}: a search of {len(settings.trials)} trials for the {what} of "
                f"{settings.method} improved validation, on which it chose, by {gain} "
                f"{settings.metric.unit_of_differences}, over {len(settings.scores(best))} seeds."
            )
    for finding in contents.findings:
        if found := regret(finding):
            yield (
                f"{finding.task}: the search spends {found.share:.0%} of the gradient evaluations of the full grid "
                f"({found.grid} radii), and its choice loses {found.lost:.2f} to the best of the grid."
            )


def of_flatness(contents: Contents) -> Iterator[str]:
    """How many measures have which verdict, and each that decides something."""
    rows = [
        (place, dict(zip(table.columns, row, strict=True)))
        for place, table in flatness_tables(contents.analyses).items()
        for row in table.rows
    ]
    counts = Counter(row["verdict"] for _, row in rows if row["verdict"] != ADDITION)
    if counts:
        yield f"The paper claims that GA-SAM finds flatter minima (Table 4, Figure 3). Measures: {_counted(counts)}."
    for place, row in rows:
        if row["reason"] in ("flatter", "sharper"):
            yield f"{place}: {row['measure']}: GA-SAM is {row['reason']} ({row['verdict']})."


def of_paper(contents: Contents) -> Iterator[str]:
    yield from newest_table1_findings(contents)
    for size, table in tallies(contents).items():
        counts = Counter[str]({word: sum(int(row[2 + i]) for row in table.rows) for i, word in enumerate(WORDS)})
        tasks = dict.fromkeys(row[1] for row in table.rows if row[2 + WORDS.index("reproduced")] != "0")
        where = f" (all on {', '.join(tasks)})" if tasks else ""
        yield (
            f"Cells of the paper's tables at size {size}, without the baselines: {_counted(counts, where)}. "
            "A run that belongs to several tables counts in each."
        )
    for name, found in contents.figures.items():
        study = name.rpartition("-")[0]
        if verdict := judge_figure(study, found.get("norms", {})):
            yield f"{found['title'].partition(':')[0]} ({FIGURE_CLAIMS[study]}): {verdict}."


def tallies(contents: Contents) -> dict[str, Table]:
    """The verdicts on each table and task, by size."""
    sizes = {record.size for record in contents.evidence}
    return {size: tally(studies.every(), contents.evidence, size) for size in SIZE_NAMES if size in sizes}


def _counted(counts: Counter[str], where_reproduced: str = "") -> str:
    after = {"reproduced": where_reproduced}
    return ", ".join(f"{counts[word]} {word}{after.get(word, '')}" for word in WORDS if counts[word])
