"""Corpora as tensors: encoded once, kept on disk under a hash of all that this depends on, and divided by split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gasam.lab.data.corpus import SPLITS, Corpus, Source, Split
from gasam.lab.storage import replaced

if TYPE_CHECKING:
    from gasam.lab.families import Family, Recipe

VERSION = 5
"""Raised whenever the same source and settings give other numbers. Records hold it."""
FORMAT = 2
"""Raised whenever the files of the cache are arranged otherwise."""


class WithheldError(LookupError):
    """A search asked for the test split: the number that it looks for would be worth nothing."""


@dataclass(frozen=True)
class Encoded:
    """A corpus as tensors.

    Args:
        shared: What was learnt from the training split alone, such as a vocabulary.
        splits: The examples of each split, in the family's own form.
        hash: Of the content of the corpus.
        notes: What should be said beside every number made on it.
        version: Of the encoding.
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
        """What a search may see. `shared` is made of the training split, so nothing of the test split is left."""
        return replace(self, splits={split: part for split, part in self.splits.items() if split != "test"})


def encoded(family: type[Family[Any]], source: Source, settings: Recipe, directory: Path) -> Encoded:
    """What the cache in `directory` holds, else what the family makes of the source."""
    file = directory / f"{source.name}-{_key(family, source, settings)}.pt"
    try:
        return Encoded(**torch.load(file, weights_only=True))
    except FileNotFoundError:
        pass
    except Exception:  # a damaged file, whatever damaged it, is made again
        file.unlink(missing_ok=True)
    data = encode(family, source.read(), settings)
    fields = {name: getattr(data, name) for name in ("shared", "splits", "hash", "notes", "version")}
    with replaced(file) as partial:
        torch.save(fields, partial)
    return data


def encode(family: type[Family[Any]], corpus: Corpus, settings: Recipe) -> Encoded:
    """Whatever is learnt is learnt from the training split: the family is given nothing else for it."""
    chosen = {split: family.select(split, corpus.split(split), settings) for split in SPLITS}
    shared = family.learn(replace(corpus, train=chosen["train"], valid=[], test=[]), settings)
    splits = {split: family.encode(split, examples, shared, settings) for split, examples in chosen.items()}
    notes = [*corpus.notes]
    if settings.rows is not None and settings.rows < len(corpus.train):
        notes.append(f"{settings.rows:,} of the {len(corpus.train):,} training examples are used in this size")
    notes += family.notes(corpus, splits, settings)
    return Encoded(shared, splits, corpus.digest(), tuple(notes), VERSION)


def _key(family: type[Family[Any]], source: Source, settings: Recipe) -> str:
    chosen = {name: value for name, value in asdict(settings).items() if name in settings.encoding}
    text = json.dumps([FORMAT, VERSION, family.__name__, source.key, chosen], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
