"""`python -m gasam.doctor`: checks the walk on your machine and device in under a minute, with torch and NumPy.

In every floating-point type it compares walks with the float64 reference and checks that the weights are restored bit
for bit; then it checks that no step synchronises with the host. Each check runs in a process of its own, because some
processors end a process that uses bfloat16.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gasam
from gasam.perturbation import Perturbation, asam, ga_sam, sam
from gasam.torch_private import never_reading_values

# Of the reference, relative to its largest entry. Both compute the passes in the same type, so only the offset differs.
LIMITS = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
WALKS = (ga_sam(budget=0.1, cap=0.05, steps=2), sam(0.05), asam(0.05))
CRASHED = (
    "the process crashed: if it was an illegal instruction, this processor lacks some that it announces, so set "
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 before Python starts; if that does not help, set AVX2"
)


def of_type(name: str, device: str) -> str:
    """Say what the walks do in one type; raise if they are wrong."""
    model, x, y = problem(getattr(torch, name), device)
    try:
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    except (RuntimeError, TypeError) as refused:
        return f"skipped, because torch does not train in this type on {device}: {str(refused).splitlines()[0]}"
    error = max(error_of(walk, getattr(torch, name), device) for walk in WALKS)
    found = f"error {error:.1e} against the float64 reference (limit {LIMITS[name]:g})"
    if not error <= LIMITS[name]:  # a NaN is not <= anything
        raise ArithmeticError(found)
    return f"weights restored; {found}"


def problem(dtype: torch.dtype, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A small network and a batch, the same in every call."""
    torch.manual_seed(0)
    to: Any = {"device": device, "dtype": dtype}
    model = nn.Sequential(nn.Linear(24, 24, **to), nn.Tanh(), nn.Linear(24, 5, **to))
    x, y = torch.randn(32, 24), torch.randint(5, (32,))
    return model, x.to(device, dtype), y.to(device)


def error_of(walk: Perturbation, dtype: torch.dtype, device: str) -> float:
    """The largest error of the combined gradient and of the lengths of the offsets. Raise unless weights are restored.

    The first walk is interrupted in its last pass.
    """
    from gasam import reference

    (model, x, y), (twin, _, _) = problem(dtype, device), problem(dtype, device)
    weights, shapes = list(twin.parameters()), {name: tuple(p.shape) for name, p in twin.named_parameters()}
    sharp, passes = gasam.SharpBackward(model.named_parameters(), walk), list[int]()

    def loss() -> Tensor:
        passes.append(1)
        if len(passes) == walk.steps + 1:
            raise KeyboardInterrupt
        return cross_entropy(model(x), y)

    def loss_and_gradient(w: Any) -> tuple[float, Any]:
        nn.utils.vector_to_parameters(torch.from_numpy(w).to(device, dtype), weights)
        return 0.0, _flat(torch.autograd.grad(cross_entropy(twin(x), y), weights)).numpy()

    with suppress(KeyboardInterrupt):
        sharp(loss)
        raise RuntimeError("an interrupt in the loss function was swallowed")
    sharp(loss)
    for own, other in zip(model.parameters(), weights, strict=True):
        if not torch.equal(own.detach().view(torch.uint8), other.detach().view(torch.uint8)):
            raise ArithmeticError("the weights have other bits after a walk")
    options: Any = {name: getattr(walk, name) for name in ("epsilon", "budget", "cap", "scale", "risk")}
    options |= {"p": walk.norm, "K": walk.steps}
    groups, capped = (of(shapes, walk.granularity) for of in (reference.groups_of, reference.capped_groups_of))
    start, trace = _flat(weights).numpy(), cast(Any, sharp.last)
    offsets, _, _, folded = reference.walk(start, loss_and_gradient, groups, capped_groups=capped, **options)
    lengths = torch.tensor([float(offset @ offset) ** 0.5 for offset in offsets], dtype=torch.float64)
    pairs = [(_flat(p.grad for p in model.parameters()), torch.from_numpy(folded)), (_flat(trace.norms), lengths)]
    return max(float((ours - theirs).abs().max() / theirs.abs().max()) for ours, theirs in pairs)


def _flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1).cpu().double() for tensor in tensors])


def synchronisation(name: str, device: str) -> str:
    """Run steps that may not read a value on the host: with fake tensors on the CPU, with torch's check on CUDA."""
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        return f"skipped, because torch can't detect synchronisation on {device}"
    with never_reading_values() if kind == "cpu" else nullcontext():
        model, x, y = problem(torch.float32, device)
        sharp = gasam.SharpBackward(model.named_parameters(), WALKS[0])
        sharp(lambda: cross_entropy(model(x), y))  # the first step allocates
        if kind == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        sharp(lambda: cross_entropy(model(x), y))
    return "a step reads no value on the host"


def in_own_process(check: Callable[[str, str], str], name: str, device: str) -> tuple[bool, str]:
    """Whether a check passes in a process of its own, and what it says."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=warnings.simplefilter, initargs=("ignore",)) as pool:
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
    except (RuntimeError, AssertionError, NotImplementedError) as refused:
        parser.error(f"the device {device!r} can't be used: {refused}")
    print(
        f"gasam {gasam.__version__}, torch {torch.__version__}, Python {platform.python_version()}, device {device}\n"
        f"{platform.platform()}, {platform.processor()}, {torch.backends.cpu.get_cpu_capability()}, "
        f"{torch.get_num_threads()} threads, ONEDNN_MAX_CPU_ISA={os.environ.get('ONEDNN_MAX_CPU_ISA', '')}",
        flush=True,
    )
    failed = False
    for check, name in [(of_type, name) for name in LIMITS] + [(synchronisation, "no synchronisation")]:
        fine, text = in_own_process(check, name, device)
        print(f"{'ok' if fine else 'FAILED':<7} {name}: {text}", flush=True)
        failed |= not fine
    print("something failed: report it with the whole output above" if failed else "everything is fine")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
