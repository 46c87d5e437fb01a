"""Writes docs/reliability.md from results.json, from whichever parts it has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults.found_bugs import BUGS
from benchmarks.report import table

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
Found = dict[str, Any]

HEAD = """# Reliability

What happens to your weights, gradients, runs and files if something fails in the middle? And does gasam work on your
machine? This page is for people who want to rely on it, and for those who test a change.

`python -m benchmarks faults` injects faults and writes this page from `benchmarks/faults/results.json`. All faults
follow from `--seed`. `--only walk` runs one part. After an interruption run the same command again: the finished pieces
of a part are kept in `runs/faults`. The exit code is 1 if anything was lost. `--size sample` injects a few faults,
prints the figures and writes nothing; `make test` does the same.

{summary}

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
- **The next step** gives the same result as without the failure. For Friendly-SAM and LookSAM this holds for the state
  that they have then.
- An interrupt after the last moment at which a step can be undone leaves a complete step. If it comes between the base
  optimizer's step and the count of the schedule, the schedule is one step behind.
- Running statistics of BatchNorm may have seen the batch.
"""


TITLES = {
    "walk": "the walk, one process",
    "processes": "the walk, two processes",
    "runs": "runs and searches",
    "cluster": "a Ray cluster",
    "inputs": "broken inputs and disks",
}
KINDS_IN_RUNS = {
    "kill": "process ended at a disk operation",
    "torn": "process ended in the middle of a write",
    "power": "power cut at a disk operation",
    "EIO": "disk error (EIO) at an operation",
    "ENOSPC": "disk full (ENOSPC) from an operation on",
    "signal at a step": "SIGTERM in a training step",
    "kill -9": "SIGKILL at a random time",
    "storm of signals": "1 to 6 of SIGTERM and SIGINT",
}


def results() -> Found:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def lost(found: Found) -> int:
    """The number of faults that lost anything; one fault may lose several things."""
    return len({each["number"] if isinstance(each, dict) and "number" in each else str(each) for each in found["lost"]})


def summary(found: Found) -> str:
    rows = []
    for name, title in TITLES.items():
        if name not in found:
            rows.append([title, "not run", "", ""])
            continue
        planted = found[name].get("planted", {})
        caught = sum(number is not None for number in planted.values())
        rows.append(
            [title, f"{found[name]['faults']:,}", lost(found[name]), f"{caught} of {len(planted)}" if planted else ""]
        )
    header = ["faults in", "tried", "lost, or not reported clearly (goal: 0)", "planted bugs caught (goal: all)"]
    return table(header, rows)


def counted(header: str, counts: dict[str, int], names: dict[str, str] | None = None) -> str:
    return table([header, "faults"], [[(names or {}).get(kind, kind), f"{n:,}"] for kind, n in counts.items()])


def planted(found: Found) -> str:
    """The planted bugs of a part, and the number of faults until each was caught."""
    rows = [[name, "not caught" if number is None else number] for name, number in found["planted"].items()]
    return f"""A campaign that cannot fail proves nothing, so bugs are planted while it runs.

{table(["planted bug", "faults until it was caught"], rows)}
"""


def walk(found: Found) -> str:
    return f"""## Faults in the walk

{found["faults"]:,} faults, one for each call, in {found["cases"]} drawn combinations of entry point, method, scale,
norm, K, budget, cap, schedule and kind of weights. After each fault all promises above are compared bit by bit with a
twin without faults, and so is the next step. **{lost(found):,} of {found["faults"]:,} faults lost anything** (goal: 0).
Seed {found["seed"]}, torch {found["torch"]}, {found["seconds"]} s of processor time.

{counted("kind of fault", found["kinds"])}

{counted("place", found["places"])}

{counted("weights", found["weights"])}

{counted("method", found["methods"])}

### Bugs planted in the walk

{planted(found)}"""


def processes(found: Found) -> str:
    kinds = sorted({kind for each in found["wrappers"].values() for kind in each})
    rows = [[kind, *(each.get(kind, 0) for each in found["wrappers"].values())] for kind in kinds]
    return f"""## Faults in two processes

{found["faults"]:,} faults in two processes (gloo) that share a model. **{lost(found)} of {found["faults"]:,} faults
lost anything.** An exception comes in both processes, NaN and vanishing gradients in one of them. If one process of
DDP fails alone, the other gives up after a timeout; then weights, `.grad` and schedule are compared, but there is no
next step. `tests/distributed/test_failure.py` has the same for FSDP2.
After a failure DDP needs a new wrapper, and FSDP2 a reset that [Frameworks](frameworks.md#when-a-process-fails)
describes. Seed {found["seed"]}, torch
{found["torch"]}.

{table(["kind of fault", *found["wrappers"]], rows)}
"""


def runs(found: Found) -> str:
    rows = [
        [name, each["operations"], each["steps"], "all" if each["every"] == 1 else f"one in {each['every']}"]
        for name, each in found["commands"].items()
    ]
    return f"""## Faults in runs and files

Every mkdir, open, write, sync, rename and delete of a command has a number, and a fault comes at each of them, or at
some, as the second table says. Afterwards the same command is run without a fault. Model, record and search journal
must have the same SHA-256 as those of an undisturbed run, times aside. **{lost(found)} of {found["faults"]:,} faults
lost anything, or ended without a clear sentence.** Power cuts are simulated: what was not synced is lost with
probability one half. Seed {found["seed"]}.

{counted("kind of fault", found["kinds"], KINDS_IN_RUNS)}

{table(["command", "disk operations", "training steps", "faults at"], rows)}

### Bugs planted in the runs

{planted(found)}"""


def cluster(found: Found) -> str:
    return f"""## Killed workers, nodes and drivers of a Ray cluster

A real cluster of three nodes on one machine. Each kill comes after the first checkpoint of a run. Then the same command
is run again, and must end with the files of a run without a cluster. **{lost(found)} of {found["faults"]} kills lost
anything.**

{counted("killed", found["kinds"])}
"""


def inputs(found: Found) -> str:
    codes = ", ".join(f"{code} ({number} times)" for code, number in found["exit codes"].items())
    return f"""## Broken inputs and bad luck

{found["faults"]} generated inputs, full and read-only disks, and files where folders must be. A command must tell the
fault in one sentence and write nothing outside its folder. **{lost(found)} of {found["faults"]} did not, and
{found["tracebacks"]} gave a traceback (goal: 0).** Exit codes: {codes}. A random change may leave an input valid, which
gives 0. Seed {found["seed"]}.

{table(["kind of input", "inputs"], [[kind, number] for kind, number in found["kinds"].items()])}
"""


SECTIONS: dict[str, Callable[[Found], str]] = {
    "walk": walk,
    "processes": processes,
    "runs": runs,
    "cluster": cluster,
    "inputs": inputs,
}


def page(found: Found) -> str:
    parts = [section(found[name]) for name, section in SECTIONS.items() if name in found]
    return "\n".join([HEAD.replace("{summary}", summary(found)), *parts, BUGS])
