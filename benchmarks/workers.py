"""Two DistributedDataParallel workers: a walk of each worker's own against two plain backward passes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import classifier, interleaved, ratio, sentences
from gasam import SharpBackward, ga_sam, per_worker, shared_walk

WORKERS = 2
BATCHES = [(8, 32), (16, 64)]  # sentences, words


def candidates(count: int, words: int) -> dict[str, Callable[[], None]]:
    torch.manual_seed(0)
    model = DistributedDataParallel(classifier(), gradient_as_bucket_view=True)
    batch = sentences(count, words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    own = SharpBackward(model.parameters(), ga_sam(1e-6), around=per_worker(model))
    shared = SharpBackward(model.parameters(), ga_sam(1e-6), around=shared_walk(model))

    def step(backward: Callable[[], object]) -> Callable[[], None]:
        def timed() -> None:
            optimizer.zero_grad()
            backward()
            optimizer.step()
            dist.barrier()

        return timed

    def two_passes(first_reduced: bool) -> None:
        with nullcontext() if first_reduced else model.no_sync():
            model(**batch).loss.backward()
        model(**batch).loss.backward()

    return {
        "two passes": step(lambda: two_passes(True)),
        "again": step(lambda: two_passes(True)),
        "two passes, one all-reduce": step(lambda: two_passes(False)),
        "per worker": step(lambda: own(lambda: model(**batch).loss)),
        "shared": step(lambda: shared(lambda: model(**batch).loss)),
    }


def run(rounds: int) -> dict[str, Any]:
    """In processes of their own, with one thread each."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]
    done = subprocess.run(
        [*command, "-m", "benchmarks.workers", str(rounds)],
        check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(count: int, words: int, rounds: int) -> dict[str, Any]:
    """All workers do the same candidate at the same time, and end it together."""
    seconds = interleaved(candidates(count, words), rounds)
    found: dict[str, Any] = {"two passes, ms": 1e3 * statistics.median(seconds["two passes"] + seconds["again"])}
    return found | {name: ratio(seconds, name, "two passes") for name in seconds if name != "two passes"}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rounds = int(sys.argv[1])
    found = {f"{count} of {words} words": measured(count, words, rounds * 8 // count) for count, words in BATCHES}
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()
