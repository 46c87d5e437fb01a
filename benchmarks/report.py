"""Writes the tables of docs/performance.md from results.json. The text around the tables is written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peer import PEERS

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
Row = Sequence[str]


def overhead(measured: dict[str, Any]) -> Iterator[Row]:
    """Each cell of a walk has its step over a plain one, and in brackets the time outside of its passes."""
    yield "model of the paper", "plain step", "measured twice", *next(iter(measured.values()))["steps"]
    for name, found in measured.items():
        cells = [f"{ratio:.2f} ({found['own time'][form]:.1%})" for form, ratio in found["steps"].items()]
        weights, seconds = f"{found['weights'] / 1e6:.0f} million", f"{found['plain step, s']:.2f} s"
        yield f"{name}, {weights}", seconds, f"{found['again']:.3f}", *cells


def peer(measured: dict[str, Any]) -> Iterator[Row]:
    """One row for each shape and walk; of each allocator both times and their ratio."""
    yield "weights", *(f"{state}: {name}" for state in measured for name in ("gasam, ms", "theirs, ms", "faster"))
    for shape in next(iter(measured.values())):
        for ours, theirs in PEERS:
            cells = [
                f"{found[shape][name]:.{digits}f}"
                for found in measured.values()
                for name, digits in (
                    (f"{ours}, ms", 1),
                    (f"pytorch_optimizer {theirs}, ms", 1),
                    (f"{ours}: times faster", 2),
                )
            ]
            yield f"{shape}: `{ours}`", *cells


def memory(measured: dict[str, float]) -> Iterator[Row]:
    yield "case", "parameters"
    yield from ((case, f"{sizes:.2f}") for case, sizes in measured.items())


def workers(measured: dict[str, dict[str, float]]) -> Iterator[Row]:
    yield "sentences", "two passes", "measured twice", "the first in `no_sync`", "`per_worker`", "one walk"
    for batch, found in measured.items():
        ratios = (found[name] for name in ("again", "two passes, one all-reduce", "per worker", "shared"))
        yield batch, f"{found['two passes, ms']:.0f} ms", *(f"{ratio:.3f}" for ratio in ratios)


SECTIONS: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
    "overhead": overhead,
    "peer": peer,
    "memory": memory,
    "workers": workers,
}


def page(results: dict[str, Any]) -> str:
    """The page with the tables of these results, each between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    for name, found in results.items():
        header, *rows = SECTIONS[name](found["measured"])
        lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        shared = ", while other programs ran" if found.get("shared") else ""
        about = f"Commit {found['commit']}, torch {found['torch']}, {found['threads']} thread, {found['cpu']}{shared}."
        before, mark, rest = text.partition(f"<!-- {name} -->")
        end = f"<!-- /{name} -->"
        text = f"{before}{mark}\n\n{table}\n\n{about}\n\n{end}{rest.partition(end)[2]}"
    return text
