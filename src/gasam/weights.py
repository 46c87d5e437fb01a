"""`Weights`: where the weights are, where w + a is written, and the exchange of the two; `displaced`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gasam.distributed import is_sharded, reshard_all
from gasam.groups import Groups, Operand, by_rows
from gasam.passes import uninterrupted
from gasam.pieces import dense, limits
from gasam.torch_private import copy_all, get_gradient, hides_its_memory, local, set_data, storage_identity

_CURE = "move or convert the model between steps, not in the loss function"


class Weights:
    """All tensors that may move. In a pass at w + a they point to other memory; their own is never written.

    That memory is kept between steps, so that its address stays the same. Weights of which the pointer can't be
    exchanged are written in place instead, and copied back: FSDP2's shards, and rows that a sparse gradient touches.

    Args:
        tensors: The parameters.
        names: Their names.
        strengths: Factors of their T; None means that all are 1.
        in_place: Write all weights in place, for a model that reads their memory by another name.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        names: Sequence[str] | None = None,
        strengths: Sequence[float] | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        self.tensors = list(tensors)
        self.names = [f"parameter {i}" for i in range(len(self.tensors))] if names is None else names
        self.strengths = [1.0] * len(self.tensors) if strengths is None else strengths
        self.in_place = in_place
        self.walking = False
        self._sharded = any(map(is_sharded, self.tensors))
        self._moved = False  # whether memory was written that `home` must bring back
        self._groups: Groups | None = None
        self._twins: dict[int, Tensor] = {}  # other memory by parameter, for those that are not packed

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have the tensors, and make memory of their own."""
        return {name: getattr(self, name) for name in ("tensors", "names", "strengths", "in_place")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @contextmanager
    def walk(self) -> Iterator[None]:
        """One walk. At the end the weights are home, whatever happened."""
        if self.walking:
            raise RuntimeError("these weights are on a walk already: do not start another walk in the loss function")
        self.walking, self._moved = True, False  # from the present weights, whatever an earlier walk left
        try:
            yield
        finally:
            self.walking = False
            self.home()

    @torch.no_grad()
    def taking_part(self, granularity: str) -> Groups:
        """The groups of the tensors that have a gradient now."""
        gradients = map(get_gradient, self.tensors)
        present = [t for t, g in zip(self.tensors, gradients, strict=True) if g is not None and t.requires_grad]
        if self._groups is None or not self._fits(self._groups, present, granularity):
            self._lay_out(present, granularity)
        if self._copied:
            copy_all(self._copies, self._copied)
        groups: Groups = self._groups  # type: ignore[assignment]
        for packed in groups.packed.values():
            packed.holds_weights = False
        return groups

    def _fits(self, groups: Groups, present: Sequence[Tensor], granularity: str) -> bool:
        """Whether another step can reuse the groups: same tensors, same memory, and no sparse gradients."""
        return (
            groups.granularity == granularity
            and list(map(id, present)) == self._present
            and all(map(Tensor.is_set_to, self._memories, map(local, present) if self._sharded else present))
            and not self._touched
            and not any(gradient.is_sparse for gradient in map(get_gradient, present))
        )

    def _lay_out(self, present: Sequence[Tensor], granularity: str) -> None:
        self._present = list(map(id, present))
        self._memories = [local(tensor).detach() for tensor in present]
        known = {
            id(t): (name, strength) for t, name, strength in zip(self.tensors, self.names, self.strengths, strict=True)
        }
        together, shares = self._shared_twins(present, self._memories)
        operands = list[Operand]()
        for tensor, memory in zip(present, self._memories, strict=True):
            name, strength = known[id(tensor)]
            if hides_its_memory(tensor) and not is_sharded(tensor):
                raise TypeError(
                    f"{name} is a {type(tensor).__name__}, whose memory the walk can't exchange: put it into a group "
                    "with 'perturb': False"
                )
            operand = Operand(tensor, name, strength, memory, memory, adds=id(tensor) in shares)
            operand.rows, in_place = _touched_rows(tensor), self.in_place or is_sharded(tensor)
            operands.append(operand)
            if operand.rows is not None:
                operand.source = memory.index_select(0, operand.rows)
                operand.target = torch.empty_like(operand.source)
                continue
            twin: Any = together.get(id(tensor))
            in_order = dense(memory) and not (by_rows(tensor, granularity) and memory.stride(0) < max(memory.stride()))
            small = in_order and not by_rows(tensor, granularity) and 0 < memory.numel() <= limits(memory).small
            if twin is None and (in_place or not small):
                twin = self._twin(tensor, memory)
            if operand.adds or not in_order:
                operand.source, operand.target = torch.empty(2, *memory.shape, dtype=memory.dtype, device=memory.device)
                operand.place = memory if in_place else twin
            elif in_place:
                operand.source, operand.target = twin, memory
            else:
                operand.target = twin
        self._groups = Groups(operands, granularity, {} if self._groups is None else self._groups.packed)
        self._find_places(operands)

    def _find_places(self, operands: Sequence[Operand]) -> None:
        """Sort the operands by how they move."""
        plain = [o for o in operands if not is_sharded(o.parameter)]
        self._plain, self._own = [o.parameter for o in plain], [o.memory for o in plain]
        self._away: list[Any] = [
            o.memory if o.rows is not None else o.target if o.place is None else o.place for o in plain
        ]
        self._touched = [o for o in operands if o.rows is not None]
        self._placed = [o for o in operands if o.place is not None]
        copied = [o for o in operands if o.rows is None and o.source is not o.memory]
        self._copied, self._copies = [o.memory for o in copied], [o.source for o in copied]
        written = [o for o in copied if o.memory is o.target or o.memory is o.place]
        self._written = [o.memory for o in written], [o.source for o in written]

    def _twin(self, tensor: Tensor, memory: Tensor) -> Tensor:
        """Other memory for a tensor, with the same strides; that of an earlier layout if it still fits."""
        known = self._twins.get(id(tensor))
        if known is None or _kind(known) != _kind(memory) or known.stride() != memory.stride():
            if dense(memory):
                known = torch.empty_strided(memory.shape, memory.stride(), dtype=memory.dtype, device=memory.device)
            else:
                known = _view_of(_clone_of_storage(memory), memory)
            self._twins[id(tensor)] = known
        return known

    def _shared_twins(
        self, present: Sequence[Tensor], memories: Sequence[Tensor]
    ) -> tuple[dict[int, Tensor], set[int]]:
        """Other memory for tensors that share a storage: views of one clone of it, at the same places.

        Also which of these tensors overlap with others.
        """
        by_storage: dict[int, list[tuple[int, Tensor]]] = {}
        for tensor, memory in zip(present, memories, strict=True):
            if memory.numel() and not tensor.grad.is_sparse:  # type: ignore[union-attr]
                by_storage.setdefault(storage_identity(memory), []).append((id(tensor), memory))
        twins, shares = dict[int, Tensor](), set[int]()
        for together in by_storage.values():
            if len(together) > 1:
                clone = _clone_of_storage(together[0][1])
                twins |= {i: _view_of(clone, memory) for i, memory in together}
                if overlap([memory for _, memory in together]):
                    shares |= {i for i, _ in together}
        return twins, shares

    def leave(self) -> None:
        """Before w + a is written: the weights must be brought back."""
        self._moved = True

    def arrive(self) -> None:
        """After w + a was written: let the parameters point to it."""
        for operand in self._touched:
            operand.memory.index_copy_(0, operand.rows, operand.target)  # type: ignore[arg-type]
        for operand in self._placed:
            operand.place.copy_(operand.source if operand.adds else operand.target)  # type: ignore[union-attr,arg-type]
        for operand in self._placed:
            if operand.adds:
                operand.place.add_(operand.target - operand.source)  # type: ignore[union-attr,operator]
        self._point(self._away)

    @torch.no_grad()
    def home(self) -> None:
        """Bring the weights back, bit for bit. Raise afterwards if a pass changed a shape, a type or the device."""
        if not self._moved:
            return
        changed = list[tuple[Tensor, str]]()
        if not all(map(Tensor.is_set_to, self._plain, self._away)):
            for parameter, own in zip(self._plain, self._own, strict=True):
                if _kind(parameter) != _kind(own):
                    changed.append((parameter, f"from {_described(own)} to {_described(parameter)}"))
        if self._written[0]:
            copy_all(*self._written)
        for operand in self._touched:
            operand.memory.index_copy_(0, operand.rows, operand.source)  # type: ignore[arg-type]
        self._point(self._own)
        self._moved = False
        if changed:
            name = next(n for t, n in zip(self.tensors, self.names, strict=True) if t is changed[0][0])
            raise RuntimeError(f"{name} changed {changed[0][1]} in a displaced pass: {_CURE}")

    def _point(self, memories: Sequence[Tensor | None]) -> None:
        deque(map(set_data, self._plain, memories), maxlen=0)
        # torch does not notice the exchange: without this a graph from before it would give wrong gradients silently.
        increment_version(self._plain)
        torch.clear_autocast_cache()
        if self._sharded:
            reshard_all()

    @torch.no_grad()
    def offset(self) -> list[Tensor]:
        """The present weights minus those at home; zero for tensors that have not moved."""
        offsets = [torch.zeros_like(tensor) for tensor in self.tensors]
        offset_of = {id(tensor): local(offset) for tensor, offset in zip(self.tensors, offsets, strict=True)}
        for operand in self._groups.operands if self._moved and self._groups else ():
            found, target = offset_of[id(operand.parameter)], operand.target
            assert target is not None
            if operand.rows is not None:
                found.index_copy_(0, operand.rows, target - operand.source)
            else:
                found.copy_(target - operand.source)
        return offsets


@contextmanager
def displaced(weights: Sequence[Tensor], offset: Sequence[Tensor]) -> Iterator[None]:
    """Set the weights to weights + offset inside the block, and restore them bit for bit, also after an exception."""
    saved = [weight.detach().clone() for weight in weights]
    sharded = any(map(is_sharded, weights))
    with uninterrupted() as held:
        try:
            with torch.no_grad():
                for weight, step in zip(weights, offset, strict=True):
                    weight.add_(step)
            _forget_copies(sharded)
            with held.let():
                yield
        finally:
            with torch.no_grad():
                copy_all([local(weight) for weight in weights], [local(each) for each in saved])
            _forget_copies(sharded)


def _forget_copies(sharded: bool) -> None:
    """Drop copies of weights that have been overwritten: autocast's casts and gathered shards."""
    torch.clear_autocast_cache()
    if sharded:
        reshard_all()


def overlap(tensors: Sequence[Tensor | None]) -> bool:
    """Whether two tensors may share memory, so that writing one would change the other."""
    here = [local(tensor) for tensor in tensors if tensor is not None and not tensor.is_sparse]
    storages = [storage_identity(tensor) for tensor in here]
    if len(set(storages)) == len(storages):
        return False
    spans = sorted((at, *_span(tensor)) for at, tensor in zip(storages, here, strict=True) if tensor.numel())
    return any(one[0] == other[0] and other[1] < one[2] for one, other in pairwise(spans))


def _span(tensor: Tensor) -> tuple[int, int]:
    """The range of bytes in its storage that the tensor may use."""
    start, size, length = int(tensor.storage_offset()), tensor.element_size(), tensor.numel()
    if not tensor.is_contiguous():
        length = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start * size, (start + length) * size


def _clone_of_storage(tensor: Any) -> Any:
    return tensor.untyped_storage().clone()


def _view_of(storage: Any, like: Tensor) -> Tensor:
    """A view of a storage with the place, shape and strides that a tensor has in its own."""
    empty = torch.empty(0, dtype=like.dtype, device=like.device)
    return empty.set_(storage, like.storage_offset(), like.shape, like.stride())


def _touched_rows(parameter: Tensor) -> Tensor | None:
    """The rows of its sparse gradient. None if the gradient is handled as dense: no rows, or sparse within rows."""
    gradient = parameter.grad
    if gradient is None or not gradient.is_sparse or gradient.sparse_dim() != 1:
        return None
    rows = gradient.coalesce().indices()[0]
    return rows if len(rows) else None


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def _described(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}, {tensor.dtype}, {tensor.device}"
