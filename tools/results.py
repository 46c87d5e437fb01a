"""`python -m tools.results` writes docs/results.md and the README's table from results/*.jsonl.

`python -m tools.results add RUNS...` first appends the finished runs, analyses and searches of these folders. It
replaces a line that is there already, so a folder can be added again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gasam.lab.output import Table
from gasam.lab.paper import studies
from gasam.lab.paper.figures import PAPER
from gasam.lab.paper.results import paper_table
from gasam.lab.record import AnalysisRecord, Record, as_json, read_all, read_analysis
from gasam.lab.report.comparison import Comparison

ROOT = Path(__file__).parents[1]
RUNS, ANALYSES, PAGE, CONCLUSIONS = (
    Path(name) for name in ("results/runs.jsonl", "results/analyses.jsonl", "docs/results.md", "results/conclusions.md")
)
README, BEGIN, END = Path("README.md"), "<!-- results -->", "<!-- /results -->"
CURVE = ("epoch", "valid")
"""What a line keeps of an epoch."""
HEAD = """# Results

Which of the paper's claims hold in our runs? This page is for readers who decide whether to use GA-SAM, and for those
who know the paper. `make results` writes it from the records in `results/`.

"""
READING = """## How to read the tables

- A score is the mean and the standard deviation over seeds on the test split, of the epoch that validation chose. One
  or two seeds are shown themselves.
- Differences are to plain training with the same settings and seeds. The 95% interval is Student's. It covers the
  randomness of training, not the choice of the test examples, and it is not corrected for the number of rows.
- **reproduced**: our interval says the same as the paper's numbers: better, worse or no clear difference.
  **contradicted**: it says something else. **undecided**: fewer than three seeds, or an interval too wide to tell.
  **not run**: there are no runs of this cell.
- `walk` is the paper's (its epsilon), the recommended one (budget, cap and schedule), or tuned on validation.
- Equal cost compares with plain training that had more epochs and about as many gradient evaluations.
- `passes` and `evaluations` are gradient evaluations, relative to plain training with the same settings.
"""
FIGURES = """## Figures

Figure 3 says that GA-SAM has smaller eigenvalues of the empirical Fisher matrix than plain training. Ours: one run
each. Verdict: undecided. Figures 1, 2, 4 and 5: not run; `gasam reproduce figure1` and so on measure and draw them.
"""


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["add"]:
        for folder in map(Path, arguments[1:]):
            add(folder, ROOT)
    elif arguments:
        raise SystemExit(__doc__)
    (ROOT / PAGE).write_text(page(ROOT), encoding="utf-8")
    (ROOT / README).write_text(readme(ROOT), encoding="utf-8")


def add(folder: Path, root: Path) -> None:
    """Append what a folder of runs holds."""
    runs = [as_json(record) for record in read_all(folder)]
    for run in runs:
        run["curve"] = [{name: point.get(name) for name in CURVE} for point in run["curve"]]
    _merge(root / RUNS, runs)
    found = [as_json(read_analysis(file)) for file in sorted((folder / "analysis").glob("*.json"))]
    searches = [json.loads(file.read_text(encoding="utf-8")) for file in sorted((folder / "search").glob("*.json"))]
    _merge(root / ANALYSES, [*found, *({"kind": "search"} | each for each in searches)])


def _merge(file: Path, new: Iterable[dict[str, Any]]) -> None:
    lines = {_identity(line): line for line in [*read(file), *new]}
    texts = [json.dumps(lines[name], ensure_ascii=False, separators=(",", ":")) for name in sorted(lines)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def _identity(line: Mapping[str, Any]) -> str:
    if "name" in line:
        return str(line["name"])
    parts = [line["kind"], line["run"]["name"] if "run" in line else line, line.get("options")]
    return json.dumps(parts, sort_keys=True)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def page(root: Path) -> str:
    """The text of docs/results.md."""
    runs = [Record.model_validate(line) for line in read(root / RUNS)]
    lines = read(root / ANALYSES)
    analyses = [AnalysisRecord.model_validate(line) for line in lines if line["kind"] != "search"]
    sections = [
        (root / CONCLUSIONS).read_text(encoding="utf-8"),
        at_equal_cost(runs),
        *(table_of_the_paper(name, runs) for name in studies.names()),
        table4(analyses),
        figures(analyses),
        *controls(runs),
        searches([line for line in lines if line["kind"] == "search"]),
        READING,
        how_it_was_run(runs),
    ]
    return HEAD + "\n".join(sections)


def readme(root: Path) -> str:
    """The text of README.md with its table."""
    before, _, rest = (root / README).read_text(encoding="utf-8").partition(BEGIN)
    runs = [Record.model_validate(line) for line in read(root / RUNS)]
    return f"{before}{BEGIN}\n\n{in_readme(runs)}\n{END}{rest.partition(END)[2]}"


def at_equal_cost(runs: Sequence[Record]) -> str:
    rows = []
    for each in Comparison.of(runs):
        lead = each.lead
        if lead is not None and lead.difference(lead.baseline) is not None and lead.baseline is not None:
            [shown] = [row for row in each.table().rows if row["method"] == lead.label]
            unit = each.metric.unit_of_differences
            rows.append(
                {
                    "task": each.title,
                    "plain training": lead.baseline.score,
                    "seeds": shown["seeds"],
                    "GA-SAM minus plain training, equal epochs": f"{lead.versus(lead.baseline)} {unit}",
                    "standing": each.standing,
                    "equal cost": shown["at equal cost"],
                }
            )
    about = "The walk is the recommended one, or the paper's where nothing else was run."
    return (
        f"## Does GA-SAM help, and what does the same cost buy without it?\n\n{about}\n\n{Table('', rows).markdown()}"
    )


def table_of_the_paper(name: str, runs: Sequence[Record]) -> str:
    """The rows that were run, and the names of those that were not."""
    study = studies.load(name)
    table = paper_table(study, runs, "small")
    ran = [row for row in table.rows if row["ours"] != "not run"]
    missing: dict[str, list[str]] = {}
    for row in table.rows:
        if row["ours"] == "not run":
            missing.setdefault(row["task"], []).append(row["row"])
    told = [f"Not run on {task}: {'; '.join(rows)}." for task, rows in missing.items() if len(rows) < len(study.rows)]
    whole = [task for task in study.tasks if not any(row["task"] == task for row in ran)]
    told += [f"Not run at all: {', '.join(whole)}."] if whole else []
    cost = f"At the paper's size: {study.cost.removesuffix(' at size paper')}."
    return f"## {study.title}\n\n{Table(table.title, ran, [*told, cost]).markdown()}"


def table4(analyses: Sequence[AnalysisRecord]) -> str:
    """The metric under attack at the paper's radii, beside the paper's."""
    found: dict[str, dict[str, str]] = {name: {} for name in PAPER}
    for each in analyses:
        if each.kind == "attack" and each.options["radii"] and each.run.task == "en-vi":
            norm = "L-inf" if each.options["norm"] == "inf" else f"L{each.options['norm']:g}"
            found["none"][label(each)] = f"{each.found['clean_metric']:.2f}"
            for point in each.found["points"]:
                found[f"{norm}, {point['radius']:g}"][label(each)] = f"{point['metric']:.2f}"
    rows = [
        {"radius": name, "paper: baseline": plain, "paper: GA-SAM": walked, **found[name]}
        for name, (plain, walked) in PAPER.items()
    ]
    told = "Verdict: undecided, because each configuration has one run. The radii are absolute; our model is smaller."
    return f"## Table 4: BLEU on en-vi under an attack on the weights\n\n{told}\n\n{Table('', rows).markdown()}"


def figures(analyses: Sequence[AnalysisRecord]) -> str:
    rows = [
        {"task": each.run.task, "run": label(each), "largest eigenvalue": f"{each.found['values'][0]:.3f}"}
        for each in analyses
        if each.kind == "spectrum"
    ]
    return f"{FIGURES}\n{Table('', rows).markdown()}"


def label(each: AnalysisRecord) -> str:
    return f"{each.run.method}, {each.run.settings['epochs']} epochs"


def controls(runs: Sequence[Record]) -> Iterator[str]:
    """All rows on ptb, which has the controls: masks shared by the passes, and a walk too short to matter."""
    yield "## Controls and other walks on ptb\n\nThe rows of other tasks are lines of `results/runs.jsonl`.\n"
    for each in Comparison.of(run for run in runs if run.task == "ptb"):
        table = each.table()
        yield f"### {each.title}\n\n{Table(table.title, table.rows, each.notes()[1:]).markdown()}"


def in_readme(runs: Sequence[Record]) -> str:
    """The README's table: plain training, plain training of equal cost, SAM and GA-SAM."""
    columns: dict[str, dict[str, str]] = {}
    for each in Comparison.of(run for run in runs if run.size == "small" and run.task in ("imdb", "ptb")):
        lead = each.lead
        assert lead is not None
        sam = next(row for row in each.rows if row.method == "sam" and row.walk.source == "recommended")
        plain = {"Plain training": lead.baseline, "Plain training of equal cost": lead.equal_cost}
        for name, row in (plain | {"SAM": sam, "GA-SAM": lead}).items():
            assert row is not None
            better = "" if each.metric.higher_is_better else " (lower is better)"
            title = f"{each.records[0].task}, {each.metric.name}{better}"
            difference = f" ({row.versus(row.baseline)})" if row.baseline is not None else ""
            columns.setdefault(name, {"method": name})[title] = row.numbers + difference
    told = "Mean and deviation over four seeds, and in brackets the difference to plain training with its 95% interval."
    return f"{Table('', list(columns.values())).markdown()}\n{told}\n"


def searches(lines: Sequence[Mapping[str, Any]]) -> str:
    """What was chosen on validation, with seeds that no result uses."""
    rows = [
        {
            "task": line["task"],
            "method": line["method"],
            "what": line["quantity"],
            "trials": str(sum(trial["seed"] == line["seed"] for trial in line["trials"])),
            "plain training": f"{line['plain']['valid']:.2f}",
            "best trial": f"{best(line):.2f}",
            "gradient evaluations": f"{line['gradient_evaluations']:,}",
        }
        for line in lines
    ]
    told = "No trial sees the test split, and no result uses a seed of a search."
    return f"## Searches on validation\n\n{told}\n\n{Table('', rows).markdown()}"


def best(line: Mapping[str, Any]) -> float:
    scores = [
        trial["valid"] for trial in line["trials"] if trial["valid"] is not None and trial["seed"] == line["seed"]
    ]
    return min(scores) if line["task"] == "ptb" else max(scores)


def how_it_was_run(runs: Sequence[Record]) -> str:
    commits = sorted({record.commit[:8] for record in runs if record.commit})
    machines = sorted({str(record.machine.get("cpu")) for record in runs if record.machine.get("cpu")})
    hours = sum(record.seconds for record in runs) / 3600
    return (
        f"## How it was run\n\n{len(runs)} runs took {hours:,.0f} hours of training on {' and '.join(machines)}, "
        f"without a GPU. They come from {len(commits)} commits; each line of `results/runs.jsonl` names its own, "
        "with all settings. Models and, except on imdb, training data are a fraction of the paper's.\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
