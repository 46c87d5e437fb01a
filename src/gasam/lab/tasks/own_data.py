"""The tasks for the user's own data: labelled texts, plain text, or aligned files of two languages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from gasam.lab.data.corpus import SPLITS, Corpus, Source, Split, cut, permuted
from gasam.lab.data.files import aligned, fault_at, lines, rows
from gasam.lab.errors import InputError
from gasam.lab.families.classification import TextClassification
from gasam.lab.families.language import LanguageModel
from gasam.lab.families.translation import Translation
from gasam.lab.tasks import imdb, ptb, translation
from gasam.lab.tasks.task import Origin, Task

Files = dict[Split, tuple[Path, ...]]
SHARE = 10
"""A split without a file gets this part of the training file, one tenth."""


def classify(files: Files, origin: Origin) -> Corpus:
    """Labelled texts from CSV, TSV or JSONL files. The classes are the labels in the training file, sorted."""
    notes: list[str] = []
    classes: tuple[str, ...] = ()
    examples = {}
    for split, (path,) in files.items():  # the training split is the first
        table = _labelled(path, origin, classes, notes)
        classes = classes or _classes(path, {label for _, label in table})
        examples[split] = [(text, classes.index(label)) for text, label in table]
    return _divided(examples, files, notes, classes=classes)


def lm(files: Files, origin: Origin) -> Corpus:
    """Plain text, one example per line, without blank lines."""
    examples = {split: [line.strip() for line in lines(path) if line.strip()] for split, (path,) in files.items()}
    return _divided(examples, files, in_order=True)


def translate(files: Files, origin: Origin) -> Corpus:
    """Two aligned files for each split. Pairs with a blank line are left out; if only one is blank, with a note."""
    notes: list[str] = []
    examples = {}
    for split, (source, target) in files.items():
        pairs = aligned(source, target)
        half = [line for line, pair in enumerate(pairs, start=1) if any(pair) and not all(pair)]
        _note(notes, source, "pairs with one blank line", half)
        examples[split] = [pair for pair in pairs if all(pair)]
    return _divided(examples, files, notes)


def _source(task: str, read: Callable[[Files, Origin], Corpus], origin: Origin, each: int = 1) -> Source:
    """The source for the user's files, which must exist. `each` is the number of files of a split."""
    if origin.train is None:
        raise InputError(f"{task} needs a training file: give it with --train")
    files = {split: origin.files(split) for split in SPLITS if getattr(origin, split) is not None}
    for split, paths in files.items():
        if each > 1 and len(paths) != each:
            given = getattr(origin, split)
            raise InputError(f"--{split} must name two files separated by a comma, such as a.de,a.en, got {given!r}")
        for path in paths:
            if not path.is_file():
                raise InputError(f"{path} is not a file: check --{split}")
    named = [(split, path.name) for split, paths in files.items() for path in paths]
    options = repr((origin.text_column, origin.label_column, named))
    return Source(task, lambda: read(files, origin), tuple(chain(*files.values())), options=options)


def _labelled(path: Path, origin: Origin, classes: Sequence[str], notes: list[str]) -> list[tuple[str, str]]:
    """The texts and labels of a table, of known `classes` if there are any, without rows that have an empty field."""
    table: list[tuple[str, str]] = []
    empty: list[int] = []
    columns = (origin.text_column, origin.label_column)
    for line, (text, label) in rows(path, columns, ("--text-column", "--label-column")):
        if not isinstance(text, str | None):
            raise fault_at(path, line, f"{columns[0]!r} is {text!r}, but must be a string")
        if not isinstance(label, str | int | None):
            raise fault_at(path, line, f"{columns[1]!r} is {label!r}, but must be a string or a whole number")
        name = "" if label is None else str(label).strip()
        if not name or not text or not text.strip():
            empty.append(line)
        elif classes and name not in classes:
            known = ", ".join(map(repr, classes))
            raise fault_at(path, line, f"label {name!r} is not in the training file, which has {known}")
        else:
            table.append((text, name))
    _note(notes, path, f"rows with an empty {columns[0]!r} or {columns[1]!r}", empty)
    return table


def _classes(path: Path, labels: set[str]) -> tuple[str, ...]:
    """The distinct labels, sorted as numbers if all of them are whole numbers."""
    if len(labels) == 1:
        raise InputError(f"{path}: every row has the label {min(labels)!r}, but at least two classes are needed")
    numbers = all(label.isascii() and label.isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))


def _note(notes: list[str], path: Path, what: str, dropped: list[int]) -> None:
    if dropped:
        notes.append(f"{path.name}: dropped {what}: {len(dropped):,}, the first at line {dropped[0]}")


def _divided(
    examples: dict[Split, list[Any]],
    files: Files,
    notes: Sequence[str] = (),
    *,
    in_order: bool = False,
    classes: tuple[str, ...] = (),
) -> Corpus:
    """Make the corpus. Splits without a file are held out of the training examples, permuted unless `in_order`."""
    for split, found in examples.items():
        if not found:
            raise InputError(f"{files[split][0]} has no examples, but --{split} must have at least one")
    missing: list[Split] = [split for split in SPLITS if split not in files]
    if missing:
        path, whole, names = files["train"][0], examples["train"], " and ".join(missing)
        each = len(whole) // SHARE
        if not each:
            raise InputError(
                f"{path}: {len(whole)} examples are too few to hold out a tenth for {names}: give at least {SHARE} "
                f"examples, or {' and '.join(f'--{split}' for split in missing)}"
            )
        kept = len(whole) - each * len(missing)
        pieces = cut(whole if in_order else permuted(whole), kept, *[each] * (len(missing) - 1))
        examples = examples | dict(zip(["train", *missing], pieces, strict=True))
        manner = "at its end" if in_order else "by a fixed permutation"
        notes = [*notes, f"{names}: {each:,} of the {len(whole):,} examples of {path.name}, held out {manner}"]
    return Corpus(examples["train"], examples["valid"], examples["test"], classes=classes, notes=tuple(notes))


TASKS = (
    Task(
        name="classify",
        about="your own texts and labels (CSV, TSV or JSONL), TextCNN",
        kind="yours",
        family=TextClassification,
        source=lambda origin: _source("classify", classify, origin),
        sizes={
            "paper": imdb.PAPER.changed(embedding_scale=imdb.GOOD_SCALE),
            "small": imdb.SMALL_MODEL,
            "tiny": imdb.TINY.changed(embedding_scale=imdb.GOOD_SCALE),
        },
    ),
    Task(
        name="lm",
        about="a language model of your own text, LSTM",
        kind="yours",
        family=LanguageModel,
        source=lambda origin: _source("lm", lm, origin),
        sizes={"paper": ptb.PAPER, "small": ptb.SMALL_MODEL.changed(rows=None), "tiny": ptb.TINY},
    ),
    Task(
        name="translate",
        about="your own two aligned files, Transformer",
        kind="yours",
        family=Translation,
        source=lambda origin: _source("translate", translate, origin, each=2),
        sizes=translation.DE_EN_SIZES | {"small": translation.DE_EN_SIZES["small"].changed(rows=None, judged=None)},
    ),
)
