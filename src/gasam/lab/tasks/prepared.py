"""Encoded data, kept on disk under a hash of all it depends on, so that it is made once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gasam.lab.data.corpus import Corpus
from gasam.lab.data.source import Source
from gasam.lab.families import Encoded, Family, Recipe
from gasam.lab.storage import replaced

VERSION = 5
"""Raised whenever the same source and settings give other numbers."""


def prepare(family: type[Family[Any]], source: Source, settings: Recipe, directory: Path) -> Encoded:
    """The encoded corpus, with the hash of its content, notes to show beside numbers, and the encoding's version."""
    file = directory / f"{source.name}-{_key(family, source, settings)}.pt"
    try:
        return torch.load(file, weights_only=True)  # type: ignore[no-any-return]
    except FileNotFoundError:
        pass
    except Exception:  # a damaged file, whatever damaged it, is made again
        file.unlink(missing_ok=True)
    corpus = source.read()
    encoded = family.encode(corpus, settings)
    notes = [*corpus.notes, *_left_out(corpus, settings), *encoded.pop("notes", ())]
    encoded |= {"hash": corpus.digest(), "notes": notes, "encoding": VERSION}
    with replaced(file) as partial:
        torch.save(encoded, partial)
    return encoded


def _left_out(corpus: Corpus, settings: Recipe) -> Iterator[str]:
    """What this size does not use of the data."""
    if settings.rows is not None and settings.rows < len(corpus.train):
        yield f"{settings.rows:,} of the {len(corpus.train):,} training examples are used in this size"
    judged = getattr(settings, "judged", None)
    if judged is not None and judged < max(len(corpus.valid), len(corpus.test)):
        yield f"BLEU is of the first {judged:,} sentences of validation and test in this size"


def _key(family: type[Family[Any]], source: Source, settings: Recipe) -> str:
    chosen = {name: value for name, value in asdict(settings).items() if name in settings.encoding}
    text = json.dumps([VERSION, family.__name__, source.key, chosen], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
