"""The tasks for the user's own data: labelled texts, plain text, or aligned files of two languages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gasam.lab.data.corpus import SPLITS, Corpus, Source, Split, cut, permuted
from gasam.lab.data.own_files import Labelled, aligned_pairs, labelled_rows, parsed_delimiter
from gasam.lab.data.reading import Layout, fault_at, lines
from gasam.lab.errors import InputError
from gasam.lab.families.classification import TextClassification, TextCNNSettings
from gasam.lab.families.language import LanguageModel
from gasam.lab.families.translation import Translation
from gasam.lab.tasks import de_en, en_vi, imdb, ptb
from gasam.lab.tasks.task import Task

Given = str | Path | None
Files = dict[Split, tuple[Path, ...]]

SHARE = 10
"""A split without a file gets this part of the training file, one tenth."""


def classify(
    train: Given,
    valid: Given = None,
    test: Given = None,
    text_column: str = "text",
    label_column: str = "label",
    *,
    delimiter: str | None = None,
    drop_empty: bool = False,
) -> Source:
    """Labelled texts from CSV, TSV or JSONL files, which may end in .gz. The classes are the labels in `train`, sorted.

    Args:
        train: The training file.
        valid: The validation file; by default a tenth of the training file is held out.
        test: The test file; by default a tenth of the training file is held out.
        text_column: The column with the text.
        label_column: The column with the label.
        delimiter: The character between two fields, or "tab"; by default a comma, or a tab in a .tsv.
        drop_empty: Leave out the rows without a text or a label, and note how many there were.
    """
    files = _given("classify", (train, valid, test))
    columns = (text_column, label_column)
    layout = Layout(parsed_delimiter(delimiter), ("--text-column", "--label-column"))

    def read() -> Corpus:
        read = {split: labelled_rows(path, columns, layout, drop=drop_empty) for split, (path,) in files.items()}
        tables = {split: table for split, (table, _) in read.items()}
        classes = _classes(files["train"][0], [label for _, _, label in tables["train"]])
        examples = {split: _indexed(files[split][0], table, classes) for split, table in tables.items()}
        return _divided(examples, files, classes=classes, dropped=[note for _, note in read.values() if note])

    given = [f"delimiter:{layout.delimiter}"] * (delimiter is not None) + ["drop_empty"] * drop_empty
    return _source("classify", read, files, [*columns, *given])


def lm(train: Given, valid: Given = None, test: Given = None) -> Source:
    """Plain text, one example per line, without blank lines; files may end in .gz.

    Args:
        train: The training file.
        valid: The validation file; by default a tenth of the training file is held out.
        test: The test file; by default a tenth of the training file is held out.
    """
    files = _given("lm", (train, valid, test))

    def read() -> Corpus:
        examples = {split: [line.strip() for line in lines(path) if line.strip()] for split, (path,) in files.items()}
        return _divided(examples, files, in_order=True)

    return _source("lm", read, files)


def translate(train: Given, valid: Given = None, test: Given = None, *, drop_empty: bool = False) -> Source:
    """Two aligned files for each split, given as "a.de,a.en"; files may end in .gz.

    Pairs of blank lines are left out; training pairs are also left out if only one line is blank.

    Args:
        train: The training files.
        valid: The validation files; by default a tenth of the training pairs is held out.
        test: The test files; by default a tenth of the training pairs is held out.
        drop_empty: Leave out pairs of which one line is blank in validation and test files as well, and note how many.
    """
    files = _given("translate", (train, valid, test), each=2)

    def read() -> Corpus:
        read = {split: aligned_pairs(split, *paths, drop=drop_empty) for split, paths in files.items()}
        dropped = [note for _, note in read.values() if note]
        return _divided({split: pairs for split, (pairs, _) in read.items()}, files, dropped=dropped)

    return _source("translate", read, files, ["drop_empty"] * drop_empty)


def _given(task: str, names: Sequence[Given], each: int = 1) -> Files:
    if names[0] is None:
        raise InputError(f"{task} needs a training file: give it with --train")
    return {
        split: _paths(split, str(name), each) for split, name in zip(SPLITS, names, strict=True) if name is not None
    }


def _paths(split: Split, name: str, each: int) -> tuple[Path, ...]:
    paths = (
        tuple(Path(part.strip()).expanduser() for part in name.split(",")) if each > 1 else (Path(name).expanduser(),)
    )
    if len(paths) != each:
        raise InputError(f"--{split} must name two files separated by a comma, such as a.de,a.en, got {name!r}")
    for path in paths:
        if path.is_dir():
            raise InputError(f"{path} is a folder, but --{split} must name a file")
        if not path.exists():
            raise InputError(f"{path} does not exist: check --{split}")
    return paths


def _source(task: str, read: Callable[[], Corpus], files: Files, columns: Sequence[str] = ()) -> Source:
    named = [f"{split}:{path.name}" for split, paths in files.items() for path in paths]
    return Source(
        task, read, tuple(path for paths in files.values() for path in paths), options=repr([*columns, *named])
    )


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
    in_order: bool = False,
    classes: tuple[str, ...] = (),
    dropped: Sequence[str] = (),
) -> Corpus:
    """Make the corpus. Splits without a file are held out of the training examples, and a note says so.

    Args:
        examples: The examples of each split that has files.
        files: The files of each split.
        in_order: Whether the examples belong together in their order.
        classes: The names of the classes.
        dropped: Notes about examples that were left out.
    """
    for split, found in examples.items():
        if not found:
            raise InputError(f"{files[split][0]} has no examples, but --{split} must have at least one")
    notes = tuple(dropped)
    missing = [split for split in SPLITS if split not in files]
    if missing:
        path, total = files["train"][0], len(examples["train"])
        held_out = _held_out(path, examples["train"], missing, in_order)
        manner = "at its end" if in_order else "by a fixed permutation"
        notes = (
            *notes,
            f"{' and '.join(missing)}: {total // SHARE:,} of the {total:,} examples of {path.name}, held out {manner}",
        )
        examples = examples | held_out
    return Corpus(examples["train"], examples["valid"], examples["test"], classes=classes, notes=notes)


def _held_out(path: Path, examples: list[Any], missing: list[Split], in_order: bool) -> dict[Split, list[Any]]:
    """The remaining training examples, and a tenth for each missing split.

    Examples that belong together `in_order` are cut, not permuted.
    """
    each = len(examples) // SHARE
    if not each:
        raise InputError(
            f"{path}: {len(examples)} examples are too few to hold out a tenth for {' and '.join(missing)}: "
            f"give at least {SHARE} examples, or {' and '.join(f'--{split}' for split in missing)}"
        )
    kept = len(examples) - each * len(missing)
    pieces = cut(examples if in_order else permuted(examples), kept, *[each] * (len(missing) - 1))
    splits: list[Split] = ["train", *missing]
    return dict(zip(splits, pieces, strict=True))


def _well_initialised(settings: TextCNNSettings) -> TextCNNSettings:
    return settings.changed(embedding_scale=imdb.GOOD_SCALE)


TASKS = (
    Task(
        name="classify",
        about="your own texts and labels (CSV, TSV or JSONL), TextCNN",
        kind="yours",
        family=TextClassification,
        source=lambda o: classify(
            o.train, o.valid, o.test, o.text_column, o.label_column, delimiter=o.delimiter, drop_empty=o.drop_empty
        ),
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
        sizes={"paper": ptb.PAPER, "small": ptb.SMALL.changed(rows=None), "tiny": ptb.TINY},
        borrows_from=("pydoc", "ptb", "en-vi"),
    ),
    Task(
        name="translate",
        about="your own two aligned files, Transformer",
        kind="yours",
        family=Translation,
        source=lambda origin: translate(origin.train, origin.valid, origin.test, drop_empty=origin.drop_empty),
        sizes={
            "paper": de_en.PAPER,
            "small": de_en.SMALL.changed(rows=None, judged=None),
            "tiny": de_en.TINY,
        },
        start_epoch=en_vi.TASKS[0].start_epoch,
        borrows_from=("numerals", "en-vi"),
    ),
)
