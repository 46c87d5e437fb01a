"""Writes docs/reliability.md from results.json, from whichever parts it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.report import table

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"

HEAD = """# Reliability

What happens to your weights, gradients and state if something fails in the middle of a step? And does gasam work on
your machine?

`python -m benchmarks faults` injects faults and writes this page from `benchmarks/faults/results.json`. All faults
follow from `--seed`. After an interruption run the same command again: finished parts are kept. The exit code is 1 if
anything was lost. `--only walk` runs one part, and `--faults 500` injects fewer faults.

## Check your own machine

`python -m gasam.doctor` needs torch alone and takes less than a minute; `gasam doctor` is the same. It prints the
versions, the device and the instruction set, and checks:

- the walk in float64, float32, bfloat16 and float16 against the float64 reference (this check needs NumPy),
- that the weights are restored bit for bit, also after an interrupt,
- that a step does not synchronise with the host,
- the time of a walk, compared with two plain passes in turns.

The exit code is 0 if nothing failed, else 1. `--json` prints the findings as JSON, and `--device` chooses a device.
bfloat16 and float16 run in processes of their own, so that a crash is reported with its cure. Some processors announce
instructions for bfloat16 that they do not run: "crashed: illegal instruction" means that you must set
`ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16` before Python starts.

**No accelerator was ever tried by us.** All tests and figures come from x86-64 CPUs under Linux. CUDA, ROCm, MPS and
XPU are supported by the same code but untested: run the doctor there, and send its output with a bug report.

## What is promised after a failure

- **Weights** have the same bits as before the call.
- **`.grad`** after `SharpBackward`: the same tensors with the same bits as before the call. A step without a walk is a
  plain `loss.backward()` and promises nothing about `.grad`, nor does `SharpnessAware`, which clears the gradients
  before each closure.
- **The schedule** has not counted the step. The base optimizer has not stepped.
- **A method's state** (Friendly-SAM, LookSAM) never holds NaN or infinity. Each of its tensors is the old one or that
  of the failed step, because it is written before the last pass ends.
- **The next step** gives the same result as without the failure.
- An interrupt after the last moment at which a step can be undone leaves a complete step. If it comes between the base
  optimizer's step and the count of the schedule, the schedule is one step behind.
- Running statistics of BatchNorm may have seen the batch.
"""

BUGS = """All are fixed, and `tests/test_faults.py` has a test of each.

- A failure after the walk, in the count of the schedule or in the code that sums up the walks for warnings, left the
  new gradient in `.grad` although the call had raised, so that a retry added it twice. Now `.grad` is undone as well.
- A failure in the count of the schedule left a half-counted step: the loss without the step, or the reverse. Now the
  count is all or nothing.
- A failure between the step of `SharpnessAware`'s base and the end of the count left the step uncounted. Now the count
  is repeated.

Two more were found by reading the code for the campaign, which would have noticed the first (see the planted bugs):

- A `RuntimeError` in the restore of a portion of the weights, for example a failed allocation, was raised, but the
  portion was not written again: its weights stayed displaced. Now everything is restored again.
- An interrupt just before `.grad` was undone left the gradients of a half-finished pass. Now the undo is nested twice,
  as the restore is.
"""


def results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def walk(found: dict[str, Any]) -> str:
    rows = [[kind, f"{number:,}"] for kind, number in found["kinds"].items()]
    lost = len({each["number"] for each in found["lost"]})
    planted = found.get("planted", {})
    bugs = [[name, "not noticed" if number is None else number] for name, number in planted.items()]
    noticed = sum(number is not None for number in planted.values())
    return f"""## Faults in the walk

{found["faults"]:,} faults, one for each call, in {found["cases"]} drawn combinations of entry point, method, scale,
norm, K, budget, cap, schedule and kind of weights. After each fault all promises above are compared bit by bit with a
twin without faults. **{lost:,} of {found["faults"]:,} faults lost anything** (goal: 0). Seed {found["seed"]}, torch
{found["torch"]}, {found["seconds"]} s of processor time.

{table(["kind of fault", "faults"], rows)}

{table(["place", "faults"], [[name, f"{number:,}"] for name, number in found["places"].items()])}

{table(["weights", "faults"], [[name, f"{number:,}"] for name, number in found["weights"].items()])}

{table(["method", "faults"], [[name, f"{number:,}"] for name, number in found["methods"].items()])}

{_distributed(found.get("distributed"))}### Planted bugs

A campaign that can't fail proves nothing. {noticed} of {len(planted)} planted bugs were noticed (goal: all).

{table(["planted bug", "faults until it was noticed"], bugs)}

### Bugs that the campaign found

{BUGS}"""


def _distributed(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    rows = [[name, each["faults"], each["lost"]] for name, each in found.items()]
    return f"""### Two processes

{table(["gloo, two processes", "faults", "lost"], rows)}

"""


def plain(title: str, found: dict[str, Any]) -> str:
    """A part that brings its own tables: `tables` maps a heading to (header, rows)."""
    parts = [f"## {title}\n\n{found['text']}\n" if "text" in found else f"## {title}\n"]
    parts += [f"### {name}\n\n{table(*content)}\n" for name, content in found.get("tables", {}).items()]
    return "\n".join(parts)


SECTIONS = {
    "walk": walk,
    "runs": lambda found: plain("Faults in runs and files", found),
    "inputs": lambda found: plain("Damaged inputs", found),
}


def page(found: dict[str, Any]) -> str:
    return "\n".join([HEAD, *(section(found[name]) for name, section in SECTIONS.items() if name in found)])
