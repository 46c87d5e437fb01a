"""The HTML report: one page that works without a network, because it holds its charts' library and data."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gasam.lab.analyses import restored
from gasam.lab.data.corpus import cache_directory
from gasam.lab.errors import InputError
from gasam.lab.output import Chart, Table, styled
from gasam.lab.record import AnalysisRecord, Record, read, read_analysis
from gasam.lab.report.comparison import Comparison, counted, described, run_list
from gasam.lab.storage import replaced

PAGE = "report.html"
FOLDERS = (".", "gradient-norms")
"""Where a folder of runs holds records: `gasam reproduce figure4` keeps those with gradient norms apart."""
SHOWN = 7
"""So many configurations are all drawn at first; of more, the lines cannot be told apart."""
TEMPLATES = Environment(
    loader=PackageLoader("gasam.lab.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.policies["json.dumps_kwargs"] = {"allow_nan": False}


def chips(methods: Mapping[str, str]) -> list[dict[str, Any]]:
    """The buttons that show and hide configurations; if they are many, only the first of each method is drawn."""
    colours, dashes = (each["scale"]["range"] for each in styled(methods))
    first = {method: label for label, method in reversed(list(methods.items()))}
    shown = methods if len(methods) <= SHOWN else first.values()
    return [
        {"label": label, "colour": colour, "dashes": dash, "shown": label in shown}
        for label, colour, dash in zip(methods, colours, dashes, strict=True)
    ]


def read_runs(folder: Path) -> tuple[dict[Path, Record], list[str]]:
    """The runs of a folder by file, and a sentence about each file that cannot be read; raise if there is no run."""
    found, faults = {}, []
    for file in (file for each in FOLDERS for file in sorted((folder / each).glob("*.json"))):
        try:
            found[file] = read(file)
        except InputError as error:
            faults.append(str(error))
    if not found:
        none = f"no records in {folder}: train something first, or name another folder"
        raise InputError(faults[0] if faults else none)
    return found, faults


def write_folder(folder: Path, file: Path) -> tuple[list[Comparison], list[Record], list[str]]:
    """Write the page about the runs in a folder; return its comparisons, all runs, and what cannot be read."""
    runs, faults = read_runs(folder)
    analyses = [read_analysis(each) for each in sorted((folder / "analysis").glob("*.json"))]
    return write(file, runs, analyses), list(runs.values()), faults


def write(file: Path, runs: Mapping[Path, Record], analyses: Iterable[AnalysisRecord] = ()) -> list[Comparison]:
    """Write the page about runs, given by the file of their record, and return its comparisons."""
    found = Comparison.of(runs.values())
    answers = Counter(each.standing for each in found)
    text = TEMPLATES.get_template("report.html.jinja").render(
        sections=[(each, each.table(), _analysed(each, analyses)) for each in found],
        headline=", ".join(f"{count} {standing}" for standing, count in answers.items()),
        runs=list(zip(runs, run_list(list(runs.values()), "").values, strict=True)),
        counted=counted,
        described=described,
        chips=lambda each: chips({row.label: row.method for row in each.rows}),
        anchor=lambda each: re.sub(r"[^a-z0-9]+", "-", each.title.lower()).strip("-"),
        library=Markup(_library().replace("</script", "<\\/script")),
        link=lambda record: quote(Path(os.path.relpath(record, file.parent)).as_posix()),
    )
    with replaced(file) as partial:
        partial.write_text(text, encoding="utf-8")
    return found


def _analysed(each: Comparison, analyses: Iterable[AnalysisRecord]) -> list[tuple[Table, list[Chart]]]:
    """The analyses of a comparison; those with the same options stand together."""
    labels = {row.key: row.label for row in each.rows}
    groups: dict[str, list[AnalysisRecord]] = {}
    for analysis in analyses:
        if analysis.run.key in labels:
            groups.setdefault(json.dumps([analysis.kind, analysis.options], sort_keys=True), []).append(analysis)
    kinds = [(restored(group[0]), group) for group in groups.values()]
    return [(kind.table(group, labels), kind.charts(group, labels)) for kind, group in kinds]


def _library() -> str:
    """The JavaScript of Vega-Lite. Bundling it takes seconds, so it is kept in the cache."""
    file = cache_directory() / "javascript" / f"vega-{version('vl-convert-python')}.js"
    if not file.exists():
        import vl_convert

        with replaced(file) as partial:
            bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
            partial.write_text(bundle, encoding="utf-8")
    return file.read_text(encoding="utf-8")
