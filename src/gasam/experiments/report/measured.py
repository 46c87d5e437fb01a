"""The part of the results page that is about analyses and figures: made from `results/analysis`, `results/figures`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from gasam.experiments import analyses
from gasam.experiments.analyses import Analysis
from gasam.experiments.analyses.kinds import restored
from gasam.experiments.analyses.showing import run_labels
from gasam.experiments.records import Record
from gasam.experiments.report.tables import markdown

HEADS = {"attack": "Robustness of the weights", "spectrum": "Spectra", "sharpness": "Sharpness"}


def sections(root: Path) -> Iterator[str]:
    """Each analysis by kind and task, all its runs in one table; then the figures, a sentence each."""
    found = [analyses.read(file) for file in sorted((root / "results" / "analysis").glob("*.json"))]
    for kind in dict.fromkeys(each["kind"] for each in found):
        yield f"## {HEADS.get(kind, kind)}"
        for group in _groups([each for each in found if each["kind"] == kind]):
            yield from _shown(restored(group[0]), group)
    figures = sorted((root / "results" / "figures").glob("*.json"))
    if figures:
        yield "## Figures"
        yield "\n".join(f"- {_figure(file)}" for file in figures)


def _groups(found: Sequence[Record]) -> list[list[Record]]:
    """Those with the same options on one task, in the order of the methods."""
    groups: dict[str, list[Record]] = {}
    for each in found:
        key = json.dumps([each["run"]["task"], each["run"]["size"], each["options"]], sort_keys=True)
        groups.setdefault(key, []).append(each)
    return [sorted(group, key=_place) for _, group in sorted(groups.items())]


def _place(each: Record) -> tuple[bool, int, float]:
    run = each["run"]
    return run["method"] != "baseline", run["gradient_evaluations"], run["config"]["method"]["epsilon"]


def _shown(analysis: Analysis, found: Sequence[Record]) -> Iterator[str]:
    run, sentence = found[0]["run"], analysis.sentence(found)
    yield f"### {run['task']}, size {run['size']}: {analysis.manner}"
    yield f"{sentence[0].upper()}{sentence[1:]}."
    yield markdown(analysis.table(found))
    spent = "; ".join(
        f"{label} {each['run']['gradient_evaluations']:,}" for each, label in zip(found, run_labels(found), strict=True)
    )
    commits = ", ".join(dict.fromkeys(str(each["commit"])[:7] for each in found))
    yield f"Gradient evaluations of training: {spent}. From {len(found)} records of commit {commits}."


def _figure(file: Path) -> str:
    found = json.loads(file.read_text(encoding="utf-8"))
    name, _, size = file.stem.rpartition("-")
    again = f"[picture](figures/{file.stem}.svg); again: `gasam reproduce {name} --size {size}`"
    return f"**{found['title']}**, size {size}: {found['sentence']}. {again}."
