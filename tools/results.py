"""`python -m tools.results` writes the tables of docs/results.md from results/*.jsonl.

`python -m tools.results add RUNS...` first appends the finished runs, analyses and searches of these folders. It
replaces a line that is there already, so a folder can be added again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gasam.lab import tasks
from gasam.lab.output import Table
from gasam.lab.paper import tables
from gasam.lab.paper.figures import PAPER
from gasam.lab.record import AnalysisRecord, Record, as_json, read_analysis
from gasam.lab.record import read as read_run
from gasam.lab.report.comparison import Comparison

ROOT = Path(__file__).parents[1]
RUNS, ANALYSES = Path("results/runs.jsonl"), Path("results/analyses.jsonl")
PAGE = Path("docs/results.md")
BEGIN, END = "<!-- results -->", "<!-- /results -->"
CURVE = ("epoch", "valid")
"""What a line keeps of an epoch."""
NAMED = 4
"""So many rows that were not run are named; of more, only their number is told."""


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["add"]:
        for folder in map(Path, arguments[1:]):
            add(folder, ROOT)
    elif arguments:
        raise SystemExit(__doc__)
    (ROOT / PAGE).write_text(page(ROOT), encoding="utf-8")


def add(folder: Path, root: Path) -> None:
    """Append what a folder of runs holds."""
    runs = [as_json(read_run(file)) for file in sorted(folder.glob("*.json"))]
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
    """The text of the page. What stands outside of the two marks is written by hand and kept."""
    runs = [Record.model_validate(line) for line in read(root / RUNS)]
    lines = read(root / ANALYSES)
    analyses = [AnalysisRecord.model_validate(line) for line in lines if line["kind"] != "search"]
    sections = [
        at_equal_cost(runs),
        *tables_of_the_paper(runs),
        table4(analyses),
        spectra(analyses),
        *controls(runs),
        searches([line for line in lines if line["kind"] == "search"]),
        how_it_was_run(runs),
    ]
    before, _, rest = (root / PAGE).read_text(encoding="utf-8").partition(BEGIN)
    made = "\n".join(sections)
    return f"{before}{BEGIN}\n\n{made}\n{END}{rest.partition(END)[2]}"


def at_equal_cost(runs: Sequence[Record]) -> str:
    rows = []
    for each in Comparison.of(runs):
        lead = each.lead
        if lead is not None and lead.baseline is not None and lead.difference(lead.baseline) is not None:
            [shown] = [row for row in each.table().rows if row["method"] == lead.label]
            rows.append(
                {
                    "task": each.title,
                    "plain training": lead.baseline.score,
                    "seeds": shown["seeds"],
                    "equal epochs": f"{lead.versus(lead.baseline)} {each.metric.unit_of_differences}",
                    "standing": each.standing,
                    "equal cost": shown["at equal cost"],
                }
            )
    about = "GA-SAM minus plain training. The walk is the recommended one, or the paper's where nothing else was run."
    return section("Does GA-SAM help, and what does the same cost buy without it?", rows, about)


def tables_of_the_paper(runs: Sequence[Record]) -> Iterator[str]:
    """The rows that were run. A row with the runs and the number of an earlier table is only named."""
    seen: set[tuple[str, str, str]] = set()
    for study in map(tables.load, tables.names()):
        table = study.beside(runs, "small")
        rows, known, missing, last = [], dict[str, None](), dict[str, list[str]](), ("", "")
        for row, value in zip(table.rows, table.values, strict=True):
            place = (value["task"], value["key"], value["paper"])
            if value["key"] is None:
                missing.setdefault(row["task"], []).append(row["row"])
            elif place in seen:
                known[row["row"]] = None
            elif (place[0], row["row"]) == last:
                rows.append({**row, "task": "", "row": "", "paper (minus baseline)": ""})
            else:
                rows.append(row)
                last = (place[0], row["row"])
            seen.add(place)
        count = len(study.entries)
        notes = [f"In a table above: {'; '.join(known)}."] if known else []
        for task in study.tasks:
            left = missing.get(task, [])
            if task not in {row["task"] for row in table.rows} or len(left) == count:
                notes.append(f"Not run on {task}.")
            elif left:
                notes.append(
                    f"Not run on {task}: {'; '.join(left) if len(left) <= NAMED else f'{len(left)} of {count} rows'}."
                )
        yield section(study.title, rows, notes=notes)


def table4(analyses: Sequence[AnalysisRecord]) -> str:
    """The metric under attack at the paper's radii, beside the paper's."""
    rows = {
        name: {"radius": name, "paper: baseline": plain, "paper: GA-SAM": walk} for name, (plain, walk) in PAPER.items()
    }
    for each in analyses:
        if each.kind == "attack" and each.options["radii"] and each.run.task == "en-vi":
            norm = "L-inf" if each.options["norm"] == "inf" else f"L{each.options['norm']:g}"
            found = {f"{norm}, {point['radius']:g}": point["metric"] for point in each.found["points"]}
            for name, metric in ({"none": each.found["clean_metric"]} | found).items():
                if name in rows:
                    rows[name][f"ours: {label(each)}"] = f"{metric:.2f}"
    return section("Table 4: BLEU on en-vi under an attack on the weights", list(rows.values()))


def spectra(analyses: Sequence[AnalysisRecord]) -> str:
    rows = [
        {"task": each.run.task, "run": label(each), "largest eigenvalue": f"{each.found['values'][0]:.3f}"}
        for each in analyses
        if each.kind == "spectrum"
    ]
    return section("Figure 3: eigenvalues of the empirical Fisher matrix", rows)


def label(each: AnalysisRecord) -> str:
    return f"{each.run.method}, {each.run.settings['epochs']} epochs"


def controls(runs: Sequence[Record]) -> Iterator[str]:
    """All rows on ptb, which has the controls: masks shared by the passes, and a walk too short to matter."""
    for each in Comparison.of(run for run in runs if run.task == "ptb"):
        yield section(f"All rows on {each.title}", each.table().rows, notes=each.notes()[1:])


def searches(lines: Sequence[Mapping[str, Any]]) -> str:
    """What was tried on validation, with seeds that no result uses."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        scores = [trial["valid"] for trial in line["trials"] if trial["seed"] == line["seed"]]
        known = [score for score in scores if score is not None]
        best = tasks.find(line["task"]).family.metric.best(known, float)
        told = f"{line['method']} {line['quantity']} {best:.2f} ({len(scores)})"
        found.setdefault((line["task"], f"{line['plain']['valid']:.2f}"), []).append(told)
    rows = [
        {"task": task, "plain training": plain, "best trial (number of trials)": "; ".join(told)}
        for (task, plain), told in found.items()
    ]
    cost = sum(line["gradient_evaluations"] for line in lines)
    about = f"No trial sees the test split, and no result uses a seed of a search. Gradient evaluations: {cost:,}."
    return section("Searches on validation", rows, about)


def how_it_was_run(runs: Sequence[Record]) -> str:
    commits = sorted({record.commit[:8] for record in runs if record.commit})
    machines = sorted({str(record.machine.get("cpu")) for record in runs if record.machine.get("cpu")})
    hours = sum(record.seconds for record in runs) / 3600
    return (
        f"## How it was run\n\n{len(runs)} runs took {hours:,.0f} hours of training on {' and '.join(machines)}, "
        f"without a GPU. They come from {len(commits)} commits; each line of `results/runs.jsonl` names its own, "
        "with all settings. Models and, except on imdb, training data are a fraction of the paper's.\n"
    )


def section(title: str, rows: Sequence[Mapping[str, str]], about: str = "", notes: Sequence[str] = ()) -> str:
    table = Table("", rows, notes).markdown()
    return "\n\n".join(filter(None, [f"## {title}", about, table]))


if __name__ == "__main__":
    main(sys.argv[1:])
