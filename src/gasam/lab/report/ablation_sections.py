"""The sections about ablations: a table for each question, with the rows beside plain training and beside GA-SAM."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from gasam.lab.records import RunRecord
from gasam.lab.report.ablation_questions import MASKS, Part, parts_of, size_of_walk
from gasam.lab.report.comparison import described, score_cell
from gasam.lab.report.contents import Contents
from gasam.lab.report.group import Group
from gasam.lab.report.section import Section, origin
from gasam.lab.report.versions import replaced_versions
from gasam.lab.statistics import number
from gasam.lab.tables import markdown, of_texts
from gasam.lab.tasks import TASKS


def ablation_sections(contents: Contents) -> Iterator[Section]:
    """A section with the remarks on each task, then one for each of its sizes; replaced versions are left out."""
    for task in TASKS:
        older = replaced_versions(contents, task)
        found = {size: ablation_tables(contents, task, size) for size in TASKS[task].sizes if size not in older}
        remark = contents.comment("ablations", task)
        if remark and any(found.values()):
            yield Section(f"{task}: what the tables show", [remark])
        yield from (Section(f"{task}, size {size}", parts) for size, parts in found.items() if parts)


def ablation_tables(contents: Contents, task: str, size: str) -> list[str]:
    """A table for each question that was asked in one size, and the runs; empty if none was."""
    parts = list(parts_of(contents.groups(task, size)))
    runs = {record.identity: record for part in parts for group in part.groups for record in group.records}
    tables = [text for part in parts for text in (f"### {part.heading}", _table(part))]
    return [*tables, origin(list(runs.values()), "run")] if parts else []


def _table(part: Part) -> str:
    metric = part.groups[0].metric
    unit = metric.unit_of_differences
    rows = [
        {
            "variant": part.name_of(group),
            "size of the walk": "" if group.method == "baseline" else size_of_walk(group),
            described(metric): score_cell(group).text,
            **({"validation": _validation(group)} if part.question == MASKS else {}),
            f"vs baseline, {unit} [95% interval]": group.versus(group.baseline),
            f"vs GA-SAM, {unit} [95% interval]": part.versus_lead(group),
            "predicted rise": _rise(group, "predicted_rise"),
            **({"measured rise": _rise(group, "rise")} if part.question == MASKS else {}),
            "passes a step": "" if group.passes is None else f"{group.passes:.2f}",
        }
        for group in part.groups
    ]
    return markdown(of_texts("", rows))


def _validation(group: Group) -> str:
    """The mean on validation of the epochs that it chose: a second opinion on a small difference."""
    return number(group.mean("valid"), group.metric.decimals) if group.scores else ""


def _rise(group: Group, kind: str) -> str:
    """The rise of the loss in the last epoch: what walks aimed at after the cap, or measured. Old records have none."""
    walks = [record.curve[-1].get("walk") for record in group.records if isinstance(record, RunRecord) and record.curve]
    rises = [walk[kind] for walk in walks if walk and walk.get(kind) is not None]
    return f"{fmean(rises):.4f}" if rises else ""
