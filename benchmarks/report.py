"""Writes docs/performance.md from results.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peer import PEERS

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"

HEAD = """# Performance

How much time and memory does a perturbation cost, compared with plain training and with another library? `make bench`
measures and writes this page. Candidates take turns in one process, and numbers are medians.
"""
ONCE = """## Measured once

In November 2026:

- a step with GA-SAM takes 1.005 (Lightning), 1.014 (Trainer) and 1.000 (Accelerate) times the time of the same step
  in a plain loop, on a BERT of 11 million weights.
- the lab's training loop takes 0.99 to 1.02 times the time of a minimal loop with the same model and walk.
- a `ga_sam` walk over ten tensors takes 0.5 ms for 10^4 weights, 2.5 ms for 10^6 and 325 ms for 10^8.
- on `docstrings`, epsilon works in a range of a factor of 4, and larger ones do unbounded harm; a budget under a cap
  of 0.1 works in a range of a factor of 10, and none of 39 budgets and caps was worse than plain training.
- a walk on every fourth step with weight 2 kept 91 (docstrings) and 63 percent (imdb) of the gain of a walk in every
  step, in 1.32 and 1.37 times the time of plain training.
- on 6,000 short film reviews, five searches recommended settings between 0.6 points below and 0.2 above plain
  training, which is within the noise of a validation split of 800 rows.
- an estimate: all 96 runs of the paper's Table 1 take 5,628 PFLOP, or 78 to 313 hours at 20 to 5 TFLOP/s.
"""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def overhead(measured: dict[str, Any]) -> str:
    rows = [
        [
            f"{name}, {found['weights'] / 1e6:.0f} million weights",
            f"{found['two passes and a step, s']:.2f} s",
            f"{found['the same against itself']:.3f}",
            f"{found['GA-SAM over it']:.3f}",
            f"{found['1 + own time over it']:.3f}",
            f"{found['1 + own time with budget, cap and schedule']:.3f}",
            f"{found['every fourth step over one pass']:.2f}" if "every fourth step over one pass" in found else "-",
        ]
        for name, found in measured.items()
    ]
    header = ["model of the paper", "two passes and Adam", "measured twice", "GA-SAM", "own time", "recommended walk"]
    return f"""## What does a step cost?

A step with K = 1 costs two passes. The table shows it as a multiple of two forward and backward passes and one step of
Adam. "Own time" counts only the time outside of the loss function and backward. The last column is a step of
`Schedule(every=4)` as a multiple of a plain step.

{table([*header, "every fourth step"], rows)}
"""


def peer(measured: dict[str, Any]) -> str:
    rows = []
    for state, shapes in measured.items():
        for shape, found in shapes.items():
            for ours, theirs in PEERS:
                if f"{ours}, ms" in found:
                    times = (f"{found[f'{name}, ms']:.1f} ms" for name in (ours, f"pytorch_optimizer {theirs}"))
                    rows.append([f"{shape}: `{ours}`", state, *times, f"{found[f'{ours}: times faster']:.2f}"])
    slower = sum(float(row[-1]) < 1 for row in rows)
    return f"""## How fast is it, compared with another library?

The time of a call of `SharpBackward` outside of its two passes, compared with the two steps of pytorch_optimizer's
`SAM`; `asam` and the recommended walk, which read the weights, with its adaptive form. An allocator that returns memory
to the system slows down a library that allocates in every step, so both states are shown. `SharpBackward` is slower in
{slower} of {len(rows)} rows.

{table(["weights", "allocator", "gasam", "pytorch_optimizer", "times faster"], rows)}
"""


def memory(measured: dict[str, float]) -> str:
    return f"""## How much memory does it need?

Peak resident memory minus that of plain training with SGD, as a multiple of the memory of the parameters: 64 layers of
a million weights. A closure may clear `.grad`, so gradients are kept apart. Gradients that are there before the call
are kept until it succeeds.

{table(["case", "parameters"], [[case, f"{sizes:.2f}"] for case, sizes in measured.items()])}
"""


def workers(measured: dict[str, dict[str, float]]) -> str:
    columns = ["again", "two passes, one all-reduce", "per worker", "shared"]
    rows = [
        [batch, f"{found['two passes, ms']:.0f} ms", *(f"{found[column]:.3f}" for column in columns)]
        for batch, found in measured.items()
    ]
    header = ["sentences", "two passes", "measured twice", "the first in `no_sync`", "`per_worker`", "one walk"]
    return f"""## What does it cost with two workers?

A step of DistributedDataParallel with two gloo processes of one thread each on one machine, as a multiple of a step of
two plain backward passes with an all-reduce each. The model is a BERT of 11 million weights. `per_worker` saves one of
the two all-reduces and pays for the walk.

{table(header, rows)}
"""


def spectrum(measured: dict[str, Any]) -> str:
    names = {
        "PyHessian": "PyHessian's 10",
        "hessian, 10 at 1e-3": "10 of the Hessian, `tolerance=1e-3`",
        "hessian, 50": "50 of the Hessian",
        "empirical_fisher, 50": "50 of the empirical Fisher",
    }
    rows = [
        [f"{net}: {names[way]}", f"{found['s']:.2f} s", f"{found['error']:.1e}", f"{found['times faster']:.2f}"]
        for net, about in measured.items()
        for way, found in about["ways"].items()
        if way in names
    ]
    sizes = " and ".join(f"{about['weights']:,} weights ({net})" for net, about in measured.items())
    return f"""## How fast are eigenvalues?

`top_eigenvalues` compared with PyHessian's power iteration for the Hessian, on 200 examples in float32, for nets of
{sizes}. Errors are the largest of all values, relative to the value, compared with ARPACK and explicit
gradients in float64.

{table(["values", "time", "error", "times faster"], rows)}
"""


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "overhead": overhead,
    "peer": peer,
    "memory": memory,
    "workers": workers,
    "spectrum": spectrum,
}


def page(results: dict[str, Any]) -> str:
    parts = [HEAD]
    for name, section in SECTIONS.items():
        if name in results:
            found = results[name]
            shared = ", while other programs ran" if found.get("shared") else ""
            about = (
                f"Commit {found['commit']}, torch {found['torch']}, {found['threads']} thread, {found['cpu']}{shared}."
            )
            parts.append(f"{section(found['measured'])}\n{about}\n")
    return "\n".join([*parts, ONCE])
