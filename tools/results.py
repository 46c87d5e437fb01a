"""`python -m tools.results` writes the tables of docs/results.md from results/*.jsonl.

`python -m tools.results add RUNS...` first appends the finished runs, analyses and searches of these folders. It
replaces a line that is there already, so a folder can be added again.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gasam.lab import tasks
from gasam.lab.methods import find_method
from gasam.lab.output import FEW, Table
from gasam.lab.paper import tables
from gasam.lab.paper.figures import PAPER
from gasam.lab.record import AnalysisRecord, Record, as_json
from gasam.lab.record import read as read_run
from gasam.lab.report.comparison import Comparison, paired
from gasam.lab.search import Finding

ROOT = Path(__file__).parents[1]
RUNS, ANALYSES = Path("results/runs.jsonl"), Path("results/analyses.jsonl")
PAGE = Path("docs/results.md")
BEGIN, END = "<!-- results -->", "<!-- /results -->"
CURVE = ("epoch", "valid")
"""What a line keeps of an epoch."""
PLAIN = "plain training"


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
    texts = [file.read_text(encoding="utf-8") for file in sorted((folder / "analysis").glob("*.json"))]
    found = [each for each in map(json.loads, texts) if "kind" in each]  # the others are tables
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
        flatness(analyses),
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
    """Every cell with its verdict, which is on the tuned epsilons. A row of an earlier table is only named."""
    seen: set[tuple[str, str, str]] = set()
    words, sections = Counter[str](), list[str]()
    for study in map(tables.load, tables.names()):
        table = study.beside(runs, "small", "tuned")
        rows, known = [], dict[str, None]()
        for row, value in zip(table.rows, table.values, strict=True):
            cell = value["task"], value["paper"], value["key"] or value["row"]
            if cell in seen:
                known[value["row"]] = None
                continue
            seen.add(cell)
            rows.append(row)
            words.update([value["verdict"]["word"]] if value["verdict"] else [])
        notes = [f"In a table above: {'; '.join(known)}."] if known else []
        sections.append(section(study.title, rows, notes=notes))
    told = ", ".join(f"{words[word]} {word}" for word in ("reproduced", "contradicted", "undecided", "not run"))
    yield f"## Which claims hold?\n\nOf {words.total()} cells: {told}.\n"
    yield from sections


def table4(analyses: Sequence[AnalysisRecord]) -> str:
    """The metric under attack at the paper's radii, beside the paper's."""
    rows = {
        name: {"radius": name, "paper: baseline": plain, "paper: GA-SAM": walk} for name, (plain, walk) in PAPER.items()
    }
    for each in analyses:
        if each.kind == "attack" and each.options["radii"] and each.run.task == "en-vi":
            found = {f"{in_norm(each)}, {point['radius']:g}": point["metric"] for point in each.found["points"]}
            for name, metric in ({"none": each.found["clean_metric"]} | found).items():
                if name in rows:
                    rows[name][f"ours: {label(each)}"] = f"{metric:.2f}"
    return section("Table 4: BLEU on en-vi under an attack on the weights", list(rows.values()))


def flatness(analyses: Sequence[AnalysisRecord]) -> str:
    """How flat the minima are: a row for each measure and task, with means over the seeds of each method."""
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for each in analyses:
        for what, value in measures(each):
            found.setdefault((what, each.run.task), {}).setdefault(label(each), {})[each.run.seed] = value
    methods = list(dict.fromkeys(method for scores in found.values() for method in scores))
    rows = []
    for (what, task), scores in sorted(found.items()):
        row = {"measure": what, "task": task}
        for method in sorted(methods, key=lambda method: (not method.startswith("plain"), method)):
            row[method] = compared(scores.get(method, {}), scores.get(PLAIN, {}), what.startswith("radius"))
        rows.append(row)
    about = (
        "Mean and standard deviation over seeds, or the values of fewer than three. A method is called flatter or "
        "sharper where the 95% interval of its difference to plain training, paired by seed, excludes zero."
    )
    return section("Flatness: what an attack needs, and Figure 3", rows, about)


def measures(each: AnalysisRecord) -> Iterator[tuple[str, float]]:
    """The numbers of an analysis that say how flat a minimum is."""
    if each.kind == "attack" and not each.options["radii"]:
        radius = each.found["half_radius"]["radius"]
        if radius is not None:
            yield f"radius of the attack that takes half of the score, {in_norm(each)}", radius
    if each.kind == "spectrum":
        yield "largest eigenvalue of the empirical Fisher matrix", each.found["values"][0]
    if each.kind == "sharpness":
        for ball in each.found["balls"]:
            yield f"worst rise of the loss in {in_norm(each)}, {ball['epsilon']:g}", ball["worst"]["mean"]


def compared(scores: Mapping[int, float], plain: Mapping[int, float], higher_is_flatter: bool) -> str:
    if len(scores) < FEW:
        return ", ".join(f"{score:.3g}" for score in scores.values())
    text = f"{fmean(scores.values()):.3g} ± {stdev(scores.values()):.2g}"
    difference = None if scores is plain else paired(scores, plain)
    standing = "" if difference is None else difference.standing(higher_is_flatter)
    return text + {"better": " flatter", "worse": " sharper"}.get(standing, "")


def in_norm(each: AnalysisRecord) -> str:
    return "L-inf" if each.options["norm"] == "inf" else f"L{each.options['norm']:g}"


def label(each: AnalysisRecord) -> str:
    """The method, and whose walk it has: the recommended one, or an epsilon. Longer plain training is another one."""
    run = each.run
    if run.walk["source"] == "none":
        usual = tasks.find(run.task).sizes[run.size].epochs
        return PLAIN if run.settings["epochs"] == usual else f"{PLAIN}, {run.settings['epochs']} epochs"
    return f"{find_method(run.method).title}, {'recommended' if run.walk['budget'] else 'epsilon'}"


def controls(runs: Sequence[Record]) -> Iterator[str]:
    """All rows on ptb, which has the controls: masks shared by the passes, and a walk too short to matter."""
    for each in Comparison.of(run for run in runs if run.task == "ptb"):
        yield section(f"All rows on {each.title}", each.table().rows, notes=each.notes()[1:])


def searches(lines: Sequence[Mapping[str, Any]]) -> str:
    """What was tried on validation, with seeds that no result uses."""
    rows = []
    for finding in (Finding.model_validate({n: v for n, v in line.items() if n != "kind"}) for line in lines):
        chosen = [each for each in finding.trials if each["chosen"]]
        epsilons = [f"{each['values']['epsilon']:g}" for each in chosen if "epsilon" in each["values"]]
        rows.append(
            {
                "task": finding.task,
                "method": find_method(finding.method).title,
                "searched": finding.quantity,
                "trials": str(len(finding.trials)),
                "before": " ".join(f"{score:.2f}" for score in finding.plain if score is not None),
                "best": " ".join(f"{score:.2f}" for each in chosen for score in each["valid"]),
                "chosen epsilon": " ".join(epsilons),
            }
        )
    about = "No trial sees the test split, and no result uses a seed of a search. Scores are of validation."
    return section("Searches", rows, about)


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
