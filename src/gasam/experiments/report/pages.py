"""The page of results and the README's table: made from the records in `results/`, and checked against them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gasam.analysis import pictures
from gasam.experiments import records, studies, tasks
from gasam.experiments.errors import InputError
from gasam.experiments.methods import METHODS
from gasam.experiments.records import Record
from gasam.experiments.report import cells, measured
from gasam.experiments.report.comparison import comparison, data_notes, described, study_table
from gasam.experiments.report.groups import Group, baseline_of, grouped, labels
from gasam.experiments.report.matching import paper_of, study_groups
from gasam.experiments.report.tables import Table, markdown
from gasam.experiments.sizes import SIZE_NAMES
from gasam.experiments.storage import replaced
from gasam.experiments.studies import Study
from gasam.experiments.tasks import TASKS

PAGE, README = Path("docs/results.md"), Path("README.md")
BEGIN, END = "<!-- results -->", "<!-- /results -->"
NOTHING = "Nothing has been measured on the paper's tasks yet: no record is in `results/`."


def write(root: Path) -> list[Path]:
    """Bring both files and the pictures up to date with the records; gives the files that changed."""
    made = _made(root)
    changed = [file for file, text in made.items() if _read(file) != text]
    for file in changed:
        with replaced(file) as partial:
            partial.write_text(made[file], encoding="utf-8")
    if changed:
        for name, figure in measured.pictures(root):
            pictures.save(figure, root / PAGE.parent / "figures" / name, kinds=("svg",))
    return changed


def stale(root: Path) -> list[str]:
    """The files that are not what the records say, as seen from the root."""
    return [str(file.relative_to(root)) for file, text in _made(root).items() if _read(file) != text]


def page(found: Sequence[Record], analysed: Iterable[str] = ()) -> str:
    """`docs/results.md`, with the sections of what was `analysed`. The embedded twins and the user's own data are no
    evidence and are left out."""
    shown = evidence(found)
    parts = [
        "# Results",
        "Made by `gasam results --write .` from the records in `results/`; no number is typed by hand. Mean ± standard "
        "deviation (n - 1) over seeds, on the test split, of the weights that validation chose. Differences to the "
        "baseline are paired by seed, with Student's 95% interval. Gradient evaluations are forward and backward "
        "passes: a walk of K steps needs K + 1 of them.",
        "## What the paper says",
        "Mean ± standard deviation over four runs, as printed; differences are computed from the printed means. "
        f"{_metrics()}.",
        "\n".join(f"- {line}" for line in _paper()),
        *(_tasks(shown) if shown else ["## What was measured", NOTHING]),
        *_studies(shown),
        *analysed,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def block(found: Sequence[Record]) -> str:
    """README's part: for each task the size nearest to the paper's, a row for each method of which there is a run."""
    shown = evidence(found)
    if not shown:
        return f"{NOTHING}\n"
    kinds = {task: size for size in reversed(SIZE_NAMES) for task in TASKS if _some(shown, task, size)}
    columns = {(task, kinds[task]): grouped(_some(shown, task, kinds[task])) for task in TASKS if task in kinds}
    differing = {task: "; ".join(data_notes(groups)) for (task, _), groups in columns.items()}
    notes = [
        *(f"{task}: {text}." for task, text in differing.items() if text),
        "`small` models are a fraction of the paper's: all numbers that differ, intervals, cost and every run are on "
        "the [results page](docs/results.md).",
    ]
    return markdown(_overview(columns, notes))


def evidence(found: Sequence[Record]) -> list[Record]:
    return [record for record in found if tasks.find(record["task"]).kind == "paper"]


def _made(root: Path) -> dict[Path, str]:
    found = list(records.read_all(root / "results"))
    text = _read(root / README)
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{root / README} has no place for results: give it the lines {BEGIN} and {END}")
    return {
        root / PAGE: page(found, measured.sections(root)),
        root / README: f"{before}{BEGIN}\n\n{block(found)}\n{END}{after}",
    }


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _some(found: Sequence[Record], task: str, size: str) -> list[Record]:
    return [record for record in found if (record["task"], record["size"]) == (task, size)]


def _metrics() -> str:
    named = dict.fromkeys(task for name in studies.names() for task in studies.load(name).tasks)
    return "; ".join(f"{task}: {described(TASKS[task].family.metric)}" for task in named)


def _paper() -> Iterator[str]:
    """For each table and task the paper's baseline and its best row; then where its printed differences slip."""
    every = [studies.load(name) for name in studies.names()]
    for study in every:
        yield f"{study.title}. {'; '.join(_best(study, task) for task in study.tasks)}. ({study.cost}.)"
    for study in every:
        for row, task in study.slips():
            table, printed = study.title.partition(":")[0], row.expected[task].slip
            means = f"{study.difference(row, task):+}"
            yield f"{table} prints {printed} for {row.label} on {task}, where its means give {means}."


def _best(study: Study, task: str) -> str:
    choose = max if TASKS[task].family.metric.higher_is_better else min
    row = choose((row for row in study.rows if task in row.expected), key=lambda row: row.expected[task].mean)
    gain = study.difference(row, task)
    won = "is best" if gain is None else f"{row.label} {row.expected[task].text} ({gain:+}) is best"
    return f"{task}: baseline {study.rows[0].expected[task].text}, {won}"


def _tasks(found: Sequence[Record]) -> Iterator[str]:
    for task, definition in TASKS.items():
        for size in SIZE_NAMES:
            if some := _some(found, task, size):
                yield f"## {task}, size {size}"
                yield f"{definition.about[0].upper()}{definition.about[1:]}."
                yield markdown(comparison(found, task, size))
                yield _origin(some, _commands(grouped(some)))


def _studies(found: Sequence[Record]) -> Iterator[str]:
    """The paper's tables; one that would only repeat runs of those before it waits until it has some of its own."""
    seen: list[Record] = []
    for study in map(studies.load, studies.names()):
        for size in SIZE_NAMES:
            runs = [r for task in study.tasks for group in study_groups(study, found, task, size) for r in group.runs]
            if any(run not in seen and run["method"] != "baseline" for run in runs):
                yield f"## {study.title}, size {size}"
                yield markdown(study_table(study, found, size))
                yield _origin(runs, [f"gasam reproduce {study.name} --size {size}"])
            seen += runs


def _origin(runs: Sequence[Record], commands: Sequence[str]) -> str:
    commits = ", ".join(dict.fromkeys(_commit(run) for run in runs))
    again = ", ".join(f"`{command}`" for command in commands)
    return f"From {cells.counted(len(runs), 'run')} of {commits}. Again: {again}."


def _commands(groups: Sequence[Group]) -> list[str]:
    """What runs all of them: those that need the same options by one command."""
    alike: dict[str, list[Group]] = {}
    for group in groups:
        alike.setdefault(_options(group), []).append(group)
    return [
        f"gasam compare {some[0].task} --size {some[0].size} "
        f"--methods {','.join(dict.fromkeys(group.method for group in some))} "
        f"--seeds {max(run['seed'] for group in some for run in group.runs)}{options}"
        for options, some in alike.items()
    ]


def _options(group: Group) -> str:
    settings, walk = dict(group.other_settings), group.other_walk()
    words = [f" --epochs {settings.pop('epochs')}"] if "epochs" in settings else []
    words += [" --same-noise"] if walk.pop("same_noise", False) else []
    words += [f" --set {name}={json.dumps(value, separators=(',', ':'))}" for name, value in settings.items()]
    return "".join(words + [f" --walk {group.method}.{name}={value}" for name, value in walk.items()])


def _commit(run: Record) -> str:
    if run["commit"] is None:
        return "an unknown commit"
    return f"commit {run['commit'][:7]}" + (" with changes" if run.get("dirty") else "")


def _overview(columns: dict[tuple[str, str], list[Group]], notes: Sequence[str]) -> Table:
    """A method a row and a task a column, as in the paper's Table 1; each method in its most usual configuration."""
    chosen: dict[str, dict[str, str]] = {}
    for (task, _), groups in columns.items():
        for group, name in zip(groups, labels(groups), strict=True):
            text = _brief(group, groups) + name.removeprefix(METHODS[group.method].title)
            chosen.setdefault(group.method, {}).setdefault(task, text)
    heads = [
        f"{task}, size {size}: {described(TASKS[task].family.metric)}; {_seeds(groups)}"
        for (task, size), groups in columns.items()
    ]
    rows = tuple(
        (METHODS[name].title, *(chosen[name].get(task, "not run") for task, _ in columns))
        for name in METHODS
        if name in chosen
    )
    return Table("Results", ("method", *heads), rows, tuple(notes))


def _brief(group: Group, groups: Sequence[Group]) -> str:
    baseline, paper = baseline_of(group, groups), paper_of(group)
    mean = cells.result(group).text.partition(" (")[0]
    if group.method == "baseline":
        return mean if paper is None else f"{mean} (paper {paper.expected.mean})"
    gain = cells.difference(group, baseline).text.partition(" ")[0] if baseline else ""
    theirs = f"paper {paper.difference:+}" if paper and paper.difference is not None else ""
    return f"{mean} ({', '.join(filter(None, (gain, theirs)))})" if gain or theirs else mean


def _seeds(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups})
    return cells.counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
