"""What the paper says, from its printed numbers alone: baselines, best rows, and differences that slipped."""

from __future__ import annotations

from collections.abc import Iterator

from gasam.lab.paper import studies
from gasam.lab.paper.studies import Row, Study
from gasam.lab.report.comparison import described
from gasam.lab.tasks import TASKS


def metrics() -> str:
    named = dict.fromkeys(task for name in studies.names() for task in studies.load(name).tasks)
    return "; ".join(f"{task}: {described(TASKS[task].family.metric)}" for task in named)


def claims() -> Iterator[str]:
    """For each table and task the paper's baseline and its best row; then where its printed differences slip."""
    every = [studies.load(name) for name in studies.names()]
    for study in every:
        yield f"{study.title}. {'; '.join(best_in_words(study, task) for task in study.tasks)}. ({study.cost}.)"
    for study in every:
        for row, task in study.slips():
            table, printed = study.title.partition(":")[0], row.expected[task].slip
            means = f"{study.difference(row, task):+}"
            yield f"{table} prints {printed} for {row.label} on {task}, where its means give {means}."


def best_in_words(study: Study, task: str) -> str:
    row = best_row(study, task)
    gain = study.difference(row, task)
    won = "is best" if gain is None else f"{row.label} {row.expected[task].text} ({gain:+}) is best"
    return f"{task}: baseline {study.rows[0].expected[task].text}, {won}"


def best_row(study: Study, task: str) -> Row:
    choose = max if TASKS[task].family.metric.higher_is_better else min
    return choose((row for row in study.rows if task in row.expected), key=lambda row: row.expected[task].mean)
