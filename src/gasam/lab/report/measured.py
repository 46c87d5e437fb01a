"""The part of the results page that is about analyses and figures: made from `results/analysis`, `results/figures`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gasam.lab import records
from gasam.lab.analyses import Analysis, restored
from gasam.lab.paper.figures import paper_table
from gasam.lab.records import AnalysisRecord, RunSummary
from gasam.lab.report.cells import counted
from gasam.lab.report.flatness import CLAIM, flatness_table
from gasam.lab.report.groups import data_hash
from gasam.lab.report.labels import run_labels
from gasam.lab.tables import markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLATNESS = "Flatness"
HEADS = {"attack": "Robustness of the weights", "spectrum": "Spectra", "sharpness": "Sharpness"}


def sections(root: Path, remarked: Mapping[str, str] | None = None) -> Iterator[str]:
    """What was claimed of flatness; each analysis by kind and task, all its runs of one seed in one table; then the
    figures, a sentence each."""
    every = _groups(root)
    if table := flatness_table(every):
        yield f"## {FLATNESS}"
        yield CLAIM
        yield markdown(table)
        yield from (f"**{task}.** {remark}" for task, remark in (remarked or {}).items())
        yield f"From {_origin([each for _, found in every for each in found])}."
        yield "The paper's Table 4, BLEU on en-vi:"
        yield markdown(paper_table())
    kind = None
    for analysis, found in every:
        if kind != analysis.kind:
            kind = analysis.kind
            yield f"## {HEADS.get(kind, kind)}"
        yield from _shown(analysis, found)
    figures = sorted((root / "results" / "figures").glob("*.json"))
    if figures:
        yield "## Figures"
        yield "\n".join(f"- {_figure(file)}" for file in figures)


def pictures(root: Path) -> Iterator[tuple[str, Figure]]:
    """Of each analysis, with the name that its section links to."""
    for analysis, found in _groups(root):
        shown = _of_one_seed(found)
        yield _picture(analysis, found), analysis.draw(shown, run_labels(shown))


def _groups(root: Path) -> list[tuple[Analysis, list[AnalysisRecord]]]:
    """Records with the same options on one task, in the order of the methods; their runs with the source of epsilon."""
    sources = {_run(run): run.epsilon_source for run in records.read_all(root / "results")}
    groups: dict[str, list[AnalysisRecord]] = {}
    for file in sorted((root / "results" / "analysis").glob("*.json")):
        each = records.read_analysis(file)
        if source := sources.get(_run(each.run)):
            each.run.epsilon_source = source
        same = [each.kind, each.run.task, each.run.size, each.options]
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(each)
    return [(restored(group[0]), sorted(group, key=_place)) for _, group in sorted(groups.items())]


def _run(run: RunSummary) -> str:
    return json.dumps([run.config, run.seed, data_hash(run)], sort_keys=True)


def _picture(analysis: Analysis, found: Sequence[AnalysisRecord]) -> str:
    return f"{analysis.filed}-{found[0].run.task}-{found[0].run.size}"


def _place(each: AnalysisRecord) -> tuple[bool, float, float]:
    run = each.run
    return run.method != "baseline", run.gradient_evaluations, run.config["method"]["epsilon"]


def _of_one_seed(found: Sequence[AnalysisRecord]) -> list[AnalysisRecord]:
    """Those of the seed that has the most: what differs from seed to seed is told by the table of flatness."""
    seeds = Counter(each.run.seed for each in sorted(found, key=lambda each: each.run.seed))
    [(seed, _)] = seeds.most_common(1)
    return [each for each in found if each.run.seed == seed]


def _shown(analysis: Analysis, every: Sequence[AnalysisRecord]) -> Iterator[str]:
    found = _of_one_seed(every)
    run, labels = found[0].run, run_labels(found)
    sentence = analysis.sentence(found, labels)
    yield f"### {run.task}, size {run.size}: {analysis.manner}"
    yield f"{sentence[0].upper()}{sentence[1:]}."
    yield f"![{analysis.kind} of {run.task}](figures/{_picture(analysis, found)}.svg)"
    yield markdown(analysis.table(found, labels))
    spent = "; ".join(f"{label} {each.run.gradient_evaluations:,}" for each, label in zip(found, labels, strict=True))
    count = len({each.run.seed for each in every})
    seeds = f"one of {count}" if count > 1 else "alone, which carries no claim"
    yield f"Gradient evaluations of training: {spent}. From {_origin(found)}. Of seed {run.seed}, {seeds}."


def _origin(found: Sequence[AnalysisRecord]) -> str:
    commits = ", ".join(dict.fromkeys(str(each.commit)[:7] for each in found))
    return f"{counted(len(found), 'record')} of commit {commits}"


def _figure(file: Path) -> str:
    found = json.loads(file.read_text(encoding="utf-8"))
    name, _, size = file.stem.rpartition("-")
    again = f"[picture](figures/{file.stem}.svg); again: `gasam reproduce {name} --size {size}`"
    return f"**{found['title']}**, size {size}: {found['sentence']}. {again}."
