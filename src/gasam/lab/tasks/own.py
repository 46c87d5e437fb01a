"""The user's own data: tables of labelled texts, plain text, or aligned files of two languages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gasam.lab.data.corpus import SPLITS, Corpus, Source, Split, cut, permuted
from gasam.lab.data.reading import aligned, fault_at, lines, rows
from gasam.lab.errors import InputError
from gasam.lab.families.classification import TextClassification, TextCNNSettings
from gasam.lab.families.language import LanguageModel
from gasam.lab.families.translation import Translation
from gasam.lab.tasks import de_en, en_vi, imdb, ptb
from gasam.lab.tasks.task import Task

Given = str | Path | None
Files = dict[Split, tuple[Path, ...]]

SHARE = 10
"""A split without a file gets one tenth of the training file."""


def classify(
    train: Given, valid: Given = None, test: Given = None, text_column: str = "text", label_column: str = "label"
) -> Source:
    """CSV, TSV or JSONL, by the name, .gz as well; the classes are the labels of the training file, sorted."""
    files = _given("classify", (train, valid, test))
    columns = (text_column, label_column)

    def read() -> Corpus:
        tables = {split: _table(path, columns) for split, (path,) in files.items()}
        classes = _classes(files["train"][0], [label for _, _, label in tables["train"]])
        examples = {split: _indexed(files[split][0], table, classes) for split, table in tables.items()}
        return _divided(examples, files, classes=classes)

    return _source("classify", read, files, columns)


def lm(train: Given, valid: Given = None, test: Given = None) -> Source:
    """Plain text, .gz as well, a line an example; blank lines are left out."""
    files = _given("lm", (train, valid, test))

    def read() -> Corpus:
        examples = {split: [line.strip() for line in lines(path) if line.strip()] for split, (path,) in files.items()}
        return _divided(examples, files, in_order=True)

    return _source("lm", read, files)


def translate(train: Given, valid: Given = None, test: Given = None) -> Source:
    """Two aligned files a split, given as "a.de,a.en", .gz as well.

    Pairs of two blank lines are left out, and for training all with a blank line.
    """
    files = _given("translate", (train, valid, test), each=2)

    def read() -> Corpus:
        return _divided({split: _pairs(split, *paths) for split, paths in files.items()}, files)

    return _source("translate", read, files)


def _given(task: str, names: Sequence[Given], each: int = 1) -> Files:
    if names[0] is None:
        raise InputError(f"{task} needs data to train on: give it with --train")
    return {
        split: _paths(split, str(name), each) for split, name in zip(SPLITS, names, strict=True) if name is not None
    }


def _paths(split: Split, name: str, each: int) -> tuple[Path, ...]:
    paths = (
        tuple(Path(part.strip()).expanduser() for part in name.split(",")) if each > 1 else (Path(name).expanduser(),)
    )
    if len(paths) != each:
        raise InputError(f"--{split} must name two files with a comma between them, such as a.de,a.en, got {name!r}")
    for path in paths:
        if path.is_dir():
            raise InputError(f"{path}: a folder, but --{split} must name a file")
        if not path.exists():
            raise InputError(f"{path}: there is no such file: check --{split}")
    return paths


def _source(task: str, read: Callable[[], Corpus], files: Files, columns: Sequence[str] = ()) -> Source:
    named = [f"{split}:{path.name}" for split, paths in files.items() for path in paths]
    return Source(
        task, read, tuple(path for paths in files.values() for path in paths), options=repr([*columns, *named])
    )


def _table(path: Path, columns: tuple[str, str]) -> list[tuple[int, str, str]]:
    """(line, text, label) of each row."""
    table = []
    for line, (text, label) in rows(path, columns):
        if not isinstance(text, str | None):
            raise fault_at(path, line, f"{columns[0]!r} is {text!r}, but must be a string")
        if not isinstance(label, str | int | None):
            raise fault_at(path, line, f"{columns[1]!r} is {label!r}, but must be a string or a whole number")
        for column, value in zip(columns, (text, label), strict=True):
            if value is None or not str(value).strip():
                raise fault_at(path, line, f"{column!r} is empty: fill it in or remove the row")
        table.append((line, str(text), str(label).strip()))
    return table


def _classes(path: Path, labels: list[str]) -> tuple[str, ...]:
    """Sorted as numbers if they all are."""
    distinct = set(labels)
    if len(distinct) == 1:
        raise InputError(f"{path}: every row has the label {labels[0]!r}, but at least two classes are needed")
    numbers = all(label.isascii() and label.isdecimal() for label in distinct)
    return tuple(sorted(distinct, key=lambda label: (int(label) if numbers else 0, label)))


def _indexed(path: Path, table: list[tuple[int, str, str]], classes: tuple[str, ...]) -> list[tuple[str, int]]:
    indices = {label: index for index, label in enumerate(classes)}
    for line, _, label in table:
        if label not in indices:
            known = ", ".join(map(repr, classes))
            raise fault_at(path, line, f"label {label!r} is not in the training file, which has {known}")
    return [(text, indices[label]) for _, text, label in table]


def _pairs(split: Split, source: Path, target: Path) -> list[tuple[str, str]]:
    pairs = aligned(source, target)
    if split != "train":
        for line, pair in enumerate(pairs, start=1):
            if any(pair) and not all(pair):
                empty, other = (source, target) if pair[1] else (target, source)
                raise fault_at(empty, line, f"blank, but its line in {other} is not: translate it or remove both")
    return [pair for pair in pairs if all(pair)]


def _divided(
    examples: dict[Split, list[Any]], files: Files, in_order: bool = False, classes: tuple[str, ...] = ()
) -> Corpus:
    """Splits that no file was given for are held out of the training examples, and a note says so."""
    for split, found in examples.items():
        if not found:
            raise InputError(f"{files[split][0]}: no examples in it, but --{split} must have at least one")
    notes: tuple[str, ...] = ()
    missing = [split for split in SPLITS if split not in files]
    if missing:
        path, total = files["train"][0], len(examples["train"])
        held_out = _held_out(path, examples["train"], missing, in_order)
        manner = "at its end" if in_order else "by a fixed permutation"
        notes = (
            f"{' and '.join(missing)}: {total // SHARE:,} of the {total:,} examples of {path.name}, held out {manner}",
        )
        examples = examples | held_out
    return Corpus(examples["train"], examples["valid"], examples["test"], classes=classes, notes=notes)


def _held_out(path: Path, examples: list[Any], missing: list[Split], in_order: bool) -> dict[Split, list[Any]]:
    """What remains to train on, and a tenth for each missing split; lines that go on `in_order` are cut, not mixed."""
    each = len(examples) // SHARE
    if not each:
        raise InputError(
            f"{path}: {len(examples)} examples are too few to hold out a tenth for {' and '.join(missing)}: "
            f"have at least {SHARE}, or give {' and '.join(f'--{split}' for split in missing)}"
        )
    kept = len(examples) - each * len(missing)
    pieces = cut(examples if in_order else permuted(examples), kept, *[each] * (len(missing) - 1))
    splits: list[Split] = ["train", *missing]
    return dict(zip(splits, pieces, strict=True))


def _well_initialised(settings: TextCNNSettings) -> TextCNNSettings:
    return replace(settings, embedding_scale=imdb.GOOD_SCALE)


TASKS = (
    Task(
        name="classify",
        about="your own texts and labels (CSV, TSV or JSONL), TextCNN",
        kind="yours",
        family=TextClassification,
        source=lambda o: classify(o.train, o.valid, o.test, o.text_column, o.label_column),
        sizes={
            "paper": _well_initialised(imdb.PAPER),
            "small": _well_initialised(imdb.SMALL),
            "tiny": _well_initialised(imdb.TINY),
        },
        borrows_from=("docstrings", "imdb", "en-vi"),
    ),
    Task(
        name="lm",
        about="a language model of your own text, LSTM",
        kind="yours",
        family=LanguageModel,
        source=lambda origin: lm(origin.train, origin.valid, origin.test),
        sizes={"paper": ptb.PAPER, "small": replace(ptb.SMALL, rows=None), "tiny": ptb.TINY},
        borrows_from=("pydoc", "ptb", "en-vi"),
    ),
    Task(
        name="translate",
        about="your own two aligned files, Transformer",
        kind="yours",
        family=Translation,
        source=lambda origin: translate(origin.train, origin.valid, origin.test),
        sizes={
            "paper": de_en.PAPER,
            "small": replace(de_en.SMALL, rows=None, judged=None),
            "tiny": de_en.TINY,
        },
        start_epoch=en_vi.TASKS[0].start_epoch,
        borrows_from=("numerals", "en-vi"),
    ),
)
