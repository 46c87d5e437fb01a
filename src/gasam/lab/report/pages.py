"""The pages of results, README's part and their pictures: made from the records, and compared with what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from gasam.lab.errors import InputError
from gasam.lab.paper.figures import paper_table
from gasam.lab.report import contents, findings, sections
from gasam.lab.report.comparison import described
from gasam.lab.report.contents import Contents
from gasam.lab.report.history import history_table
from gasam.lab.report.pictures import svg
from gasam.lab.report.section import Section, origin
from gasam.lab.report.summary import answers, overview
from gasam.lab.report.versions import replaced_versions
from gasam.lab.storage import replaced
from gasam.lab.tables import as_csv, markdown
from gasam.lab.tasks import TASKS

SUMMARY, PAGES, README = map(Path, ("docs/results.md", "docs/results", "README.md"))
FIGURES, FILES = Path("docs/figures"), Path("docs/data")
BEGIN, END = "<!-- results -->", "<!-- /results -->"
TEMPLATES = Environment(
    loader=PackageLoader("gasam.lab.report"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
TEMPLATES.filters |= {"markdown": markdown, "described": described}
TEMPLATES.globals.update(
    history=history_table, answers=answers, overview=overview, findings=findings, origin=origin, table4=paper_table
)


def write(root: Path) -> list[Path]:
    """Bring the pages, README and every picture up to date with the records; gives the files that changed."""
    changed = {file: text for file, text in made(root).items() if _read(file) != text}
    for file, text in changed.items():
        with replaced(file) as partial:
            partial.write_text(text, encoding="utf-8")
    return list(changed)


def stale(root: Path) -> list[str]:
    """The files that are not what the records say, or are not there, as seen from the root."""
    return [str(file.relative_to(root)) for file, text in made(root).items() if _read(file) != text]


def made(root: Path) -> dict[Path, str]:
    """What the generated files have to hold: the pages, README, and the pictures and files that pages link to."""
    found = contents.read(root / "results")
    before, begin, rest = _read(root / README).partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{root / README} has no place for results: give it the lines {BEGIN} and {END}")
    shown = sections.every(found)
    texts = pages(found, shown) | {README: f"{before}{BEGIN}\n\n{rendered('readme', found)}\n{END}{after}"}
    for section in (section for some in shown.values() for section in some):
        texts |= {FIGURES / f"{name}.svg": svg(figure) for name, figure in section.pictures.items()}
        texts |= {FILES / f"{name}.csv": as_csv(table) for name, table in section.files.items()}
    return {root / file: text for file, text in texts.items()}


def pages(found: Contents, shown: Mapping[str, Sequence[Section]]) -> dict[Path, str]:
    """All pages. The embedded twins and the user's own data are no evidence: only searches show them."""
    texts = {SUMMARY: rendered("results", found, pages=list(shown))}
    if found.evidence:
        texts[PAGES / "reading.md"] = rendered("reading", found, pages=list(shown))
    for page, some in shown.items():
        template = "task" if page in TASKS else page
        task, older = TASKS.get(page), page in TASKS and replaced_versions(found, page)
        texts[PAGES / f"{page}.md"] = rendered(
            template, found, page=page, pages=list(shown), task=task, older=older, sections=some
        )
    return texts


def rendered(template: str, found: Contents, **values: object) -> str:
    return f"{TEMPLATES.get_template(f'{template}.md.jinja').render(contents=found, **values).strip()}\n"


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""
