"""`Weights`: where the weights are, where w + a is written, and the exchange of the two."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gasam.distributed import is_sharded, reshard_all
from gasam.groups import Groups, Operand, Piece, by_rows, limits
from gasam.torch_private import copy_all, get_gradient, hides_its_memory, local, set_data, storage_identity


class Weights:
    """All tensors that may move. In a pass at w + a most point to other memory, and their own is not written.

    That memory is kept between steps, so that its address stays the same. FSDP2's shards, tensors that share their
    storage with others or have gaps in it, and all with `in_place` are written in place and copied back.

    Args:
        tensors: The parameters.
        names: Their names.
        in_place: Write all weights in place, for a model that reads their memory by another name.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        names: Sequence[str] | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        self.tensors = list(tensors)
        self.names = [f"parameter {i}" for i in range(len(self.tensors))] if names is None else names
        self.in_place = in_place
        self.walking = False
        self.keeps_graph = False  # whether a graph that was made at w + a waits until the weights are there again
        self._sharded = any(map(is_sharded, self.tensors))
        self._moved = False  # whether memory was written that `home` must bring back
        self._groups = Groups([], "")
        self._twins: dict[int, Tensor] = {}  # other memory by parameter, for those that are not packed

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have the tensors, and make memory of their own."""
        return {name: getattr(self, name) for name in ("tensors", "names", "in_place")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @contextmanager
    def away(self) -> Iterator[None]:
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
    def prepared(self, granularity: str, moves: Callable[[Tensor], bool] | None = None) -> Groups:
        """The groups of the trained tensors that `moves` chooses, by default of those that have a gradient now.

        Their memory is laid out, and w is copied where it will be overwritten.
        """
        chosen = [g is not None for g in map(get_gradient, self.tensors)] if moves is None else map(moves, self.tensors)
        pairs = enumerate(zip(self.tensors, chosen, strict=True))
        present = [i for i, (tensor, here) in pairs if here and tensor.requires_grad and tensor.numel()]
        if not self._fits(present, granularity):
            self._lay_out(present, granularity)
        if self._copied:
            copy_all(self._copies, self._copied)
        self._load()
        return self._groups

    def _load(self) -> None:
        for packed, _ in self._groups.packs:
            packed.load()

    @property
    def written_in_place(self) -> bool:
        """Whether some of the groups' weights are written into their own memory."""
        return bool(self._written[0])

    def _fits(self, present: list[int], granularity: str) -> bool:
        """Whether another step can reuse the groups: same tensors and same memory."""
        known = self._groups
        if not known.operands or known.granularity != granularity or present != self._present:
            return False
        here = [self.tensors[i] for i in present]
        return all(map(Tensor.is_set_to, self._memories, map(local, here) if self._sharded else here))

    def _lay_out(self, present: list[int], granularity: str) -> None:
        """Decide for each of these tensors from where w is read, and where w + a is written."""
        memories = [local(self.tensors[i]).detach() for i in present]
        tenants: dict[int, list[Tensor]] = {}
        for memory in memories:
            tenants.setdefault(storage_identity(memory), []).append(memory)
        overlapping = {storage for storage, here in tenants.items() if overlap(here)}
        operands, apart = list[Operand](), list[Operand]()
        for i, memory in zip(present, memories, strict=True):
            tensor, storage = self.tensors[i], storage_identity(memory)
            if hides_its_memory(tensor) and not is_sharded(tensor):
                raise TypeError(
                    f"{self.names[i]} is a {type(tensor).__name__}, whose memory the walk can't exchange: put it into "
                    "a group with 'perturb': False"
                )
            operand = Operand(tensor, self.names[i], memory, memory)
            operands.append(operand)
            in_rows = by_rows(tensor, granularity)
            rows_lie_apart = in_rows and memory.stride(0) < max(memory.stride())
            if storage in overlapping or not _is_dense(memory) or rows_lie_apart:
                operand.source, operand.target = torch.empty(2, *memory.shape, dtype=memory.dtype, device=memory.device)
                apart.append(operand)
            elif self.in_place or is_sharded(tensor) or len(tenants[storage]) > 1:
                operand.source, operand.target = self._twin(i, memory), memory
            elif in_rows or not 0 < memory.numel() <= limits(memory).small:
                operand.target = self._twin(i, memory)
        groups = Groups(operands, granularity)  # everything is allocated now, or the layout before stays
        self._groups, self._present, self._memories, self._apart = groups, present, memories, apart
        unsharded = [o for o in operands if not is_sharded(o.parameter)]
        copied = [o for o in operands if o.source is not o.memory]
        written = [o for o in copied if o.target is o.memory or o in apart]
        self._unsharded, self._own = [o.parameter for o in unsharded], [o.memory for o in unsharded]
        self._away: list[Any] = [o.memory if o in written else o.target for o in unsharded]
        self._copied, self._copies = [o.memory for o in copied], [o.source for o in copied]
        self._written = [o.memory for o in written], [o.source for o in written]

    def _twin(self, i: int, memory: Tensor) -> Tensor:
        """Other memory for a tensor, with the same strides; that of an earlier layout if it still fits."""
        known = self._twins.get(i)
        if known is None or _kind(known) != _kind(memory) or known.stride() != memory.stride():
            known = torch.empty_strided(memory.shape, memory.stride(), dtype=memory.dtype, device=memory.device)
            self._twins[i] = known
        return known

    def displace(self, moves: Iterable[tuple[Piece, Tensor, Tensor]]) -> None:
        """Write w + factor * values for each (piece, values, factor), and let the parameters point there."""
        if self._moved:  # w + a has overwritten the copies of small tensors
            self._load()
        self._moved = True
        for piece, values, factor in moves:
            piece.write(values, factor)
        for operand in self._apart:
            operand.memory.copy_(operand.source)
        for operand in self._apart:  # added, because another tensor may use the same memory
            operand.memory.add_(operand.target - operand.source)  # type: ignore[operator]
        self._point(self._away)

    @torch.no_grad()
    def home(self) -> None:
        """Bring the weights back, bit for bit. Raise afterwards if a pass changed a shape, a type or the device."""
        if not self._moved:
            return
        changed = ""
        if not all(map(Tensor.is_set_to, self._unsharded, self._away)):
            for operand in self._groups.operands:
                now, before = _kind(local(operand.parameter)), _kind(operand.memory)
                if now != before and not changed:
                    changed = f"{operand.name} changed from {before} to {now}"
        if self._written[0]:
            copy_all(*self._written)
        self._point(self._own)
        self._moved = False
        if changed:
            raise RuntimeError(
                f"{changed} in a displaced pass: move or convert the model between steps, not in the loss function"
            )

    def _point(self, memories: Sequence[Tensor]) -> None:
        deque(map(set_data, self._unsharded, memories), maxlen=0)
        # torch does not notice the exchange: without this a graph from before it would give wrong gradients silently.
        if not self.keeps_graph:
            increment_version(self._unsharded)
        forget_copies(self._sharded)

    @torch.no_grad()
    def offset(self) -> list[Tensor]:
        """The present weights minus those at home; zero for tensors that have not moved."""
        offsets = [torch.zeros_like(tensor) for tensor in self.tensors]
        for i, operand in zip(self._present, self._groups.operands, strict=True) if self._moved else ():
            local(offsets[i]).copy_(operand.target - operand.source)  # type: ignore[operator]
        return offsets


def forget_copies(sharded: bool) -> None:
    """Drop copies of weights that are no longer right: autocast's casts and gathered shards."""
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


def _is_dense(tensor: Tensor) -> bool:
    """Whether the tensor fills its part of the memory, in any order of its dimensions, without a gap or an overlap."""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _kind(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}, {tensor.dtype}, {tensor.device}"
