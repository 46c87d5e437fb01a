"""Corpora encoded as tensors, and their cache on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from gasam.lab.data.corpus import SPLITS, Corpus, Source, Split
from gasam.lab.storage import replaced, save_tensors

if TYPE_CHECKING:
    from gasam.lab.families.family import Family, Recipe

VERSION = 5
"""The version of the encoding. Increase it if the same source and settings give other tensors. Records hold it."""
FORMAT = 2
"""The version of the cache's files. Increase it if their layout changes."""


class WithheldError(LookupError):
    """A search asked for the test split, which it must not see."""


@dataclass(frozen=True)
class Encoded:
    """A corpus as tensors.

    Args:
        shared: What was learnt from the training split, such as a vocabulary.
        splits: The examples of each split, in the family's own form.
        hash: The hash of the corpus.
        notes: Notes to show next to results on this data.
        version: The version of the encoding.
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

    def with_train(self, examples: Any) -> Encoded:
        """The same with other training examples, in the family's own form."""
        return replace(self, splits={**self.splits, "train": examples})

    def without_test(self) -> Encoded:
        """The data without its test split, for searches. `shared` was learnt from the training split only."""
        return replace(self, splits={split: part for split, part in self.splits.items() if split != "test"})


def encoded(family: type[Family[Any]], source: Source, settings: Recipe, directory: Path) -> Encoded:
    """Read the encoded data from the cache, or encode it and write it to the cache.

    Args:
        family: The family that encodes the data.
        source: The data.
        settings: The settings, some of which change the encoding.
        directory: The folder of the cache.
    """
    if not family.cached:
        return encode(family, source.read(), settings)
    file = directory / f"{source.name}-{_key(family, source, settings)}.pt"
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
    """Write encoded data to a file or a stream."""
    save_tensors({name: getattr(data, name) for name in ("shared", "splits", "hash", "notes", "version")}, file)


def load(file: Path | BinaryIO) -> Encoded:
    """Read encoded data. Loading never runs code from the file."""
    return Encoded(**torch.load(file, weights_only=True))


def encode(family: type[Family[Any]], corpus: Corpus, settings: Recipe) -> Encoded:
    """Encode a corpus. `family.learn` gets only the training split.

    Args:
        family: The family that encodes the corpus.
        corpus: The examples.
        settings: The settings, some of which change the encoding.
    """
    chosen = {split: family.select(split, corpus.split(split), settings) for split in SPLITS}
    shared = family.learn(replace(corpus, train=chosen["train"], valid=[], test=[]), settings)
    splits = {split: family.encode(split, examples, shared, settings) for split, examples in chosen.items()}
    notes = [*corpus.notes]
    if settings.rows is not None and settings.rows < len(corpus.train):
        notes.append(f"{settings.rows:,} of the {len(corpus.train):,} training examples are used in this size")
    notes += family.notes(corpus, splits, settings)
    return Encoded(shared, splits, corpus.digest(), tuple(notes), VERSION)


def _key(family: type[Family[Any]], source: Source, settings: Recipe) -> str:
    chosen = {name: value for name, value in settings if name in settings.encoding}
    text = json.dumps([FORMAT, VERSION, family.__name__, source.key, chosen], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
