"""What Table 1 costs at the paper's size: floating-point operations, counted on a few batches of each task.

`python -m benchmarks.table1_cost run` counts them with the data in GASAM_DATA, `table` prints docs/scale.md's table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gasam.lab.paper import studies
from gasam.lab.paper.studies import relative_cost
from gasam.lab.storage import write_json
from gasam.lab.training.plan import Plan

RESULTS = Path(__file__).with_name("table1_cost.json")
BATCHES = 4
"""Batches of an epoch whose operations are counted."""
PAPER_PAIRS = {"en-vi": 133_317, "de-en": 160_239}
"""Training pairs of the full data sets, of which the folder may have a part: the number of batches is scaled."""
SPEEDS = (5, 20)
"""Speeds of a GPU in TFLOP/s for which the hours are given."""


def operations(plan: Plan) -> dict[str, Any]:
    """Floating-point operations of one gradient evaluation, and the number of updates of a run."""
    family = plan.family(plan.data())
    model = family.model()
    batches = family.batches(torch.Generator().manual_seed(0))
    counted = []
    with ExitStack() as stack:
        # The kernels that count nothing otherwise: recurrent layers of oneDNN, and fused attention.
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        carried = None
        for number in torch.linspace(0, len(batches) - 1, BATCHES).long().tolist():
            with FlopCounterMode(display=False) as counter:
                loss, carried = family.loss(model, family.batch(batches[number]), carried)
                loss.backward()
            counted.append(counter.get_total_flops())
    rows = len(plan.definition.source(plan.origin).read().train)
    scale = PAPER_PAIRS.get(plan.task, rows) / rows
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops": fmean(counted),
        "updates": round(len(batches) * scale) * plan.settings.epochs,
    }


def run() -> dict[str, Any]:
    plans = studies.load("table1").plans("paper")
    found: dict[str, Any] = {}
    for task in dict.fromkeys(plan.task for plan in plans):
        own = [plan for plan in plans if plan.task == task]
        found[task] = operations(own[0]) | {"runs": len(own), "cost": sum(relative_cost(plan) for plan in own)}
    return found


def table(results: Mapping[str, Any]) -> str:
    """Hours are operations over speed; `cost` is the number of baseline runs that a task's runs equal."""
    titles = ("task", "million weights", "GFLOP per gradient", "updates per run", "runs", "gradients, million", "PFLOP")
    speeds = [f"hours at {speed} TFLOP/s" for speed in SPEEDS]
    lines = [f"| {' | '.join((*titles, *speeds))} |", "|---" + "|---:" * (len(titles) + len(SPEEDS) - 1) + "|"]
    totals = {"runs": 0, "gradients": 0.0, "flops": 0.0}
    for task, found in results.items():
        gradients = found["updates"] * found["cost"]
        flops = gradients * found["flops"]
        totals = {
            "runs": totals["runs"] + found["runs"],
            "gradients": totals["gradients"] + gradients,
            "flops": totals["flops"] + flops,
        }
        start = [task, f"{found['parameters'] / 1e6:.0f}", f"{found['flops'] / 1e9:,.0f}", f"{found['updates']:,}"]
        lines.append(_row([*start, str(found["runs"])], gradients, flops))
    lines.append(_row(["all", "", "", "", str(totals["runs"])], totals["gradients"], totals["flops"]))
    return "\n".join(lines) + "\n"


def _row(start: Sequence[str], gradients: float, flops: float) -> str:
    hours = [f"{flops / (speed * 1e12) / 3600:,.0f}" for speed in SPEEDS]
    return f"| {' | '.join((*start, f'{gradients / 1e6:.2f}', f'{flops / 1e15:,.0f}', *hours))} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("run", "table"))
    if parser.parse_args(arguments).command == "run":
        write_json(RESULTS, run())
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))), end="")


if __name__ == "__main__":
    main()
