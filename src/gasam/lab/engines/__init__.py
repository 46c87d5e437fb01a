"""Engines, which execute runs: on this machine, or on a Ray cluster. `Place` opens the one that the user names."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gasam.lab.errors import InputError

if TYPE_CHECKING:
    from gasam.lab.engines.engine import Engine


@dataclass(frozen=True)
class Place:
    """Where the work is done.

    Args:
        on: Where to run: local, ray (the Ray cluster that runs on this machine), HOST:PORT or ray://HOST:PORT.
        cpus_per_run: CPUs of each run in a cluster. Default: 1.
        gpus_per_run: GPUs of each run in a cluster, e.g. 0.5. Default: 1 if it has any.
    """

    on: str = "local"
    cpus_per_run: int | None = None
    gpus_per_run: float | None = None

    @contextmanager
    def engine(self, cpu: bool, jobs: int | None = None) -> Iterator[Engine]:
        """Open the engine; `jobs` limits the number of runs at a time. Ray is imported only if it is asked for."""
        cpus, gpus = self.cpus_per_run, self.gpus_per_run
        for option, number in {"--jobs": jobs, "--cpus-per-run": cpus}.items():
            if number is not None and number < 1:
                raise InputError(f"{option} must be a whole number >= 1, got {number}")
        if gpus is not None and not 0 <= gpus < math.inf:
            raise InputError(f"--gpus-per-run must be a number >= 0, got {gpus:g}")
        if self.on == "local":
            if cpus is not None or gpus is not None:
                raise InputError(
                    "--cpus-per-run and --gpus-per-run are for a Ray cluster: add --on ray, or divide the cores by "
                    "--jobs"
                )
            from gasam.lab.engines.local import LocalEngine

            yield LocalEngine(jobs)
            return
        if importlib.util.find_spec("ray") is None:
            raise InputError(f"--on {self.on} needs the package ray: run `pip install 'gasam[ray]'`, or leave out --on")
        # Ray would print pages about every dead node to standard output. It reads the variable when it is imported.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        from gasam.lab.engines.ray import connected

        with connected(self.on, parallel=jobs, cpus=cpus or 1, gpus=gpus, cpu=cpu) as engine:
            yield engine
