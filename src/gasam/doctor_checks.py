"""The checks of `python -m gasam.doctor`: the walk against the reference, the restore, synchronisation and cost."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gasam.backward import SharpBackward
from gasam.perturbation import Perturbation, asam, ga_sam, layer_sam, sam
from gasam.torch_private import never_reading_values

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
# Of the reference, relative to its largest entry. Both compute the passes in the same type, so only the offset differs:
# by a rounding of each weight in a low type.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
TYPES = tuple(TOLERANCES)
WALKS = (ga_sam(budget=0.1, cap=0.05, steps=2), sam(0.05), asam(0.05), layer_sam(0.05, norm=1.5))
SLOW = 3.0
"""Times two plain passes of a small model."""


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    status: str
    detail: str


def of_type(name: str, device: str) -> list[Finding]:
    """Compare the walk with the reference, and check the restore, in one type."""
    dtype = getattr(torch, name)
    try:
        plain(*problem(dtype, device))
    except (RuntimeError, TypeError) as refused:
        line = (str(refused).splitlines() or [""])[0]
        return [Finding(f"{name} walk", SKIPPED, f"torch does not train in this type on {device}: {line}")]
    checks = {
        f"{name} walk": lambda: against_reference(dtype, device),
        f"{name} restore": lambda: restore(dtype, device),
    }
    return [guarded(check, action) for check, action in checks.items()]


def guarded(check: str, action: Callable[[], tuple[str, str]]) -> Finding:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Finding(check, *action())
    except Exception as failure:
        return Finding(check, FAILED, f"raised {type(failure).__name__}: {failure}")


def problem(dtype: torch.dtype, device: str, width: int = 24, rows: int = 32) -> tuple[nn.Module, Tensor, Tensor]:
    """A small network and a batch, the same in every type."""
    generator = torch.Generator().manual_seed(0)
    to: Any = {"device": device, "dtype": dtype}
    layers = (
        nn.Linear(width, width, **to),
        nn.Tanh(),
        nn.Linear(width, width, **to),
        nn.Tanh(),
        nn.Linear(width, 5, **to),
    )
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / width**0.5)
    x = torch.randn(rows, width, generator=generator)
    y = torch.randint(5, (rows,), generator=generator)
    return model, x.to(device, dtype), y.to(device)


def plain(model: nn.Module, x: Tensor, y: Tensor) -> None:
    for parameter in model.parameters():
        parameter.grad = None
    cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]


def against_reference(dtype: torch.dtype, device: str) -> tuple[str, str]:
    """Compare the gradient for the optimizer and the length of each offset with gasam/reference.py."""
    if find_spec("numpy") is None:
        return SKIPPED, "the reference needs NumPy: run `pip install numpy`"
    errors = [reference_error(walk, dtype, device) for walk in WALKS]
    limit = TOLERANCES[str(dtype).removeprefix("torch.")]
    status = OK if max(errors) <= limit else FAILED  # a NaN is not <= anything
    return (
        status,
        f"largest error {max(errors):.1e} of {len(WALKS)} walks against the float64 reference (limit {limit:g})",
    )


def reference_error(perturbation: Perturbation, dtype: torch.dtype, device: str) -> float:
    import numpy as np

    from gasam import reference

    model, x, y = problem(dtype, device)
    twin, _, _ = problem(dtype, device)
    weights = list(twin.parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in twin.named_parameters()}

    def loss_and_gradient(w: reference.Vector) -> tuple[float, reference.Vector]:
        parts = torch.split(torch.from_numpy(w), [parameter.numel() for parameter in weights])
        with torch.no_grad():
            for parameter, part in zip(weights, parts, strict=True):
                parameter.copy_(part.reshape(parameter.shape).to(dtype))
        plain(twin, x, y)
        return 0.0, _flat(parameter.grad for parameter in weights).numpy()

    sharp = SharpBackward(model.named_parameters(), perturbation)
    sharp(lambda: cross_entropy(model(x), y))
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
    assert sharp.last is not None
    lengths = np.array([np.sqrt(offset @ offset) for offset in offsets])
    found = _flat(parameter.grad for parameter in model.parameters()).numpy()
    pairs = ((found, folded), (np.array([float(norm) for norm in sharp.last.norms]), lengths))
    return max(float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for ours, theirs in pairs)


def restore(dtype: torch.dtype, device: str) -> tuple[str, str]:
    """Check that the weights have the same bits after walks, and after one that fails in its last pass."""
    model, x, y = problem(dtype, device)
    before, passes = [parameter.detach().clone() for parameter in model.parameters()], 0

    def failing() -> Tensor:
        nonlocal passes
        passes += 1
        if passes == 3:
            raise KeyboardInterrupt
        return cross_entropy(model(x), y)

    for walk in WALKS:
        SharpBackward(model.named_parameters(), walk)(lambda: cross_entropy(model(x), y))
    try:
        SharpBackward(model.named_parameters(), ga_sam(0.1, steps=2))(failing)
    except KeyboardInterrupt:
        pass
    else:
        return FAILED, "an interrupt in the loss function was swallowed"
    size = {2: torch.int16, 4: torch.int32, 8: torch.int64}[before[0].itemsize]
    changed = sum(
        not torch.equal(p.detach().view(size), b.view(size)) for p, b in zip(model.parameters(), before, strict=True)
    )
    if changed:
        return FAILED, f"{changed} of {len(before)} tensors have other bits after a walk"
    return OK, f"the same bits after {len(WALKS)} walks and an interrupted one"


def synchronisation(device: str) -> tuple[str, str]:
    """Run a step that may not read a value on the host: with fake tensors on the CPU, with torch's check on CUDA."""
    kind = torch.device(device).type
    if kind == "cpu":
        with never_reading_values():
            step(device)
        return OK, "a step on tensors without values reads none"
    if kind != "cuda":
        return SKIPPED, f"torch can't detect synchronisation on {kind}"
    run = step(device)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return OK, 'a step raises nothing under torch.cuda.set_sync_debug_mode("error")'


def step(device: str) -> Callable[[], object]:
    """Run a step of the recommended walk; return a function that runs another."""
    model, x, y = problem(torch.float32, device)
    sharp = SharpBackward(model.named_parameters(), WALKS[0])
    sharp(lambda: cross_entropy(model(x), y))
    return lambda: sharp(lambda: cross_entropy(model(x), y))


def cost(device: str, rounds: int = 15) -> tuple[str, str]:
    """Compare a step of one ascent step with two plain passes, in turns."""
    model, x, y = problem(torch.float32, device, width=512, rows=256)
    sharp = SharpBackward(model.named_parameters(), ga_sam(1e-3))

    def two_passes() -> None:
        plain(model, x, y)
        plain(model, x, y)

    def walk() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        sharp(lambda: cross_entropy(model(x), y))

    ratios, seconds = list[float](), list[float]()
    for round_ in range(rounds + 3):
        taken = [_seconds(action, device) for action in (two_passes, walk)]
        if round_ >= 3:  # the first ones allocate
            ratios.append(taken[1] / taken[0])
            seconds.append(taken[0])
    ratio, base = statistics.median(ratios), 1000 * statistics.median(seconds)
    return OK if ratio < SLOW else FAILED, f"a walk takes {ratio:.2f} times as long as two plain passes ({base:.1f} ms)"


def _seconds(action: Callable[[], None], device: str) -> float:
    kind = torch.device(device).type
    if kind != "cpu":
        torch.accelerator.synchronize()
    began = time.perf_counter()
    action()
    if kind != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - began


def _flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1).cpu().double() for tensor in tensors])
