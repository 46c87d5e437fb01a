"""The page of results and the README's table: made from the records in `results/`, and checked against them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from gasam.analysis import pictures
from gasam.lab import records
from gasam.lab.errors import InputError
from gasam.lab.paper import studies
from gasam.lab.paper.studies import Study
from gasam.lab.records import RunRecord
from gasam.lab.report import measured, remarks, searches
from gasam.lab.report.budgets import budget_table
from gasam.lab.report.comparison import comparison, study_table
from gasam.lab.report.costs import hours_table, pilot_table
from gasam.lab.report.groups import grouped
from gasam.lab.report.headline import headline
from gasam.lab.report.matching import study_groups
from gasam.lab.report.noise import shared_masks
from gasam.lab.report.origins import commands, origin, study_commands
from gasam.lab.report.paper import claims, metrics
from gasam.lab.report.paragraphs import paragraph, verdict_table
from gasam.lab.report.readme import NOTHING, block, evidence, of_kind
from gasam.lab.report.remarks import Remarks
from gasam.lab.report.verdicts import DEFINITION
from gasam.lab.search import finding
from gasam.lab.search.finding import Finding
from gasam.lab.storage import replaced
from gasam.lab.tables import markdown
from gasam.lab.tasks import RECORDED_SIZES, SIZE_NAMES, TASKS

PAGE, README = Path("docs/results.md"), Path("README.md")
BEGIN, END = "<!-- results -->", "<!-- /results -->"
PILOT = "small"
"""The size whose cost is told."""


def write(root: Path) -> list[Path]:
    """Bring both files and the pictures up to date with the records; gives the files that changed."""
    made = _made(root)
    changed = [file for file, text in made.items() if _read(file) != text]
    missing = _missing_pictures(root, made[root / PAGE])
    for file in changed:
        with replaced(file) as partial:
            partial.write_text(made[file], encoding="utf-8")
    if changed or missing:
        found = list(finding.read_all(root / "results"))
        for name, figure in chain(measured.pictures(root), searches.pictures(found)):
            pictures.save(figure, root / PAGE.parent / "figures" / name, kinds=("svg",))
    return [*changed, *missing]


def stale(root: Path) -> list[str]:
    """The files that are not what the records say, or are not there, as seen from the root."""
    made = _made(root)
    changed = [file for file, text in made.items() if _read(file) != text]
    return [str(file.relative_to(root)) for file in (*changed, *_missing_pictures(root, made[root / PAGE]))]


def _missing_pictures(root: Path, page: str) -> list[Path]:
    linked = (root / PAGE.parent / name for name in dict.fromkeys(re.findall(r"\]\((figures/[^)]+)\)", page)))
    return [file for file in linked if not file.exists()]


def page(
    found: Sequence[RunRecord],
    *,
    findings: Sequence[Finding] = (),
    remarked: Remarks | None = None,
    analysed: Iterable[str] = (),
) -> str:
    """`docs/results.md`, with what was tuned, what people remark and the sections of what was `analysed`. The embedded
    twins and the user's own data are no evidence and are left out."""
    shown, analyses = evidence(found), list(analysed)
    flat = f"## {measured.FLATNESS}" in analyses
    parts = [
        "# Results",
        "Made by `gasam results --write .` from the records in `results/`; only the remarks that end some paragraphs "
        "are written by hand, in `results/remarks.toml`. Mean ± standard deviation (n - 1) over seeds, on the test "
        "split, of the epoch that validation chose, for translation of the average of the last epochs. Differences "
        "to the baseline with the same settings are paired by seed, with Student's 95% interval. Gradient evaluations "
        "are forward and backward passes: a walk of K steps needs K + 1 of them. Dropout masks are drawn anew in every "
        "pass, unless a row says `same noise`: then a step's passes share them. Commands after `Again` leave out what "
        "has a record in their "
        "`--out`.",
        *headline(shown),
        "## What the paper says",
        "Mean ± standard deviation over four runs, as printed; differences are computed from the printed means. "
        f"{metrics()}.",
        "\n".join(f"- {line}" for line in claims()),
        *(_verdicts(shown) if shown else ["## What was measured", NOTHING]),
        *[f"Table 4 and Figure 3 are judged below [{measured.FLATNESS}](#{measured.FLATNESS.lower()})."] * flat,
        *_costs(shown),
        *searches.sections(findings, found, (remarked or {}).get(remarks.SEARCH)),
        *_tasks(shown),
        *_budgets(shown),
        *_masks(shown),
        *_studies(shown, remarked or {}),
        *analyses,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _made(root: Path) -> dict[Path, str]:
    folder = root / "results"
    found = list(records.read_all(folder))
    text = _read(root / README)
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{root / README} has no place for results: give it the lines {BEGIN} and {END}")
    remarked = remarks.read(folder)
    made = page(
        found,
        findings=list(finding.read_all(folder)),
        remarked=remarked,
        analysed=measured.sections(root, remarked.get(remarks.FLATNESS)),
    )
    return {root / PAGE: made, root / README: f"{before}{BEGIN}\n\n{block(found)}\n{END}{after}"}


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _every_study() -> list[Study]:
    return [studies.load(name) for name in studies.names()]


def _verdicts(found: Sequence[RunRecord]) -> Iterator[str]:
    yield "## Verdicts"
    yield DEFINITION
    for size in SIZE_NAMES:
        if any(record.size == size for record in found):
            yield (
                f"Cells of the paper's tables at size {size}, the baseline's left out; one seed or a baseline that "
                "diverged is undecided too:"
            )
            yield markdown(verdict_table(_every_study(), found, size))


def _costs(found: Sequence[RunRecord]) -> Iterator[str]:
    if not any(record.size == PILOT for record in found):
        return
    yield "## What it costs"
    yield (
        f"Size {PILOT}: the median of the records' seconds of training, on a machine that other work shared: gradient "
        "evaluations are the cost to compare. A run of the tables below costs the baseline's seconds times its "
        "gradient evaluations a step."
    )
    every = _every_study()
    yield markdown(pilot_table(found, dict.fromkeys(task for study in every for task in study.tasks), PILOT))
    yield markdown(hours_table(every, found, PILOT))


def _tasks(found: Sequence[RunRecord]) -> Iterator[str]:
    for task, definition in TASKS.items():
        for size in RECORDED_SIZES:
            if some := of_kind(found, task, size):
                yield f"## {task}, size {size}"
                yield f"{definition.about[0].upper()}{definition.about[1:]}."
                yield markdown(comparison(found, task, size))
                yield origin(some, commands(grouped(some)))


def _budgets(found: Sequence[RunRecord]) -> Iterator[str]:
    kinds = [(task, size) for task in TASKS for size in RECORDED_SIZES if of_kind(found, task, size)]
    made = {kind: budget_table(found, *kind) for kind in kinds}
    shown = [table for table in made.values() if table is not None]
    if shown:
        yield "## Two budgets"
        yield (
            "A walk of K steps spends K + 1 times the gradient evaluations of plain training for as many epochs. Here "
            "each method stands beside the baseline with as many epochs, and beside one that was trained for longer, "
            "until it had spent as much within 10%; of several such the one that validation prefers. To win means that "
            "both intervals say so; one that holds zero leaves it undecided."
        )
    for table in shown:
        yield f"### Budgets on {table.title.partition(':')[0]}"
        yield markdown(table)
    if shown and (lacking := [f"{task}, size {size}" for (task, size), table in made.items() if table is None]):
        yield f"Without a baseline that was trained longer, not run: {'; '.join(lacking)}."


def _masks(found: Sequence[RunRecord]) -> Iterator[str]:
    kinds = [of_kind(found, task, size) for task in TASKS for size in RECORDED_SIZES]
    sentences = [sentence for some in kinds for sentence in shared_masks(grouped(some))]
    if sentences:
        yield "## Shared dropout masks"
        yield "\n".join(f"- {sentence}" for sentence in sentences)


def _studies(found: Sequence[RunRecord], remarked: Remarks) -> Iterator[str]:
    """The paper's tables; one that would only repeat runs of those before it waits until it has some of its own."""
    seen: list[RunRecord] = []
    told: set[tuple[str, str]] = set()
    for study in _every_study():
        for size in SIZE_NAMES:
            by_task = {task: study_groups(study, found, task, size) for task in study.tasks}
            groups = [group for some in by_task.values() for group in some]
            runs = [run for group in groups for run in group.runs]
            if any(run not in seen and run.method != "baseline" for run in runs):
                yield f"## {study.title}, size {size}"
                yield markdown(replace(study_table(study, found, size), notes=()))
                for task, some in by_task.items():
                    remark = remarked.get(study.name, {}).get(task, "")
                    yield paragraph(study, task, size, some, remark, again=(task, size) in told)
                    told |= {(task, size)} if some else set()
                yield origin(runs, study_commands(study, size, by_task))
            seen += runs
