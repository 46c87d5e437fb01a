"""The HTML report: one page that works without a network, because it holds its charts' library and data."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
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
"""So many configurations are drawn at first; of more, many lines cannot be told apart."""
TEMPLATES = Environment(
    loader=PackageLoader("gasam.lab.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip
TEMPLATES.policies["json.dumps_kwargs"] = {"allow_nan": False}
TEMPLATES.globals.update(counted=counted, shown=lambda number: _shown(number))


class Analysed(NamedTuple):
    """An analysis of the runs of a comparison."""

    table: Table
    charts: Sequence[Chart]


class Chip(NamedTuple):
    """A button that shows and hides a configuration."""

    label: str
    colour: str
    dashes: Sequence[int]
    shown: bool


class Section:
    """A comparison with its charts and the analyses of its runs, for the page."""

    def __init__(self, comparison: Comparison, step_times: Mapping[str, float], analyses: Sequence[Analysed]) -> None:
        self.title, self.answer, self.standing = comparison.title, comparison.answer, comparison.standing
        self.anchor = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        self.metric, self.analyses = described(comparison.metric), analyses
        self.table, self.charts, self.walks = comparison.table(step_times), comparison.charts(), comparison.walks()
        self.runs, self.names = len(comparison.records), chips({row.label: row.method for row in comparison.rows})


def chips(methods: Mapping[str, str]) -> list[Chip]:
    """The configurations of a section; if they are many, the first one of each method is drawn at first."""
    colours, dashes = (each["scale"]["range"] for each in styled(methods))
    first = {method: label for label, method in reversed(list(methods.items()))}
    main = list(methods) if len(methods) <= SHOWN else [label for label in methods if label in first.values()][:SHOWN]
    return [Chip(*each, each[0] in main) for each in zip(methods, colours, dashes, strict=True)]


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


def sections(
    runs: Iterable[Record], step_times: Mapping[str, float], analyses: Sequence[AnalysisRecord] = ()
) -> list[Section]:
    """A section for each task, size and data.

    Args:
        runs: The runs to show.
        step_times: Times of a step relative to plain training, by the key of the record.
        analyses: Analyses of these runs.
    """
    return [Section(each, step_times, _analysed(analyses, each)) for each in Comparison.of(runs)]


def of_folder(folder: Path) -> tuple[list[Section], dict[Path, Record], list[str]]:
    """The sections for the runs in a folder with their analyses, the runs by file, and what cannot be read."""
    runs, faults = read_runs(folder)
    analyses = [read_analysis(file) for file in sorted((folder / "analysis").glob("*.json"))]
    return sections(runs.values(), _step_times(folder / "tables"), analyses), runs, faults


def write(found: Sequence[Section], runs: Mapping[Path, Record], file: Path) -> None:
    """Write the page.

    Args:
        found: The sections of the page.
        runs: All runs, by the file of their record.
        file: Where to write it. Links to records are relative to its folder.
    """
    answers = Counter(section.standing for section in found)
    text = TEMPLATES.get_template("report.html.jinja").render(
        sections=found,
        headline=", ".join(f"{count} {standing}" for standing, count in answers.items()),
        runs=list(zip(runs, run_list(list(runs.values()), "").values, strict=True)),
        library=Markup(_library().replace("</script", "<\\/script")),
        link=lambda record: quote(Path(os.path.relpath(record, file.parent)).as_posix()),
    )
    with replaced(file) as partial:
        partial.write_text(text, encoding="utf-8")


def _analysed(analyses: Iterable[AnalysisRecord], comparison: Comparison) -> list[Analysed]:
    """The analyses of the runs of a comparison, those with the same options together."""
    labels = {row.key: row.label for row in comparison.rows}
    groups: dict[str, list[AnalysisRecord]] = {}
    for each in analyses:
        if each.run.key in labels:
            groups.setdefault(json.dumps([each.kind, each.options], sort_keys=True), []).append(each)
    found = [(restored(group[0]), group) for group in groups.values()]
    return [Analysed(kind.table(some, labels), kind.charts(some, labels)) for kind, some in found]


def _step_times(folder: Path) -> dict[str, float]:
    """Those that `gasam compare` wrote into its tables, by the key of the record."""
    found: dict[str, float] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
            found |= {row["key"]: float(row["step_time"]) for row in rows if row.get("step_time") is not None}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{file} is not a table of this program: delete it and run the comparison again") from None
    return found


def _shown(number: float | None) -> str:
    """A number in the table of runs; a run that diverged has no score."""
    return "diverged" if number is None else f"{number:,.2f}" if isinstance(number, float) else f"{number:,}"


def _library() -> str:
    """The JavaScript of Vega-Lite. Bundling it takes seconds, so it is kept in the cache."""
    file = cache_directory() / "javascript" / f"vega-{version('vl-convert-python')}.js"
    if not file.exists():
        import vl_convert

        with replaced(file) as partial:
            bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
            partial.write_text(bundle, encoding="utf-8")
    return file.read_text(encoding="utf-8")
