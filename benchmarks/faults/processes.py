"""Faults in two processes that share a model by DDP or FSDP2.

Most faults are the same in both processes, because a process that fails alone leaves the other one waiting. NaN,
infinity and vanishing gradients are injected into one process. A few faults end the call of one process only: then the
other one gives up after a timeout, and both must have their weights, `.grad` and schedule as before the call.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.faults import kept, walk
from benchmarks.faults.drawn_walks import Case, Subject, draw
from benchmarks.faults.pair import Pair, different, state_of

SIZES = {
    "full": {"DDP": (300, 12), "FSDP2": (200, 0)},
    "sample": {"DDP": (20, 1), "FSDP2": (20, 0)},
}
"""The number of faults with each wrapper, and of those that end the call of one process only.

`tests/distributed/test_failure.py` has the latter for FSDP2.
"""
FAULTS_OF_A_CASE = 15
WEIGHTS = ("float32", "float64", "bfloat16", "tied", "normalised")
ALONE = "exception in one process only"
PATIENCE = 2.0
"""Seconds until a process gives up on the other one."""
SOURCES = ("processes", *walk.SOURCES)


class Shared(Subject):
    """A walk whose model is shared by the processes of a group."""

    def __init__(self, case: Case, wrapper: str, group: Any) -> None:
        self.wrapper, self.group = wrapper, group
        super().__init__(case)

    def wrapped(self, model: nn.Module) -> nn.Module:
        if self.wrapper == "DDP":
            return DistributedDataParallel(model, process_group=self.group)
        mesh = DeviceMesh.from_group(self.group, "cpu")
        for inner in model.children():
            if isinstance(inner, nn.Linear) and not hasattr(model, "embedding"):  # tied weights stay together
                fully_shard(inner, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def draw_batch(self, seed: int) -> None:
        super().draw_batch(2 * seed + dist.get_rank())

    def recover(self) -> None:
        """DDP needs a new wrapper after a backward pass that failed, and FSDP2 a reset."""
        if self.wrapper == "FSDP2":
            reset(self.model)
            return
        state = self.sharp.state_dict()
        self.model = DistributedDataParallel(self.model.module, process_group=self.group)  # type: ignore[arg-type]
        self.sharp = self.start()
        self.sharp.load_state_dict(state)


def reset(model: Any) -> None:
    """Reset FSDP2 after a failure, as docs/frameworks.md says."""
    model.reset_iter_state()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
            for parameter in module.parameters():
                if not isinstance(parameter, DTensor):  # torch leaves the gradient of the failed pass there
                    parameter.grad = None
            module.reshard()


def from_all(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def drawn(random: Random) -> Case:
    while True:
        case = draw(random)
        if case.weights in WEIGHTS:
            return case


def inject(wrapper: str, seed: int, faults: int, alone: int) -> dict[str, Any]:
    """Inject the faults; every process calls this."""
    random, began = Random(f"{seed} {wrapper}"), time.monotonic()
    kinds, lost = Counter[str](), list[dict[str, Any]]()
    while kinds.total() < faults:
        case = drawn(random)
        pair = Pair(case, random, lambda case: Shared(case, wrapper, dist.group.WORLD))
        one, other = from_all((pair.operations, pair.lines))
        if one != other:
            raise RuntimeError(f"the processes do different things without a fault: {case}")
        for _ in range(FAULTS_OF_A_CASE):
            kind, chosen = random.choice(walk.KINDS), random.randrange(2)
            fault = walk.make(kind, pair, random)
            if not fault.raises and dist.get_rank() != chosen:  # bad numbers in one process
                fault = fault._replace(call=_without(fault.call, pair.subject))
            found = from_all(pair.judge(fault))
            places, wrong = zip(*found, strict=True)
            if any(places) or any(wrong):
                kinds[kind] += 1
            lost += [{"kind": kind, "what": what, "case": str(case)} for each in wrong for what in each]
            if any(wrong) or kinds.total() >= faults:
                break
    for _ in range(alone):
        kinds[ALONE] += 1
        lost += [{"kind": ALONE, "what": what} for what in fail_alone(wrapper, drawn(random), random)]
    return {"faults": kinds.total(), "kinds": dict(sorted(kinds.items())), "lost": lost,
            "seconds": round(time.monotonic() - began)}  # fmt: skip


def _without(call: Callable[[], None], subject: Subject) -> Callable[[], None]:
    """The same call, but without its bad numbers."""
    real = subject.call

    def without() -> None:
        subject.call = lambda fault=None: real()  # type: ignore[method-assign]
        try:
            call()
        finally:
            subject.call = real  # type: ignore[method-assign]

    return without


def fail_alone(wrapper: str, case: Case, random: Random) -> list[str]:
    """One process raises in its own code, and the other gives up. Return what was lost in any process."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=PATIENCE))
    subject = Shared(case, wrapper, group)
    fails, seed = random.randrange(2), random.randrange(10**6)
    fault = walk.user_fault(subject, random)
    for _ in range(3):  # the first steps of a schedule may not walk
        subject.draw_batch(seed)
        subject.call()
    before, raised = state_of(subject), False
    try:
        subject.call(fault if dist.get_rank() == fails else None)
    except (Exception, KeyboardInterrupt):
        raised = True
    plain = subject.base is None and not subject.sharp.walks()
    wrong = different(state_of(subject), before) if raised else []
    return sorted({what for each in from_all(wrong) for what in each if not (plain and what == ".grad")})


def _work(rank: int, wrapper: str, seed: int, numbers: tuple[int, int], folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=datetime.timedelta(minutes=2)
    )
    found = inject(wrapper, seed, *numbers)
    if rank == 0:
        kept.write(Path(folder) / "found.json", found)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # the groups that were given up do not end by themselves


def campaign(seed: int = 0, size: str = "full", jobs: int = 1) -> dict[str, Any]:
    """Inject the faults with each wrapper; `jobs` has no effect, there are always two processes."""
    found, folder = {}, kept.FOLDER / f"processes-{kept.source_hash(kept.CORE, SOURCES)}-{seed}-{size}"
    for wrapper, numbers in SIZES[size].items():
        file = folder / f"{wrapper}.json"
        if not file.exists():
            kept.write(file, _in_two_processes(wrapper, seed, numbers))
        found[wrapper] = json.loads(file.read_text())
    return {
        "seed": seed,
        "faults": sum(each["faults"] for each in found.values()),
        "wrappers": {name: each["kinds"] for name, each in found.items()},
        "lost": [lost | {"wrapper": name} for name, each in found.items() for lost in each["lost"]],
        "seconds": sum(each["seconds"] for each in found.values()),
        "torch": torch.__version__,
    }


def _in_two_processes(wrapper: str, seed: int, numbers: tuple[int, int]) -> Any:
    spawn = multiprocessing.get_context("spawn")
    with TemporaryDirectory(prefix="gasam-processes-") as folder:
        running = [spawn.Process(target=_work, args=(rank, wrapper, seed, numbers, folder)) for rank in range(2)]
        for process in running:
            process.start()
        for process in running:
            process.join()
        return json.loads((Path(folder) / "found.json").read_text())
