"""The sections of the pages of results: each is a title and parts in Markdown, with its pictures beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from gasam.lab.analyses import restored
from gasam.lab.paper import studies
from gasam.lab.paper.figures import norms_by_epoch
from gasam.lab.paper.studies import Study
from gasam.lab.paper.verdicts import FIGURE_CLAIMS, judge_figure
from gasam.lab.records import AnalysisRecord, RunRecord
from gasam.lab.report.ablation_questions import without_ablations
from gasam.lab.report.ablation_sections import ablation_sections, ablation_tables
from gasam.lab.report.comparison import PAPER, comparison_of
from gasam.lab.report.contents import Contents
from gasam.lab.report.family_sections import family_sections
from gasam.lab.report.flatness import flatness_tables
from gasam.lab.report.group import Group
from gasam.lab.report.labels import run_labels
from gasam.lab.report.newest_table1 import newest_table1_sections
from gasam.lab.report.notes import page_notes
from gasam.lab.report.paper_tables import study_groups, study_table
from gasam.lab.report.search_sections import one_setting_sections, search_sections, settings_sections
from gasam.lab.report.section import (
    COST_TITLES,
    Section,
    columns,
    how,
    links,
    named,
    origin,
    with_answers,
    with_lead,
)
from gasam.lab.report.versions import page_of, replaced_versions
from gasam.lab.statistics import counted
from gasam.lab.tables import markdown
from gasam.lab.tasks import SIZE_NAMES, TASKS

HEADS = {"attack": "Robustness of the weights", "spectrum": "Spectrum", "sharpness": "Sharpness"}


def every(contents: Contents) -> dict[str, list[Section]]:
    """The sections of each page besides the summary, by the page's name; pages without any are left out."""
    pages = {task: list(task_sections(contents, task)) for task in TASKS}
    pages["family"] = list(family_sections(contents))
    pages["ablations"] = list(ablation_sections(contents))
    pages["tuning"] = [
        *one_setting_sections(contents),
        *settings_sections(contents),
        *search_sections(contents),
    ]
    pages["flatness"] = [*flatness_sections(contents), *analysis_sections(contents)]
    pages["paper"] = [*newest_table1_sections(contents), *study_sections(contents), *figure_sections(contents)]
    pages["earlier"] = list(earlier_sections(contents))
    return {page: sections for page, sections in pages.items() if sections}


def task_sections(contents: Contents, task: str) -> Iterator[Section]:
    """Every configuration that was run, by size, except the ablations and replaced versions."""
    older = replaced_versions(contents, task)
    for size in TASKS[task].sizes:
        if size not in older and (parts := _size_parts(contents, task, size)):
            yield Section(f"Size {size}", parts)


def earlier_sections(contents: Contents) -> Iterator[Section]:
    """The replaced versions of each task: the methods, then the parts of GA-SAM."""
    for task in TASKS:
        older = [size for size in TASKS[task].sizes if size in replaced_versions(contents, task)]
        remark = contents.comment("earlier", task)
        if older and remark:
            yield Section(f"{task}: about these versions", [remark])
        for size in older:
            if parts := _size_parts(contents, task, size):
                yield Section(f"{task}, size {size}", parts)
            if parts := ablation_tables(contents, task, size):
                yield Section(f"{task}, size {size}: parts of GA-SAM", parts)


def _size_parts(contents: Contents, task: str, size: str) -> list[str]:
    """The methods of a task in one size: scores, costs, notes, and how to reproduce them; empty without runs."""
    groups = without_ablations(contents.groups(task, size))
    if not groups:
        return []
    table = comparison_of(groups, task, size, step_times=contents.step_times.get((task, size)))
    judged = with_answers(with_lead(table, groups), groups)
    methods = ",".join(dict.fromkeys(group.method for group in groups))
    command = f"gasam compare {task} --size {size} --methods {methods}{how(groups)}"
    runs = [record for group in groups for record in group.records]
    return [
        columns(judged, lambda title: title not in COST_TITLES and not title.startswith(PAPER[0].title)),
        columns(table, lambda title: title in (*COST_TITLES, "method", "settings")),
        "\n".join(f"- {note}" for note in page_notes(task, size, groups)),
        origin(runs, "run"),
        f"To reproduce: `{command}`.",
    ]


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
                    cells = columns(table, lambda title: title not in ("task", "test", *COST_TITLES), task)
                    parts += [f"[{task}]({page_of(contents, task, size)}):", cells, contents.comment(study.name, task)]
                yield Section(f"{study.title}, size {size}", [*parts, *_reproduce(study, size, groups, runs)])
            seen |= new


def _reproduce(study: Study, size: str, groups: Sequence[Group], runs: Sequence[RunRecord]) -> list[str]:
    tuned = {group.task for group in groups if group.tuned}
    tasks = dict.fromkeys(group.task for group in groups)
    chosen = ",".join(task for task in tasks if task in tuned or not tuned)
    others = ", ".join(task for task in tasks if tuned and task not in tuned)
    command = f"gasam reproduce {study.name} --size {size} --tasks {chosen}{how(groups)}"
    rest = f" The same without `--tuned` for {others}." if others else ""
    return [origin(runs, "run"), f"The whole table: {study.cost}. To reproduce: `{command}`.{rest}"]


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
        figures, series = analysis.draw(every, run_labels(every)), analysis.series(every, run_labels(every))
        table = analysis.page_table([found[i] for i in apart], [labels[i] for i in apart])
        new = tuple(row for row in table.rows if row[0] == "none" or (run.task, *row) not in shown)
        shown |= {(run.task, *row) for row in table.rows}
        parts = [
            links(name, figures, f"{analysis.kind} of {run.task}"),
            markdown(replace(table, rows=new)),
            f"[All radii, all seeds](../data/{name}.csv)" if series else "",
            f"{same}: the same weights as the baseline." if same else "",
            f"{origin(found, 'record')} Table: seed {run.seed} of {seeds}."
            + (" Picture: mean and standard deviation over seeds." if len(every) > len(found) else ""),
        ]
        title = f"{HEADS.get(analysis.kind, analysis.kind)}, {run.task}, size {run.size}: {analysis.manner}"
        yield Section(title, parts, named(name, figures), {name: series} if series else {})


def figure_sections(contents: Contents) -> Iterator[Section]:
    for name, found in contents.figures.items():
        study, _, size = name.rpartition("-")
        verdict, figures = judge_figure(study, found.get("norms", {})), _figures(found)
        parts = [
            f"The paper: {FIGURE_CLAIMS[study]}. Verdict: {verdict}." if verdict else "",
            f"{found['sentence'][0].upper()}{found['sentence'][1:]}.".replace("; ", ";\n"),
            links(name, figures, found["title"]),
            f"To reproduce: `gasam reproduce {study} --size {size}`.",
        ]
        yield Section(f"{found['title']}, size {size}", parts, named(name, figures))


def _figures(found: dict[str, Any]) -> list[Figure]:
    """From the analysed runs that it shows, or from gradient norms over the epochs, of runs or of layers."""
    if "records" in found:
        analysed = [AnalysisRecord.model_validate(each) for each in found["records"]]
        return restored(analysed[0]).draw(analysed, run_labels(analysed))
    norms = found["norms"]
    panels = norms if isinstance(next(iter(norms.values())), dict) else {"gradient norm over training": norms}
    return norms_by_epoch(panels)
