"""Engines, which execute runs: on this machine, or on a Ray cluster. `opened` opens the one that the user names."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gasam.lab.errors import InputError

if TYPE_CHECKING:
    from gasam.lab.engines.engine import Engine


@contextmanager
def opened(
    where: str, *, parallel: int | None = None, cpus: int | None = None, gpus: float | None = None, cpu: bool = False
) -> Iterator[Engine]:
    """Open the engine that the user names with `--on`. Ray is imported only if it is asked for.

    Args:
        where: `local` for processes of this machine, `ray` or `auto` for the Ray cluster that runs on it, or the
            address of a cluster, HOST:PORT or ray://HOST:PORT.
        parallel: The largest number of runs at a time.
        cpus: CPUs of each run in a cluster.
        gpus: GPUs of each run in a cluster. Default: 1 if it has any.
        cpu: Use the CPU even if there is a GPU.
    """
    for option, number in {"--jobs": parallel, "--cpus-per-run": cpus}.items():
        if number is not None and number < 1:
            raise InputError(f"{option} must be a whole number >= 1, got {number}")
    if gpus is not None and not 0 <= gpus < math.inf:
        raise InputError(f"--gpus-per-run must be a number >= 0, got {gpus:g}")
    if where == "local":
        if cpus is not None or gpus is not None:
            raise InputError(
                "--cpus-per-run and --gpus-per-run are for a Ray cluster: add --on ray, or divide the cores by --jobs"
            )
        from gasam.lab.engines.local import LocalEngine

        yield LocalEngine(parallel)
        return
    if importlib.util.find_spec("ray") is None:
        raise InputError(f"--on {where} needs the package ray: run `pip install 'gasam[ray]'`, or leave out --on")
    # Ray would print pages about every dead node to standard output. It reads the variable when it is imported.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    from gasam.lab.engines.ray import connected

    with connected(where, parallel=parallel, cpus=cpus or 1, gpus=gpus, cpu=cpu) as engine:
        yield engine
