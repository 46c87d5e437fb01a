"""The page of results, README's part and their pictures: made from the records, and compared with what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from gasam.lab.errors import InputError
from gasam.lab.paper import studies
from gasam.lab.paper.figures import paper_table
from gasam.lab.report import contents, sections
from gasam.lab.report.comparison import described
from gasam.lab.report.contents import FLATNESS, Contents
from gasam.lab.report.costs import hours_table, pilot_table
from gasam.lab.report.flatness import flatness_table
from gasam.lab.report.paper_tables import tally
from gasam.lab.report.pictures import svg
from gasam.lab.report.readme import headline, overview
from gasam.lab.report.sections import Section, origin
from gasam.lab.storage import replaced
from gasam.lab.tables import markdown
from gasam.lab.tasks import SIZE_NAMES, TASKS

PAGE, README, FIGURES = Path("docs/results.md"), Path("README.md"), Path("docs/figures")
BEGIN, END = "<!-- results -->", "<!-- /results -->"
PILOT = "small"
"""The size whose cost is shown."""
TEMPLATES = Environment(
    loader=PackageLoader("gasam.lab.report"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
TEMPLATES.filters["markdown"] = markdown


def write(root: Path) -> list[Path]:
    """Bring the page, README and every picture up to date with the records; gives the files that changed."""
    changed = {file: text for file, text in made(root).items() if _read(file) != text}
    for file, text in changed.items():
        with replaced(file) as partial:
            partial.write_text(text, encoding="utf-8")
    return list(changed)


def stale(root: Path) -> list[str]:
    """The files that are not what the records say, or are not there, as seen from the root."""
    return [str(file.relative_to(root)) for file, text in made(root).items() if _read(file) != text]


def made(root: Path) -> dict[Path, str]:
    """What the generated files have to hold: the page, README and every picture that the page shows."""
    found = contents.read(root / "results")
    before, begin, rest = _read(root / README).partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{root / README} has no place for results: give it the lines {BEGIN} and {END}")
    shown = sections.every(found)
    texts = {PAGE: page(found, shown), README: f"{before}{BEGIN}\n\n{block(found)}\n{END}{after}"}
    for chapter in shown.values():
        for section in chapter:
            texts |= {FIGURES / f"{name}.svg": svg(figure) for name, figure in section.pictures.items()}
    return {root / file: text for file, text in texts.items()}


def page(found: Contents, shown: Mapping[str, Sequence[Section]] | None = None) -> str:
    """`docs/results.md`. The embedded twins and the user's own data are no evidence: only searches show them."""
    every, records = studies.every(), found.evidence
    tasks = list(dict.fromkeys(task for study in every for task in study.tasks))
    pilot = any(record.size == PILOT for record in records)
    flat = flatness_table(found.analyses)
    text = TEMPLATES.get_template("results.md.jinja").render(
        headline=list(headline(records)),
        metrics={task: described(TASKS[task].family.metric) for task in tasks},
        evidence=bool(records),
        verdicts={size: tally(every, records, size) for size in SIZE_NAMES if size in {run.size for run in records}},
        costs=[pilot_table(records, tasks, PILOT), hours_table(every, records, PILOT)] if pilot else [],
        flatness=flat,
        flatness_remarks=found.remarks.get(FLATNESS, {}),
        flatness_origin=origin([each for _, some in found.analyses for each in some], "record") if flat else "",
        table4=paper_table(),
        **(shown or sections.every(found)),
    )
    return f"{text.strip()}\n"


def block(found: Contents) -> str:
    """README's part."""
    records = found.evidence
    table = overview(records) if records else None
    return TEMPLATES.get_template("readme.md.jinja").render(headline=list(headline(records)), table=table)


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""
