"""`Weights`, the weights that a walk moves and restores bit for bit, and `displaced`, which holds an offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gasam.layout import Layout
from gasam.sharded import forget_derived, is_sharded
from gasam.torch_private import copy_all, local, storage_identity

_CURE = "move or convert the model between steps, not in the loss function"


class Weights:
    """All tensors that may move, with buffers that are kept between steps. `strengths` are factors of their T."""

    def __init__(
        self, tensors: Sequence[Tensor], names: Sequence[str] | None = None, strengths: Sequence[float] | None = None
    ) -> None:
        self.tensors = list(tensors)
        self.names = names
        self.strengths = strengths
        self.walking = False
        self._sharded = any(map(is_sharded, self.tensors))
        self._layout: Layout | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"walking": False, "_layout": None}

    def begin(self) -> None:
        """Begin a walk from the present weights, also if an earlier walk could not restore them."""
        for portion in () if self._layout is None else self._layout.portions:
            portion.saved = False
        self.walking = True

    def taking_part(self, granularity: str) -> Layout:
        """The layout of the tensors that have a gradient now."""
        present = [tensor for tensor in self.tensors if tensor.grad is not None and tensor.requires_grad]
        if self._layout is None or not self._layout.fits(present, granularity):
            buffers = {} if self._layout is None else self._layout.buffers
            strengths = self._strengths_of(present)
            self._layout = Layout(present, self._names_of(present), granularity, buffers, strengths)
        return self._layout

    def check_in_place(self) -> None:
        """Raise if a pass replaced a parameter's storage, because the next ascent step would move the old storage."""
        assert self._layout is not None
        layout = self._layout
        for in_place, parameter, storage in zip(layout.in_place(), layout.parameters, layout.storage, strict=True):
            if not in_place and storage_identity(local(parameter)) != storage_identity(storage):
                raise RuntimeError(
                    f"a displaced pass replaced the storage of {self._names_of([parameter])[0]}, so that a walk of "
                    f"several steps can't continue: {_CURE}"
                )

    def written(self) -> None:
        """After portions were written: write the sparse rows, and drop outdated copies of the weights."""
        if self._layout is not None:
            for rows in self._layout.sparse.values():
                rows.write()
        forget_derived(self.tensors if self._sharded else ())

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the saved weights bit for bit, even if a pass replaced a parameter's storage.

        Portions are restored in reverse order, because tensors may share memory. They stay marked as saved until all
        are restored, so that everything is written again after an interrupt or a failure that may not last. If one
        portion fails, the others are still restored, and the failure is raised at the end.
        """
        if self._layout is None or not any(portion.saved for portion in self._layout.portions):
            return
        failures = list[RuntimeError]()
        for portion in reversed(self._layout.portions):
            try:
                portion.restore()
            except RuntimeError as failure:
                failures.append(failure)
        self.written()
        if failures:
            raise failures[0]
        failures += self._restore_rebound(self._layout)
        for portion in self._layout.portions:
            portion.saved = False
        if failures:
            raise failures[0]

    def _restore_rebound(self, layout: Layout) -> list[RuntimeError]:
        """If a pass replaced a parameter's storage, also copy the restored values into the new storage.

        If the new storage belongs to another weight, the parameter gets its old storage back instead.
        """
        if all(layout.in_place()):
            return []
        failures, originals = list[RuntimeError](), set(map(storage_identity, layout.storage))
        for in_place, parameter, storage in zip(layout.in_place(), layout.parameters, layout.storage, strict=True):
            if in_place:
                continue
            current = local(parameter)
            if (current.shape, current.dtype, current.device) != (storage.shape, storage.dtype, storage.device):
                name, before, now = self._names_of([parameter])[0], _described(storage), _described(current)
                message = f"{name} changed from {before} to {now} in a displaced pass and can't be restored: {_CURE}"
                failures.append(RuntimeError(message))
            elif storage_identity(current) in originals:
                parameter.data = storage
            else:
                current.copy_(storage)
        return failures

    @torch.no_grad()
    def offset(self) -> list[Tensor]:
        """The present weights minus the saved ones; zero for tensors that have not moved."""
        offsets = [torch.zeros_like(tensor) for tensor in self.tensors]
        if self._layout is None or not any(portion.saved for portion in self._layout.portions):
            return offsets
        offset_of = {id(tensor): local(offset) for tensor, offset in zip(self.tensors, offsets, strict=True)}
        found = [torch.zeros_like(tensor) for tensor in self._layout.operands]
        for portion in self._layout.portions:
            portion.write(portion.read(self._layout.operands) - portion.saved_weights(), found)
        for i, (parameter, offset) in enumerate(zip(self._layout.parameters, found, strict=True)):
            if i in self._layout.sparse:
                self._layout.sparse[i].put(offset, offset_of[id(parameter)])
            else:
                offset_of[id(parameter)].copy_(offset)
        return offsets

    def _strengths_of(self, tensors: Sequence[Tensor]) -> list[float]:
        if self.strengths is None:
            return []
        strength_of = {id(tensor): strength for tensor, strength in zip(self.tensors, self.strengths, strict=True)}
        return [strength_of[id(tensor)] for tensor in tensors]

    def _names_of(self, tensors: Sequence[Tensor]) -> list[str]:
        names = self.names or [f"parameter {i}" for i in range(len(self.tensors))]
        name_of = {id(tensor): name for tensor, name in zip(self.tensors, names, strict=True)}
        return [name_of[id(tensor)] for tensor in tensors]


@contextmanager
def displaced(weights: Sequence[Tensor], offset: Sequence[Tensor]) -> Iterator[None]:
    """Set the weights to weights + offset inside the block, and restore them bit for bit, also after an exception."""
    saved = [weight.detach().clone() for weight in weights]
    try:
        with torch.no_grad():
            for weight, step in zip(weights, offset, strict=True):
                weight.add_(step)
        forget_derived(weights)
        yield
    finally:
        run_again_if_interrupted(lambda: _copy(saved, weights))


def run_again_if_interrupted(action: Callable[[], object]) -> None:
    """Call the action, and call it again if it was interrupted, because it may be incomplete."""
    try:
        action()
    except BaseException:
        action()
        raise


@contextmanager
def undone_after_failure(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the block fails. Nest two of them, in case an interrupt cuts off the first cleanup."""
    try:
        yield
    except BaseException:
        run_again_if_interrupted(undo)
        raise


@torch.no_grad()
def _copy(saved: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    copy_all([local(weight) for weight in weights], [local(each) for each in saved])
    forget_derived(weights)


def _described(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}, {tensor.dtype}, {tensor.device}"
