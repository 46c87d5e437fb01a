"""Contexts around a pass: what the passes of one step share, and what only the clean one may change.

Each is made once and given as `around`; `together` joins several. They nest, and undo themselves on exceptions.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DistributedDataParallel

from gasam.passes import Around


class same_noise:  # noqa: N801 - reads as a function, like contextlib.suppress
    """Every pass of a step draws the same random numbers, so the same dropout masks.

    Afterwards the generators stand where one plain pass would have left them. Covers the CPU and the accelerators
    in use; a generator of the caller's own is the caller's.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._starts: dict[int, list[Tensor]] = {}  # by depth: a walk inside a pass has its own

    def __call__(self, k: int, last: bool) -> AbstractContextManager[None]:
        return self._pass(k)

    @contextmanager
    def _pass(self, k: int) -> Iterator[None]:
        depth, self._depth = self._depth, self._depth + 1
        now = _generator_states()
        try:
            if k == 0:
                self._starts[depth] = now
                yield
            else:
                _set_generator_states(self._starts[depth])
                try:
                    yield
                finally:
                    _set_generator_states(now)
        finally:
            self._depth = depth


class frozen_batchnorm:  # noqa: N801
    """Running statistics count the clean pass only; every pass still normalises by its own batch.

    Those of InstanceNorm too, where it tracks any.
    """

    def __init__(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            own = dict(module.named_buffers(recurse=False))
            if isinstance(module, torch.jit.ScriptModule) and "running_mean" in own:
                raise TypeError(
                    f"frozen_batchnorm can't freeze the scripted module {name!r} ({module.original_name}): give and "
                    "train the model as it was before torch.jit"
                )
        self.model = model

    def __call__(self, k: int, last: bool) -> AbstractContextManager[Any]:
        return self._frozen() if k > 0 else ExitStack()

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        norms = [module for module in self.model.modules() if isinstance(module, _NormBase)]
        changes = [(norm, name, value) for norm in norms for name, value in _uncounted(norm).items()]
        before = [getattr(norm, name) for norm, name, _ in changes]
        try:
            for norm, name, value in changes:
                setattr(norm, name, value)
            yield
        finally:
            for (norm, name, _), value in zip(changes, before, strict=True):
                setattr(norm, name, value)


class per_worker:  # noqa: N801
    """Each worker of a DistributedDataParallel model walks by its own gradient: one all-reduce a step, whatever K.

    All passes but the last are under `no_sync`; the last one reduces what all of them left in `.grad`. The result is
    the mean of the workers' own folded gradients. In a caller's `no_sync` the last pass stays local too.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        _check_distributed("per_worker", model)
        self.model = model

    def __call__(self, k: int, last: bool) -> AbstractContextManager[Any]:
        if last:
            return ExitStack()
        if self.model.static_graph and not self.model._static_graph_delay_allreduce_enqueued:
            raise RuntimeError(
                "a DistributedDataParallel model with static_graph=True must see one synchronised backward before "
                "per_worker can leave one out: let the first step be plain (sharp.enabled = False), or leave "
                "static_graph out"
            )
        return self.model.no_sync()


class shared_walk:  # noqa: N801
    """All workers of a DistributedDataParallel model do one walk, that of the joint batch, even within `no_sync`.

    Outside of `no_sync` this is so without it. Within, as in the accumulation of gradients, the walk's own gradients
    are reduced all the same, because all workers must do the same walk; only the last pass follows the caller's choice.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        _check_distributed("shared_walk", model)
        self.model = model

    def __call__(self, k: int, last: bool) -> AbstractContextManager[Any]:
        return ExitStack() if last else self._synchronised()

    @contextmanager
    def _synchronised(self) -> Iterator[None]:
        before, self.model.require_backward_grad_sync = self.model.require_backward_grad_sync, True
        try:
            yield
        finally:
            self.model.require_backward_grad_sync = before


class together:  # noqa: N801
    """All of them around each pass, the first outermost."""

    def __init__(self, *arounds: Around) -> None:
        self.arounds = arounds

    def __call__(self, k: int, last: bool) -> AbstractContextManager[None]:
        return self._pass(k, last)

    @contextmanager
    def _pass(self, k: int, last: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for each in self.arounds:
                stack.enter_context(each(k, last))
            yield


def leaves_passes_local(around: Around) -> bool:
    """Whether `per_worker` is among what surrounds a pass: then only a fold that the last pass reduces is right."""
    if isinstance(around, together):
        return any(map(leaves_passes_local, around.arounds))
    return isinstance(around, per_worker)


def warn_of_statistics(loss: object) -> None:
    """Say so if the graph of a displaced pass's loss has batch norm with running statistics, in training."""
    if isinstance(loss, Tensor) and any(map(_counts, _nodes(loss))):
        warnings.warn(
            "passes at displaced weights count in the running statistics of batch norm, and may spoil them for "
            "evaluation: around=frozen_batchnorm(model) lets the clean passes alone count",
            UserWarning,
            stacklevel=2,
        )


def _nodes(loss: Tensor) -> Iterator[Any]:
    """Every node of its graph once."""
    ahead: list[Any] = [loss.grad_fn]
    seen: set[Any] = {None}
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += [function for function, _ in node.next_functions]
            yield node


def _counts(node: Any) -> bool:
    """Saved tensors are not unpacked, because checkpointing would run the pass again. Other nodes are ignored."""
    try:
        if "BatchNorm" not in node.name() or not node._saved_training:
            return False
        kept = node._raw_saved_running_mean.data is not None
    except AttributeError:
        return False
    try:
        return kept or node._saved_running_mean is not None
    except RuntimeError:  # a closure's backward has freed what was there
        return True


def _uncounted(norm: _NormBase) -> dict[str, Any]:
    """What it must have to count nothing; InstanceNorm counts in what statistics it has, whatever it says of them."""
    if not isinstance(norm, _InstanceNorm):
        return {"track_running_stats": False}
    return {"running_mean": None, "running_var": None} if norm.training else {}


def _check_distributed(name: str, model: object) -> None:
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"{name} needs the model as DistributedDataParallel wrapped it, got {type(model).__name__}; with FSDP the "
            "walk is shared by itself, and can't be each worker's own"
        )


def _accelerators() -> list[tuple[Any, int]]:
    """(device module, index) of every accelerator that has been used, so that asking wakes none up."""
    device = torch.accelerator.current_accelerator()
    if device is None:
        return []
    module = torch.get_device_module(device)
    if hasattr(module, "is_initialized") and not module.is_initialized():
        return []
    return [(module, i) for i in range(torch.accelerator.device_count())]


def _generator_states() -> list[Tensor]:
    return [torch.get_rng_state(), *(module.get_rng_state(index) for module, index in _accelerators())]


def standing() -> int:
    """A number for where the generators stand; asking moves none of them."""
    return zlib.crc32(b"".join(bytes(state.tolist()) for state in _generator_states()))


def _set_generator_states(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for (module, index), state in zip(_accelerators(), states[1:], strict=False):
        module.set_rng_state(state, index)
