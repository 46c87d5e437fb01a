"""The HTML report: one page that works without a network, because it holds its charts' library and data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gasam.lab import record as records
from gasam.lab.analyses import Analysis, restored
from gasam.lab.data.corpus import cache_directory
from gasam.lab.errors import InputError
from gasam.lab.record import AnalysisRecord, Record
from gasam.lab.report.answers import headline
from gasam.lab.report.html_sections import Run, Section, sections
from gasam.lab.report.run_list import ListedRun
from gasam.lab.statistics import counted, number
from gasam.lab.storage import replaced
from gasam.lab.tables import holds_numbers

PAGE = "report.html"
TEMPLATES = Environment(
    loader=PackageLoader("gasam.lab.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.policies["json.dumps_kwargs"] = {"allow_nan": False}
TEMPLATES.filters |= {"number": number}
TEMPLATES.globals.update(counted=counted, holds_numbers=holds_numbers)


def of_runs(found: Sequence[ListedRun], folder: Path) -> list[Section]:
    """The sections for the runs of a folder, with their analyses and with the step times of earlier comparisons."""
    runs = [Run(file, record) for file, record in found]
    analyses = _read_analyses(folder / "analysis", [run.record for run in runs])
    return sections(runs, analyses, _read_step_times(folder / "tables"))


def write(found: Sequence[Section], file: Path, title: str = "Comparison of training methods") -> None:
    """Write the page.

    Args:
        found: The sections of the page.
        file: Where to write it. Links to records are relative to its folder.
        title: The heading of the page.
    """
    text = TEMPLATES.get_template("report.html.jinja").render(
        title=title,
        sections=found,
        headline=headline([section.answer for section in found]),
        library=Markup(_library().replace("</script", "<\\/script")),
        link=lambda record: quote(Path(os.path.relpath(record, file.parent)).as_posix()),
    )
    with replaced(file) as partial:
        partial.write_text(text, encoding="utf-8")


def step_times(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The step times in the values of a comparison's table, by the label of the configuration."""
    return {row["label"]: row["step_time"] for row in rows if row.get("step_time") is not None}


def _library() -> str:
    """The JavaScript of Vega-Lite. Bundling it takes seconds, so it is kept in the cache."""
    file = cache_directory() / "javascript" / f"vega-{version('vl-convert-python')}.js"
    if not file.exists():
        import vl_convert

        with replaced(file) as partial:
            bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
            partial.write_text(bundle, encoding="utf-8")
    return file.read_text(encoding="utf-8")


def _read_analyses(folder: Path, runs: Sequence[Record]) -> list[tuple[Analysis, list[AnalysisRecord]]]:
    """Their runs in the order of the methods."""
    groups: dict[str, list[AnalysisRecord]] = {}
    for file in sorted(folder.glob("*.json")):
        each = records.read_analysis(file)
        same = [each.kind, each.run.task, each.run.size, each.options]
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(each)
    return [(restored(group[0]), sorted(group, key=_place)) for _, group in sorted(groups.items())]


def _place(each: AnalysisRecord) -> tuple[bool, float, float]:
    return each.run.method != "baseline", each.run.gradient_evaluations, each.run.walk["epsilon"] or 0.0


def _read_step_times(folder: Path) -> dict[tuple[str, str], Mapping[str, float]]:
    """Those that `gasam compare` wrote into its tables, by task and size, then by the label of a configuration."""
    found: dict[tuple[str, str], Mapping[str, float]] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            table: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            task, _, size = table["title"].partition(", size ")
            found[task, size] = step_times(table["rows"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{file} is not a table of this program: delete it and run the comparison again") from None
    return found
