"""The sections of the pages of results: each is a title and parts in Markdown, with its pictures beside it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gasam.analysis.pictures import numbered
from gasam.lab.analyses import restored
from gasam.lab.methods import METHODS
from gasam.lab.paper import studies
from gasam.lab.paper.figures import norms_by_epoch
from gasam.lab.paper.studies import Study
from gasam.lab.paper.verdicts import FIGURE_CLAIMS, judge_figure
from gasam.lab.records import AnalysisRecord, RunRecord
from gasam.lab.report.comparison import BUDGETS, COST, PAPER, comparison
from gasam.lab.report.contents import Contents
from gasam.lab.report.flatness import flatness_tables
from gasam.lab.report.frame import Group, groups_of
from gasam.lab.report.labels import run_labels
from gasam.lab.report.paper_tables import study_groups, study_table
from gasam.lab.report.regret import regret_table
from gasam.lab.report.tuning import tuning_figures, tuning_table
from gasam.lab.search.finding import Finding
from gasam.lab.statistics import counted
from gasam.lab.tables import Table, markdown, of_texts
from gasam.lab.tasks import SIZE_NAMES, TASKS, asked_size, find

HEADS = {"attack": "Robustness of the weights", "spectrum": "Spectrum", "sharpness": "Sharpness"}
COST_TITLES = [column.title for column in (*COST, *BUDGETS)]
ELSEWHERE = ("Conclusion", "Size of the walk, tuned")  # notes that a page shows at its top, or in its rows


@dataclass(frozen=True)
class Section:
    """`pictures` are figures by the name that the parts link to."""

    title: str
    parts: list[str]
    pictures: dict[str, Figure] = field(default_factory=dict)


def every(contents: Contents) -> dict[str, list[Section]]:
    """The sections of each page besides the summary, by the page's name; pages without any are left out."""
    pages = {task: list(task_sections(contents.evidence, task)) for task in TASKS}
    pages["tuning"] = list(search_sections(contents))
    pages["flatness"] = [*flatness_sections(contents), *analysis_sections(contents)]
    pages["paper"] = [*study_sections(contents), *figure_sections(contents)]
    return {page: sections for page, sections in pages.items() if sections}


def task_sections(records: Sequence[RunRecord], task: str) -> Iterator[Section]:
    """Every configuration that was run, by size."""
    for size in TASKS[task].sizes:
        if groups := groups_of(records, task, size):
            table = comparison(records, task, size)
            notes = [note for note in table.notes if not note.startswith(ELSEWHERE)]
            methods = ",".join(dict.fromkeys(group.method for group in groups))
            command = f"gasam compare {task} --size {asked_size(task, size)} --methods {methods}{_how(groups)}"
            runs = [record for group in groups for record in group.records]
            parts = [
                _columns(table, lambda title: title not in COST_TITLES and not title.startswith(PAPER[0].title)),
                _columns(table, lambda title: title in (*COST_TITLES, "method", "settings")),
                "\n".join(f"- {note}" for note in notes),
                origin(runs, "run"),
                f"To reproduce: `{command}`.",
            ]
            yield Section(f"Size {size}", parts)


def study_sections(contents: Contents) -> Iterator[Section]:
    """The paper's tables; one that would only repeat runs of those before it waits until it has some of its own."""
    records, seen = contents.evidence, set[str]()
    for study in studies.every():
        for size in SIZE_NAMES:
            groups = [group for task in study.tasks for group in study_groups(study, records, task, size)]
            runs = [record for group in groups for record in group.records]
            new = {record.identity for record in runs if record.method != "baseline"} - seen
            if new:
                table, parts = study_table(study, records, size), list[str]()
                for task in dict.fromkeys(group.task for group in groups):
                    cells = _columns(table, lambda title: title not in ("task", "test", *COST_TITLES), task)
                    parts += [f"[{task}]({task}.md):", cells, contents.comment(study.name, task)]
                yield Section(f"{study.title}, size {size}", [*parts, *_reproduce(study, size, groups, runs)])
            seen |= new


def _columns(table: Table, shown: Callable[[str], bool], task: str | None = None) -> str:
    """Some columns of a table; of one task those rows that the paper has."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    if task is not None:
        rows = [row for row in rows if row["task"] == task and row["paper"]]
    return markdown(of_texts("", [{title: row[title] for title in row if shown(title)} for row in rows]))


def _reproduce(study: Study, size: str, groups: Sequence[Group], runs: Sequence[RunRecord]) -> list[str]:
    tuned = {group.task for group in groups if group.tuned}
    tasks = dict.fromkeys(group.task for group in groups)
    chosen = ",".join(task for task in tasks if task in tuned or not tuned)
    others = ", ".join(task for task in tasks if tuned and task not in tuned)
    command = f"gasam reproduce {study.name} --size {size} --tasks {chosen}{_how(groups)}"
    rest = f" The same without `--tuned` for {others}." if others else ""
    return [origin(runs, "run"), f"The whole table: {study.cost}. To reproduce: `{command}`.{rest}"]


def _how(groups: Sequence[Group]) -> str:
    """The seeds, counted from 1, and whether radii are tuned ones."""
    seeds = max(record.seed for group in groups for record in group.records)
    return f" --seeds {seeds}" + (" --tuned --out results" if any(group.tuned for group in groups) else "")


def search_sections(contents: Contents) -> Iterator[Section]:
    """Comparable searches together: a table, a picture, the regret of the search."""
    numbers: Counter[tuple[str, str]] = Counter()
    for some in _comparable(contents.findings):
        task, size = some[0].task, some[0].size
        numbers[task, size] += 1
        number = numbers[task, size]
        name = f"tuning-{task}-{size}" + (f"-{number}" if number > 1 else "")
        about = f"{task} is here to measure the search: it is no evidence for the paper's claims."
        regret, figures = regret_table(some, contents.records), tuning_figures(some)
        tries = [one for found in some for one in (found.baseline, *found.tries)]
        commits = ", ".join(dict.fromkeys(_commit(one.commit, one.dirty) for one in tries))
        parts = [
            about if find(task).kind != "paper" else "",
            markdown(tuning_table(some)),
            _links(name, figures, f"validation against the size of the walk on {task}"),
            markdown(regret) if regret else "",
            contents.comment("search", task),
            f"From commits {commits}. To repeat the first search: `{_tune(some[0])}`.",
        ]
        yield Section(f"{task}, size {size}", parts, _named(name, figures))


def _comparable(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Searches of one task, size, seed, quantity, data and settings, in the order of the methods."""
    order = list(METHODS)
    sheets: dict[str, list[Finding]] = {}
    for found in sorted(findings, key=lambda each: (each.task, each.size, order.index(each.method), each.full_grid)):
        same = [found.task, found.size, found.seed, found.quantity, found.data, found.settings]
        sheets.setdefault(json.dumps(same, sort_keys=True), []).append(found)
    return list(sheets.values())


def _tune(found: Finding) -> str:
    norms = ",".join(dict.fromkeys(f"{one.norm:g}" for one in found.tries))
    low, high = found.exponents
    extent = f"--full-grid --exponents={low},{high}" if found.full_grid else f"--trials {len(found.tries)}"
    command = f"gasam tune {found.task} --method {found.method} --size {asked_size(found.task, found.size)}"
    return f"{command} --quantity {found.quantity} --norms {norms} {extent}"


def flatness_sections(contents: Contents) -> Iterator[Section]:
    for place, table in flatness_tables(contents.analyses).items():
        yield Section(f"Flatness, {place}", [markdown(table), contents.comment("flatness", place.partition(",")[0])])


def analysis_sections(contents: Contents) -> Iterator[Section]:
    """Each analysis with the runs of the seed that has the most; no row of a task is shown twice."""
    shown = set[tuple[str, ...]]()
    for analysis, every in contents.analyses:
        [(seed, _)] = Counter(sorted(each.run.seed for each in every)).most_common(1)
        found = [each for each in every if each.run.seed == seed]
        labels, run = run_labels(found), found[0].run
        apart = [i for i, each in enumerate(found) if each.found not in [other.found for other in found[:i]]]
        same = ", ".join(label for i, label in enumerate(labels) if i not in apart)
        name = f"{analysis.filed}-{run.task}-{run.size}"
        seeds = counted(len({each.run.seed for each in every}), "seed")
        figures = analysis.draw(every, run_labels(every))
        table = analysis.table([found[i] for i in apart], [labels[i] for i in apart])
        new = tuple(row for row in table.rows if row[0] == "none" or (run.task, *row) not in shown)
        shown |= {(run.task, *row) for row in table.rows}
        parts = [
            _links(name, figures, f"{analysis.kind} of {run.task}"),
            markdown(replace(table, rows=new)),
            f"{same}: the same weights as the baseline." if same else "",
            f"{origin(found, 'record')} Table: seed {run.seed} of {seeds}."
            + (" Picture: mean and standard deviation over seeds." if len(every) > len(found) else ""),
        ]
        title = f"{HEADS.get(analysis.kind, analysis.kind)}, {run.task}, size {run.size}: {analysis.manner}"
        yield Section(title, parts, _named(name, figures))


def figure_sections(contents: Contents) -> Iterator[Section]:
    for name, found in contents.figures.items():
        study, _, size = name.rpartition("-")
        verdict, figures = judge_figure(study, found.get("norms", {})), _figures(found)
        parts = [
            f"The paper: {FIGURE_CLAIMS[study]}. Verdict: {verdict}." if verdict else "",
            f"{found['sentence'][0].upper()}{found['sentence'][1:]}.".replace("; ", ";\n"),
            _links(name, figures, found["title"]),
            f"To reproduce: `gasam reproduce {study} --size {size}`.",
        ]
        yield Section(f"{found['title']}, size {size}", parts, _named(name, figures))


def _named(name: str, figures: Sequence[Figure]) -> dict[str, Figure]:
    """The figures by the names of their files."""
    return {numbered(Path(name), number).name: figure for number, figure in enumerate(figures, start=1)}


def _links(name: str, figures: Sequence[Figure], about: str) -> str:
    return "\n\n".join(f"![{about}](../figures/{each}.svg)" for each in _named(name, figures))


def _figures(found: dict[str, Any]) -> list[Figure]:
    """From the analysed runs that it shows, or from gradient norms over the epochs, of runs or of layers."""
    if "records" in found:
        analysed = [AnalysisRecord.model_validate(each) for each in found["records"]]
        return restored(analysed[0]).draw(analysed, run_labels(analysed))
    norms = found["norms"]
    panels = norms if isinstance(next(iter(norms.values())), dict) else {"gradient norm over training": norms}
    return norms_by_epoch(panels)


def origin(found: Sequence[RunRecord] | Sequence[AnalysisRecord], noun: str) -> str:
    commits = ", ".join(dict.fromkeys(_commit(each.commit, each.dirty) for each in found))
    return f"From {counted(len(found), noun)} of commits {commits}."


def _commit(number: str | None, dirty: bool | None) -> str:
    if number is None:
        return "unknown"
    return number[:7] + (" with changes" if dirty else "")
