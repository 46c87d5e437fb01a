"""What a result was computed with: the commit of the code, the versions of the libraries and the machine."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import gasam

LIBRARIES = ("torch", "accelerate", "transformers", "tokenizers", "sacrebleu", "scikit-learn", "num2words")


def versions() -> dict[str, str]:
    libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), "gasam": gasam.__version__} | libraries


def code() -> dict[str, Any]:
    """The commit that gasam runs from; None if it was installed without its git history."""
    package = Path(gasam.__file__).parent
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top) / "src" / "gasam" != package:
        return {"commit": None, "dirty": None}
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", "--", str(package))
    return {"commit": _git(package, "rev-parse", "HEAD"), "dirty": bool(changed)}


def machine(device: torch.device) -> dict[str, Any]:
    """The hardware of this process. Training is bit-identical only on machines with the same instruction set."""
    processes = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    return {
        "device": str(device),
        "processes": processes,
        "threads": torch.get_num_threads(),
        "platform": platform.machine(),
        "cpu": cpu_model(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def cpu_model() -> str:
    """The processor's model name, if the system provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
