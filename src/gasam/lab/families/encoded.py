"""Corpora encoded as tensors, their cache on disk, vocabularies, and batches of any structure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import Tensor

from gasam.lab.data.corpus import SPLITS, Corpus, Source, Split
from gasam.lab.storage import replaced, save_tensors

if TYPE_CHECKING:
    from gasam.lab.families.family import Family, Recipe

VERSION = 5
"""The version of the encoding. Increase it if the same source and settings give other tensors. Records hold it."""
FORMAT = 3
"""The version of the cache's files. Increase it if their layout changes."""
UNKNOWN = "<unk>"


class WithheldError(LookupError):
    """A search asked for the test split, which it must not see."""


@dataclass(frozen=True)
class Encoded:
    """A corpus as tensors, with the hash of the corpus and notes to show next to results.

    Args:
        shared: What was learnt from the training split, such as a vocabulary.
        splits: The examples of each split, in the family's own form.
    """

    shared: Mapping[str, Any]
    splits: Mapping[Split, Any]
    hash: str
    notes: tuple[str, ...] = ()
    version: int = VERSION

    def __getitem__(self, split: Split) -> Any:
        if split not in self.splits:
            raise WithheldError(f"the {split} split is withheld: a search must not see it")
        return self.splits[split]

    def without_test(self) -> Encoded:
        """The data without its test split, for searches. `shared` was learnt from the training split only."""
        return replace(self, splits={split: part for split, part in self.splits.items() if split != "test"})


def encoded(family: type[Family[Any]], source: Source, settings: Recipe, directory: Path) -> Encoded:
    """Read the encoded data from the cache in this folder, or encode it and write it there."""
    if family.task_text is not None:  # a task file reads its own data
        return encode(family, source.read(), settings)
    chosen = {name: value for name, value in settings if name in settings.encoding}
    key = json.dumps([FORMAT, VERSION, family.__name__, source.key, chosen], sort_keys=True)
    file = directory / f"{source.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.pt"
    try:
        return load(file)
    except FileNotFoundError:
        pass
    except Exception:  # a damaged file is made again; the kind of error depends on the damage
        file.unlink(missing_ok=True)
    data = encode(family, source.read(), settings)
    with replaced(file) as partial:
        save(data, partial)
    return data


def save(data: Encoded, file: Path | BinaryIO) -> None:
    save_tensors({name: getattr(data, name) for name in ("shared", "splits", "hash", "notes", "version")}, file)


def load(file: Path | BinaryIO) -> Encoded:
    """Read encoded data. Loading never runs code from the file."""
    return Encoded(**torch.load(file, weights_only=True))


def encode(family: type[Family[Any]], corpus: Corpus, settings: Recipe) -> Encoded:
    """Encode a corpus. `family.learn` gets only the training split."""
    chosen = {split: family.select(split, corpus.split(split), settings) for split in SPLITS}
    shared = family.learn(replace(corpus, train=chosen["train"], valid=[], test=[]), settings)
    splits = {split: family.encode(split, examples, shared, settings) for split, examples in chosen.items()}
    notes = [*corpus.notes]
    if settings.rows is not None and settings.rows < len(corpus.train):
        notes.append(f"{settings.rows:,} of the {len(corpus.train):,} training examples are used in this size")
    notes += family.notes(corpus, splits, settings)
    return Encoded(shared, splits, corpus.digest(), tuple(notes), VERSION)


class Vocabulary:
    """Numbers the words, `specials` first. Other words become <unk>, which must be one of the words."""

    def __init__(self, words: Iterable[str], specials: Sequence[str] = ()) -> None:
        self.words = list(dict.fromkeys([*specials, *words]))
        self.numbers = {word: number for number, word in enumerate(self.words)}
        self.unknown = self.numbers[UNKNOWN]

    @classmethod
    def most_frequent(
        cls, texts: Iterable[Sequence[str]], size: int, specials: Sequence[str] = (UNKNOWN,)
    ) -> Vocabulary:
        """The specials and the most frequent words, `size` in all; equally frequent words are in alphabetical order."""
        counts: Counter[str] = Counter()
        for words in texts:
            counts.update(words)
        for special in specials:
            counts.pop(special, None)
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls((word for word, _ in ranked[: max(0, size - len(specials))]), specials)

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self.numbers.get(word, self.unknown) for word in words]


def on_tensors(change: Callable[[Tensor], Any], batch: Any) -> Any:
    """A batch, tensors in tuples, lists and dictionaries of any depth, with every tensor changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: on_tensors(change, part) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_make"):  # a named tuple
        return batch._make(on_tensors(change, part) for part in batch)
    if isinstance(batch, tuple | list):
        return type(batch)(on_tensors(change, part) for part in batch)
    return batch


def to_device(batch: Any, device: torch.device) -> Any:
    return on_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)


def tensors(batch: Any) -> list[Tensor]:
    """All tensors of a batch."""
    found: list[Tensor] = []
    on_tensors(found.append, batch)
    return found


def example_count(batch: Any, dim: int = 0) -> int:
    """The number of examples of a batch, from its first tensor that has the dimension `dim`; 0 without one."""
    return next((tensor.shape[dim] for tensor in tensors(batch) if tensor.ndim > dim), 0)
