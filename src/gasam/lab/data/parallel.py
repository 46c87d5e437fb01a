"""Parallel corpora in the local layout: two aligned, tokenised files for each split."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from gasam.lab.data.corpus import Corpus, Source
from gasam.lab.data.reading import aligned, lines, required


@dataclass(frozen=True)
class Layout:
    """The names of the files: `{folder}/{split}.{language}.gz`.

    Args:
        task: The name of the task.
        folder: The folder of the task within the data folder.
        languages: The source and the target language.
        valid: The name of the validation split.
        test: The name of the test split.
        substitutes: Splits that replace missing training files.
        note: The note to show if they do; {} is the number of pairs.
        has_vocabularies: Whether there are word lists, `vocab.{language}`.
    """

    task: str
    folder: str
    languages: tuple[str, str]
    valid: str
    test: str
    substitutes: tuple[str, ...]
    note: str
    has_vocabularies: bool = False

    def files(self, *splits: str) -> tuple[str, ...]:
        return tuple(f"{self.folder}/{split}.{language}.gz" for split in splits for language in self.languages)

    def vocabularies(self) -> tuple[str, ...]:
        return tuple(f"{self.folder}/vocab.{language}" for language in self.languages if self.has_vocabularies)


def parallel_source(layout: Layout, directory: Path) -> Source:
    """The training split is `train`, or the substitutes if only they exist. Training pairs with a blank line are left
    out."""
    genuine = _there(directory, layout.files("train"))
    training = ("train",) if genuine or not _there(directory, layout.files(*layout.substitutes)) else layout.substitutes
    splits = (*training, layout.valid, layout.test)
    files = required(layout.task, directory, layout.files(*splits) + layout.vocabularies())

    def read() -> Corpus:
        *train, valid, test = (aligned(*files[2 * i : 2 * i + 2]) for i in range(len(splits)))
        pairs = [pair for pair in chain(*train) if all(pair)]
        notes = () if training == ("train",) else (layout.note.format(_rounded(len(pairs))),)
        words = tuple(tuple(line.strip() for line in lines(file)) for file in files[2 * len(splits) :])
        return Corpus(pairs, valid, test, vocabularies=words, notes=notes)

    return Source(layout.task, read, files=files, options=" ".join(splits))


def _there(directory: Path, names: tuple[str, ...]) -> bool:
    return all((directory / name).is_file() for name in names)


def _rounded(count: int) -> str:
    return f"{round(count / 1000)}k" if count >= 1000 else str(count)
