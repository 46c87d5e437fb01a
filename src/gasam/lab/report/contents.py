"""Everything that the pages of results are made from: what the folder `results` holds."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gasam.lab import records
from gasam.lab.analyses import Analysis, restored
from gasam.lab.errors import InputError
from gasam.lab.paper import studies
from gasam.lab.records import AnalysisRecord, RunRecord, RunSummary
from gasam.lab.report.frame import groups_of
from gasam.lab.report.group import Group
from gasam.lab.search import finding, settings_finding
from gasam.lab.search.finding import Finding
from gasam.lab.search.settings_finding import SettingsFinding
from gasam.lab.tasks import TASKS, find

ABOUT_TASKS = ("runs", "search", "family", "ablations", "flatness", "earlier")
STEP_TIMES = "step-times"
"""The folder of what `benchmarks/step_times.py` measures."""
REMARKS = {
    "summary": ["answer", "history"],
    "newest": studies.load("table1").tasks,
    **{key: list(TASKS) for key in ABOUT_TASKS},
}
"""What else than a table of the paper may have remarks."""


@dataclass(frozen=True)
class Contents:
    """Records of runs, searches for walks and for settings, analyses of runs with the same options on one task, figures
    of the paper by name, what people remark on a table and a task, and step times by task, size and configuration."""

    records: list[RunRecord] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    settings: list[SettingsFinding] = field(default_factory=list)
    analyses: list[tuple[Analysis, list[AnalysisRecord]]] = field(default_factory=list)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    remarks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    step_times: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)

    _groups: dict[tuple[str, str], list[Group]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def evidence(self) -> list[RunRecord]:
        """The records without the embedded twins and the user's own data."""
        return [record for record in self.records if find(record.task).kind == "paper"]

    def groups(self, task: str, size: str) -> list[Group]:
        """The groups of the evidence on one task and size, computed once."""
        if (task, size) not in self._groups:
            self._groups[task, size] = groups_of(self.evidence, task, size)
        return self._groups[task, size]

    def comment(self, table: str, task: str) -> str:
        return self.remarks.get(table, {}).get(task, "")


def read(folder: Path) -> Contents:
    runs = list(records.read_all(folder))
    figures = {
        file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted((folder / "figures").glob("*.json"))
    }
    analyses = read_analyses(folder / "analysis", runs)
    searches, settings = list(finding.read_all(folder)), list(settings_finding.read_all(folder))
    times = _read_step_times(folder / STEP_TIMES)
    return Contents(runs, searches, settings, analyses, figures, _read_remarks(folder / "remarks.toml"), times)


def read_analyses(folder: Path, runs: list[RunRecord]) -> list[tuple[Analysis, list[AnalysisRecord]]]:
    """Their runs in the order of the methods, with the source of epsilon, which the record of an analysis lacks."""
    sources = {_identity(run): run.epsilon_source for run in runs}
    groups: dict[str, list[AnalysisRecord]] = {}
    for file in sorted(folder.glob("*.json")):
        each = records.read_analysis(file)
        each.run.epsilon_source = sources.get(_identity(each.run)) or each.run.epsilon_source
        same = [each.kind, each.run.task, each.run.size, each.options]
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(each)
    return [(restored(group[0]), sorted(group, key=_place)) for _, group in sorted(groups.items())]


def _identity(run: RunSummary) -> str:
    return json.dumps([run.config, run.seed, run.data.hash], sort_keys=True)


def _place(each: AnalysisRecord) -> tuple[bool, float, float]:
    return each.run.method != "baseline", each.run.gradient_evaluations, each.run.walk["epsilon"]


def _read_step_times(folder: Path) -> dict[tuple[str, str], dict[str, float]]:
    found = {}
    for file in sorted(folder.glob("*.json")):
        try:
            measured = json.loads(file.read_text(encoding="utf-8"))
            found[measured["task"], measured["size"]] = {key: float(time) for key, time in measured["times"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{file} has no step times: measure them again with benchmarks.step_times") from None
    return found


def _read_remarks(file: Path) -> Mapping[str, Mapping[str, str]]:
    """Nothing where nobody wrote anything."""
    if not file.exists():
        return {}
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is not TOML: {error}") from None
    known = {study.name: study.tasks for study in studies.every()} | REMARKS
    for table, remarks in found.items():
        if table not in known or not isinstance(remarks, dict):
            raise InputError(f"{file}: a table must be one of {', '.join(known)}, with remarks by task, got {table!r}")
        for task, text in remarks.items():
            if task not in known[table] or not isinstance(text, str):
                raise InputError(
                    f'{file}: give {table}.TASK = "text" with one of {", ".join(known[table])}, got {task!r}'
                )
    return found
