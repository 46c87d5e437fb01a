"""The examples of one split, as a task file gives them: tensors with a row for each example, or a dataset."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, default_collate

from gasam.lab.errors import InputError
from gasam.lab.families.batches import on_tensors, tensors

SAMPLED = 256
"""The number of examples of a dataset that are hashed. Tensors are hashed as a whole."""

Collate = Callable[[list[Any]], Any]


class Examples:
    """The examples of a split.

    A tuple or a dictionary holds tensors with one row for each example. Anything else is a sequence of examples, such
    as a list or a `torch.utils.data.Dataset`.
    """

    def __init__(self, given: Any, split: str, numbers: Sequence[int] | None = None) -> None:
        self.given, self.split = given, split
        self.in_tensors = isinstance(given, tuple | Mapping)
        self.numbers = range(self._length()) if numbers is None else numbers
        if not self.numbers:
            raise InputError(f"data() must give at least one example for {split}, got none")

    def __len__(self) -> int:
        return len(self.numbers)

    def only(self, numbers: Sequence[int]) -> Examples:
        """The examples with these numbers."""
        return Examples(self.given, self.split, [self.numbers[number] for number in numbers])

    def batch(self, chosen: Tensor, collate: Collate | None = None) -> Any:
        """The chosen examples as one batch.

        Args:
            chosen: The numbers of the examples.
            collate: Makes a batch of a list of examples; by default torch's `default_collate`. It is not used for
                tensors.
        """
        numbers = [self.numbers[number] for number in chosen.tolist()]
        if self.in_tensors:
            rows = torch.tensor(numbers)
            return on_tensors(lambda tensor: tensor[rows], self.given)
        return (collate or default_collate)([self.given[number] for number in numbers])

    def parts(self) -> Iterator[bytes]:
        """The content as bytes, for the hash: all rows of tensors, and a sample of the examples of a dataset."""
        yield str(len(self)).encode()
        if self.in_tensors:
            rows = torch.tensor(list(self.numbers))
            yield from _bytes_of(on_tensors(lambda tensor: tensor[rows], self.given))
            return
        step = max(1, len(self) // SAMPLED)
        for number in self.numbers[::step]:
            yield from _bytes_of(self.given[number])

    def _length(self) -> int:
        if self.in_tensors:
            lengths = {tensor.shape[0] if tensor.ndim else -1 for tensor in tensors(self.given)}
            if len(lengths) != 1 or -1 in lengths:
                raise InputError(
                    f"the tensors that data() gives for {self.split} must have the same number of rows, "
                    f"got {', '.join(map(str, sorted(lengths))) or 'no tensors'}"
                )
            return lengths.pop()
        if isinstance(self.given, IterableDataset) or not hasattr(self.given, "__getitem__"):
            raise InputError(
                f"data() must give a dataset with numbered examples, a list or a tuple of tensors for {self.split}, "
                f"got {type(self.given).__name__}"
            )
        return len(self.given)


def content_hash(splits: Sequence[Examples]) -> str:
    """A hash of the examples. Random changes that a dataset makes to its examples are drawn with a fixed seed."""
    sha = hashlib.sha256()
    states = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        for examples in splits:
            sha.update(f"\1{examples.split}".encode())
            for part in examples.parts():
                sha.update(part)
                sha.update(b"\0")
    random.setstate(states[0])
    numpy.random.set_state(states[1])
    return sha.hexdigest()


def _bytes_of(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif hasattr(value, "tobytes"):  # arrays, and the images of PIL
        yield str(getattr(value, "dtype", type(value).__name__)).encode()
        yield str(getattr(value, "shape", getattr(value, "size", ""))).encode()
        yield value.tobytes()
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield str(name).encode()
            yield from _bytes_of(value[name])
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _bytes_of(part)
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, str | int | float | None):
        yield repr(value).encode()
    else:
        yield pickle.dumps(value, protocol=5)
