"""The tasks for the user's own data: labelled texts, plain text, or aligned files of two languages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gasam.lab.data.corpus import SPLITS, Corpus, Source, Split, cut, permuted
from gasam.lab.data.files import aligned, fault_at, lines, parsed_delimiter, rows
from gasam.lab.errors import InputError
from gasam.lab.families.classification import TextClassification
from gasam.lab.families.language import LanguageModel
from gasam.lab.families.translation import Translation
from gasam.lab.tasks import imdb, ptb, translation
from gasam.lab.tasks.task import Origin, Task

Files = dict[Split, tuple[Path, ...]]
Labelled = tuple[int, str, str]
"""The line number, the text and the label of a row."""
SHARE = 10
"""A split without a file gets this part of the training file, one tenth."""


def classify(origin: Origin) -> Source:
    """Labelled texts from CSV, TSV or JSONL files. The classes are the labels in the training file, sorted."""
    files, columns = _files("classify", origin), (origin.text_column, origin.label_column)
    delimiter = parsed_delimiter(origin.delimiter)

    def read() -> Corpus:
        notes: list[str] = []
        found = {split: _labelled_rows(path, columns, delimiter, origin, notes) for split, (path,) in files.items()}
        classes = _classes(files["train"][0], [label for _, _, label in found["train"]])
        examples = {split: _indexed(files[split][0], table, classes) for split, table in found.items()}
        return _divided(examples, files, classes=classes, notes=notes)

    return _source("classify", read, files, origin, *columns, *[f"delimiter:{delimiter}"] * (delimiter is not None))


def lm(origin: Origin) -> Source:
    """Plain text, one example per line, without blank lines."""
    files = _files("lm", origin)

    def read() -> Corpus:
        examples = {split: [line.strip() for line in lines(path) if line.strip()] for split, (path,) in files.items()}
        return _divided(examples, files, in_order=True)

    return _source("lm", read, files, Origin())


def translate(origin: Origin) -> Source:
    """Two aligned files for each split. Pairs of blank lines are left out, as are training pairs with one."""
    files = _files("translate", origin, each=2)

    def read() -> Corpus:
        notes: list[str] = []
        examples = {split: _pairs(split, *paths, drop=origin.drop_empty, notes=notes) for split, paths in files.items()}
        return _divided(examples, files, notes=notes)

    return _source("translate", read, files, origin)


def _files(task: str, origin: Origin, each: int = 1) -> Files:
    """The user's files by split, which must exist. `each` is the number of files of a split."""
    if origin.train is None:
        raise InputError(f"{task} needs a training file: give it with --train")
    files = {split: origin.files(split) for split in SPLITS if getattr(origin, split) is not None}
    for split, paths in files.items():
        if each > 1 and len(paths) != each:
            given = getattr(origin, split)
            raise InputError(f"--{split} must name two files separated by a comma, such as a.de,a.en, got {given!r}")
        for path in paths:
            if path.is_dir():
                raise InputError(f"{path} is a folder, but --{split} must name a file")
            if not path.exists():
                raise InputError(f"{path} does not exist: check --{split}")
    return files


def _source(task: str, read: Any, files: Files, origin: Origin, *options: str) -> Source:
    """The source, with the names of the files and the options that the result depends on."""
    named = [f"{split}:{path.name}" for split, paths in files.items() for path in paths]
    given = [*options, *["drop_empty"] * origin.drop_empty, *named]
    return Source(task, read, tuple(path for paths in files.values() for path in paths), options=repr(given))


def _labelled_rows(
    path: Path, columns: tuple[str, str], delimiter: str | None, origin: Origin, notes: list[str]
) -> list[Labelled]:
    """The rows of a table; rows with an empty field are refused, or dropped with a note."""
    table: list[Labelled] = []
    empty: dict[str, list[int]] = {}
    for line, (text, label) in rows(path, columns, delimiter, ("--text-column", "--label-column")):
        if not isinstance(text, str | None):
            raise fault_at(path, line, f"{columns[0]!r} is {text!r}, but must be a string")
        if not isinstance(label, str | int | None):
            raise fault_at(path, line, f"{columns[1]!r} is {label!r}, but must be a string or a whole number")
        values = zip(columns, (text, label), strict=True)
        missing = [column for column, value in values if value is None or not str(value).strip()]
        for column in missing:
            empty.setdefault(column, []).append(line)
        if not missing:
            table.append((line, str(text), str(label).strip()))
    if empty:
        counts = " and ".join(
            f"{_counted(found, 'row')} with an empty {column!r}, first at line {found[0]}"
            for column, found in empty.items()
        )
        if not origin.drop_empty:
            raise InputError(f"{path} has {counts}: fill them in, or use --drop-empty")
        notes.append(f"{path.name}: dropped {counts}")
    return table


def _pairs(split: Split, source: Path, target: Path, *, drop: bool, notes: list[str]) -> list[tuple[str, str]]:
    """The pairs of lines of two files; pairs with one blank line are refused, or dropped with a note.

    Training pairs with one blank line are left out in any case.
    """
    pairs = aligned(source, target)
    half = [line for line, pair in enumerate(pairs, start=1) if any(pair) and not all(pair)]
    if half and drop:
        notes.append(f"{source.name}: dropped {_counted(half, 'pair')} with a blank line, first at line {half[0]}")
    elif half and split != "train":
        empty, other = (source, target) if pairs[half[0] - 1][1] else (target, source)
        fault = f"blank, but the same line of {other} is not: translate it, remove both, or use --drop-empty"
        raise fault_at(empty, half[0], fault)
    return [pair for pair in pairs if all(pair)]


def _counted(found: list[int], noun: str) -> str:
    return f"{len(found):,} {noun}{'' if len(found) == 1 else 's'}"


def _classes(path: Path, labels: list[str]) -> tuple[str, ...]:
    """The distinct labels, sorted as numbers if all of them are whole numbers."""
    distinct = set(labels)
    if len(distinct) == 1:
        raise InputError(f"{path}: every row has the label {labels[0]!r}, but at least two classes are needed")
    numbers = all(label.isascii() and label.isdecimal() for label in distinct)
    return tuple(sorted(distinct, key=lambda label: (int(label) if numbers else 0, label)))


def _indexed(path: Path, table: list[Labelled], classes: tuple[str, ...]) -> list[tuple[str, int]]:
    indices = {label: index for index, label in enumerate(classes)}
    for line, _, label in table:
        if label not in indices:
            known = ", ".join(map(repr, classes))
            raise fault_at(path, line, f"label {label!r} is not in the training file, which has {known}")
    return [(text, indices[label]) for _, text, label in table]


def _divided(
    examples: dict[Split, list[Any]],
    files: Files,
    *,
    in_order: bool = False,
    classes: tuple[str, ...] = (),
    notes: Sequence[str] = (),
) -> Corpus:
    """Make the corpus. Splits without a file are held out of the training examples, and a note says so.

    Args:
        examples: The examples of each split that has files.
        files: The files of each split.
        in_order: Whether the examples belong together in their order, so that they are not permuted.
        classes: The names of the classes.
        notes: Notes about examples that were left out.
    """
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
        source=classify,
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
        source=lm,
        sizes={"paper": ptb.PAPER, "small": ptb.SMALL_MODEL.changed(rows=None), "tiny": ptb.TINY},
    ),
    Task(
        name="translate",
        about="your own two aligned files, Transformer",
        kind="yours",
        family=Translation,
        source=translate,
        sizes=translation.DE_EN_SIZES | {"small": translation.DE_EN_SIZES["small"].changed(rows=None, judged=None)},
    ),
)
