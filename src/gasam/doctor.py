"""`python -m gasam.doctor`: checks the walk on your machine and device in under a minute, with torch and NumPy.

Each check runs in a process of its own, because some processors end a process that uses bfloat16.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gasam
from gasam import Perturbation, SharpBackward, asam, ga_sam, reference, sam
from gasam.torch_private import never_reading_values

# Of the reference, relative to its largest entry. Both compute the passes in the same type, so only the offset differs.
LIMITS = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.03, "float16": 0.005}
WALKS = (ga_sam(budget=0.1, cap=0.05, steps=2), sam(0.05), asam(0.05))
CRASHED = (
    "the process crashed: if it was an illegal instruction, this processor lacks some that it announces, so set "
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 before Python starts; if that does not help, set AVX2"
)


def problem(dtype: torch.dtype, device: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A small network and its loss on a batch, the same in every call."""
    torch.manual_seed(0)
    to: Any = {"device": device, "dtype": dtype}
    model = nn.Sequential(nn.Linear(24, 24, **to), nn.Tanh(), nn.Linear(24, 5, **to))
    x, y = torch.randn(32, 24).to(**to), torch.randint(5, (32,)).to(device)
    return model, lambda: cross_entropy(model(x), y)


def of_type(name: str, device: str) -> str:
    """Compare walks in one type with the reference; raise if they are wrong."""
    dtype: torch.dtype = getattr(torch, name)
    try:
        problem(dtype, device)[1]().backward()  # type: ignore[no-untyped-call]
    except (RuntimeError, TypeError) as refused:
        return f"skipped, because torch does not train in this type on {device}: {refused}"
    error = max(error_of(walk, dtype, device) for walk in WALKS)
    found = f"error {error:.1e} against the float64 reference (limit {LIMITS[name]:g})"
    if not error <= LIMITS[name]:  # a NaN is not <= anything
        raise ArithmeticError(found)
    return f"weights restored; {found}"


def error_of(walk: Perturbation, dtype: torch.dtype, device: str) -> float:
    """The largest error of the combined gradient. Raise unless the weights are restored."""
    model, loss = problem(dtype, device)
    weights, shapes = list(model.parameters()), {name: tuple(p.shape) for name, p in model.named_parameters()}
    home = _flat(weights)
    SharpBackward(model, walk)(loss)
    if not torch.equal(_flat(weights), home):
        raise ArithmeticError("the weights have other bits after a walk")
    found = _flat(weight.grad for weight in weights)

    def loss_and_gradient(w: Any) -> tuple[float, Any]:
        nn.utils.vector_to_parameters(torch.from_numpy(w).to(device, dtype), weights)
        return 0.0, _flat(torch.autograd.grad(loss(), weights)).numpy()

    groups = reference.groups_of(shapes, walk.granularity)
    options: Any = {name: getattr(walk, name) for name in ("epsilon", "budget", "cap", "scale", "risk")}
    options |= {"p": walk.norm, "K": walk.steps, "capped_groups": reference.capped_groups_of(shapes, walk.granularity)}
    expected = torch.from_numpy(reference.walk(home.numpy(), loss_and_gradient, groups, **options)[-1])
    return float((found - expected).abs().max() / expected.abs().max())


def _flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1).cpu().double() for tensor in tensors])


def synchronisation(name: str, device: str) -> str:
    """Run steps that may not read a value on the host: with fake tensors on the CPU, with torch's check on CUDA."""
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        return f"skipped, because torch can't detect synchronisation on {device}"
    with never_reading_values() if kind == "cpu" else nullcontext():
        model, loss = problem(torch.float32, device)
        sharp = SharpBackward(model, WALKS[0])
        sharp(loss)  # the first step allocates
        if kind == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        sharp(loss)
    return "a step reads no value on the host"


def in_own_process(check: Callable[[str, str], str], name: str, device: str) -> tuple[bool, str]:
    """Whether a check passes in a process of its own, and what it says."""
    with ProcessPoolExecutor(1, get_context("spawn"), warnings.simplefilter, ("ignore",)) as pool:
        try:
            return True, pool.submit(check, name, device).result()
        except BrokenProcessPool:
            return False, CRASHED
        except Exception as failure:
            return False, f"{type(failure).__name__}: {failure}"


def main(words: Sequence[str] | None = None) -> int:
    """Print the versions and all findings; return the exit code: 0 if nothing failed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m gasam.doctor", description="Check gasam on this machine.")
    usual = str(torch.accelerator.current_accelerator() or "cpu")
    parser.add_argument("--device", default=usual, help="the device to check (default: %(default)s)")
    device = parser.parse_args(words).device
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as refused:
        parser.error(f"the device {device!r} can't be used: {refused}")
    print(
        f"gasam {gasam.__version__}, torch {torch.__version__}, Python {platform.python_version()}, device {device}\n"
        f"{platform.platform()}, {platform.processor()}, {torch.backends.cpu.get_cpu_capability()}, "
        f"{torch.get_num_threads()} threads, ONEDNN_MAX_CPU_ISA={os.environ.get('ONEDNN_MAX_CPU_ISA', '')}",
        flush=True,
    )
    failed = False
    for name in (*LIMITS, "no synchronisation"):
        fine, text = in_own_process(of_type if name in LIMITS else synchronisation, name, device)
        print(f"{'ok' if fine else 'FAILED':<7} {name}: {text}", flush=True)
        failed |= not fine
    print("something failed: report it with the whole output above" if failed else "everything is fine")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
