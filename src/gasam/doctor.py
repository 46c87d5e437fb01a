"""`python -m gasam.doctor`: checks the walk on your machine and device in under a minute, with torch alone.

In every floating-point type it compares the walk with the float64 reference, and checks that the weights are restored
bit for bit; then it checks that no step synchronises with the host. Each check runs in a process of its own, because
some processors end a process that uses bfloat16.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gasam
from gasam.perturbation import Perturbation, asam, ga_sam, layer_sam, sam
from gasam.torch_private import never_reading_values

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
# Of the reference, relative to its largest entry. Both compute the passes in the same type, so only the offset differs:
# by a rounding of each weight in a low type.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
WALKS = (ga_sam(budget=0.1, cap=0.05, steps=2), sam(0.05), asam(0.05), layer_sam(0.05, norm=1.5))
ILLEGAL_INSTRUCTION_CURE = (
    "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment before Python starts, because this processor announces "
    "instructions that it does not run; if that does not help, set AVX2"
)


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    status: str
    detail: str


class NotPossibleError(Exception):
    """A check does not apply to this machine or device."""


Check = Callable[[str, str], str]
"""A function of a type's name and the device: it returns what it found, or raises."""


def run(device: str) -> int:
    """Examine the device, print the findings, and return the exit code: 0 if nothing failed, else 1."""
    print("\n".join(f"{name}: {value}" for name, value in machine(device).items()), flush=True)
    failed = False
    for check, name in [(of_type, name) for name in TOLERANCES] + [(synchronisation, "no synchronisation")]:
        finding = in_own_process(check, name, device)
        print(f"{finding.status:<8} {finding.check}: {finding.detail}", flush=True)
        failed |= finding.status == FAILED
    print("something failed: report it with the whole output above" if failed else "everything is fine")
    return int(failed)


def machine(device: str) -> dict[str, str]:
    """Versions, the device and its instruction set."""
    kind = torch.device(device).type
    name = torch.cuda.get_device_name(device) if kind == "cuda" else platform.processor() or platform.machine()
    return {
        "gasam": gasam.__version__,
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
        "system": platform.platform(),
        "device": f"{device} ({name})",
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", "not set"),
    }


def in_own_process(check: Check, name: str, device: str) -> Finding:
    """Run a check in a process of its own, so that a crash is reported."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, check, name, device))
    process.start()
    there.close()
    if not here.poll(120):
        process.kill()
        return Finding(name, FAILED, "did not end within 120 seconds")
    try:
        return Finding(name, *here.recv())
    except EOFError:
        process.join()
        code = process.exitcode or 0
        if code == -signal.SIGILL:
            return Finding(name, FAILED, f"crashed: illegal instruction: {ILLEGAL_INSTRUCTION_CURE}")
        what = f"ended with exit code {code}" if code >= 0 else f"crashed: {signal.strsignal(-code)}"
        return Finding(name, FAILED, what)


def _send(there: Connection, check: Check, name: str, device: str) -> None:
    warnings.simplefilter("ignore")
    try:
        there.send((OK, check(name, device)))
    except NotPossibleError as reason:
        there.send((SKIPPED, str(reason)))
    except Exception as failure:
        there.send((FAILED, f"{type(failure).__name__}: {failure}"))


def of_type(name: str, device: str) -> str:
    """Compare the walks with gasam/reference.py, and check the restore, in one type."""
    dtype = getattr(torch, name)
    try:
        plain(*problem(dtype, device))
    except (RuntimeError, TypeError) as refused:
        line = (str(refused).splitlines() or [""])[0]
        raise NotPossibleError(f"torch does not train in this type on {device}: {line}") from None
    check_restore(dtype, device)
    restored = f"the same bits after {len(WALKS)} walks and an interrupted one"
    if find_spec("numpy") is None:
        return f"{restored}; not compared with the reference, which needs NumPy: run `pip install numpy`"
    error = max(reference_error(walk, dtype, device) for walk in WALKS)
    if not error <= TOLERANCES[name]:  # a NaN is not <= anything
        raise ArithmeticError(f"error {error:.1e} against the float64 reference, the limit is {TOLERANCES[name]:g}")
    return f"{restored}; error {error:.1e} against the float64 reference (limit {TOLERANCES[name]:g})"


def problem(dtype: torch.dtype, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A small network and a batch, the same in every type."""
    generator, to = torch.Generator().manual_seed(0), {"device": device, "dtype": dtype}
    first, second, last = (nn.Linear(24, width, **to) for width in (24, 24, 5))  # type: ignore[arg-type]
    model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 24**0.5)
    x, y = torch.randn(32, 24, generator=generator), torch.randint(5, (32,), generator=generator)
    return model, x.to(device, dtype), y.to(device)


def plain(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.zero_grad()
    cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]


def reference_error(perturbation: Perturbation, dtype: torch.dtype, device: str) -> float:
    """The largest error of the gradient for the optimizer and of the lengths of the offsets."""
    import numpy as np

    from gasam import reference

    model, x, y = problem(dtype, device)
    twin, _, _ = problem(dtype, device)
    weights, shapes = list(twin.parameters()), {name: tuple(p.shape) for name, p in twin.named_parameters()}

    def loss_and_gradient(w: reference.Vector) -> tuple[float, reference.Vector]:
        nn.utils.vector_to_parameters(torch.from_numpy(w).to(device, dtype), weights)
        plain(twin, x, y)
        return 0.0, _flat(parameter.grad for parameter in weights).numpy()

    sharp = gasam.SharpBackward(model.named_parameters(), perturbation)
    sharp(lambda: cross_entropy(model(x), y))
    assert sharp.last is not None
    offsets, _, _, folded = reference.walk(
        _flat(weights).numpy(),
        loss_and_gradient,
        reference.groups_of(shapes, perturbation.granularity),
        scale=str(perturbation.scale),
        p=perturbation.norm,
        K=perturbation.steps,
        risk=str(perturbation.risk),
        epsilon=perturbation.epsilon,
        budget=perturbation.budget,
        cap=perturbation.cap,
        capped_groups=reference.capped_groups_of(shapes, perturbation.granularity),
    )
    lengths = np.array([np.sqrt(offset @ offset) for offset in offsets])
    found = _flat(parameter.grad for parameter in model.parameters()).numpy()
    pairs = ((found, folded), (_flat(sharp.last.norms).numpy(), lengths))
    return max(float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for ours, theirs in pairs)


def check_restore(dtype: torch.dtype, device: str) -> None:
    """Raise unless the weights have the same bits after walks, and after one that is interrupted in its last pass."""
    model, x, y = problem(dtype, device)
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    before, passes = [p.detach().clone().view(integers) for p in model.parameters()], 0

    def interrupted() -> Tensor:
        nonlocal passes
        passes += 1
        if passes == 3:
            raise KeyboardInterrupt
        return cross_entropy(model(x), y)

    for walk in WALKS:
        gasam.SharpBackward(model.named_parameters(), walk)(lambda: cross_entropy(model(x), y))
    try:
        gasam.SharpBackward(model.named_parameters(), ga_sam(0.1, steps=2))(interrupted)
    except KeyboardInterrupt:
        after = [p.detach().view(integers) for p in model.parameters()]
        if changed := sum(not torch.equal(now, then) for now, then in zip(after, before, strict=True)):
            raise ArithmeticError(f"{changed} of {len(before)} tensors have other bits after a walk") from None
        return
    raise RuntimeError("an interrupt in the loss function was swallowed")


def synchronisation(name: str, device: str) -> str:
    """Run a step that may not read a value on the host: with fake tensors on the CPU, with torch's check on CUDA."""

    def made() -> Callable[[], object]:
        model, x, y = problem(torch.float32, device)
        sharp = gasam.SharpBackward(model.named_parameters(), WALKS[0])
        return lambda: sharp(lambda: cross_entropy(model(x), y))

    kind = torch.device(device).type
    if kind == "cpu":
        with never_reading_values():
            made()()
        return "a step on tensors without values reads none"
    if kind != "cuda":
        raise NotPossibleError(f"torch can't detect synchronisation on {kind}")
    run = made()
    run()  # the first step allocates
    torch.cuda.set_sync_debug_mode("error")
    run()
    return 'a step raises nothing under torch.cuda.set_sync_debug_mode("error")'


def usual_device() -> str:
    found = torch.accelerator.current_accelerator()
    return "cpu" if found is None else str(found)


def refusal(device: str) -> str | None:
    """Why this device can't be used, as a sentence; None if it can."""
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as refused:
        reason = (str(refused).splitlines() or [""])[0]
        return f"the device {device!r} can't be used ({reason}): give one of this machine, such as {usual_device()!r}"
    return None


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gasam.doctor", description="Check gasam on this machine.")
    parser.add_argument("--device", default=usual_device(), help="the device to check (default: %(default)s)")
    options = parser.parse_args(words)
    if refused := refusal(options.device):
        parser.error(refused)
    return run(options.device)


def _flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1).cpu().double() for tensor in tensors])


if __name__ == "__main__":
    sys.exit(main())
