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
from gasam.lab.tasks.task import Origin, Task, sizes

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
        found = {split: _labelled_rows(path, columns, delimiter, origin.drop_empty) for split, (path,) in files.items()}
        classes = _classes(files["train"][0], [label for _, _, label in found["train"][0]])
        examples = {split: _indexed(files[split][0], table, classes) for split, (table, _) in found.items()}
        return _divided(examples, files, classes=classes, notes=[note for _, note in found.values() if note])

    given = [f"delimiter:{delimiter}"] * (delimiter is not None) + ["drop_empty"] * origin.drop_empty
    return Source("classify", read, *_about(files, *columns, *given))


def lm(origin: Origin) -> Source:
    """Plain text, one example per line, without blank lines."""
    files = _files("lm", origin)

    def read() -> Corpus:
        examples = {split: [line.strip() for line in lines(path) if line.strip()] for split, (path,) in files.items()}
        return _divided(examples, files, in_order=True)

    return Source("lm", read, *_about(files))


def translate(origin: Origin) -> Source:
    """Two aligned files for each split. Pairs of blank lines are left out, as are training pairs with one."""
    files = _files("translate", origin, each=2)

    def read() -> Corpus:
        found = {split: _aligned_pairs(split, *files[split], drop=origin.drop_empty) for split in files}
        notes = [note for _, note in found.values() if note]
        return _divided({split: pairs for split, (pairs, _) in found.items()}, files, notes=notes)

    return Source("translate", read, *_about(files, *["drop_empty"] * origin.drop_empty))


def _files(task: str, origin: Origin, each: int = 1) -> Files:
    """The user's files by split, which must exist. `each` is the number of files of a split."""
    if origin.train is None:
        raise InputError(f"{task} needs a training file: give it with --train")
    files: Files = {}
    for split in SPLITS:
        name = getattr(origin, split)
        if name is None:
            continue
        parts = str(name).split(",") if each > 1 else [str(name)]
        if len(parts) != each:
            raise InputError(f"--{split} must name two files separated by a comma, such as a.de,a.en, got {name!r}")
        files[split] = tuple(Path(part.strip()).expanduser() for part in parts)
        for path in files[split]:
            if path.is_dir():
                raise InputError(f"{path} is a folder, but --{split} must name a file")
            if not path.exists():
                raise InputError(f"{path} does not exist: check --{split}")
    return files


def _about(files: Files, *options: str) -> tuple[tuple[Path, ...], tuple[str, ...], str]:
    """The files, the packages and the options of a source."""
    named = [f"{split}:{path.name}" for split, paths in files.items() for path in paths]
    return tuple(path for paths in files.values() for path in paths), (), repr([*options, *named])


def _labelled_rows(
    path: Path, columns: tuple[str, str], delimiter: str | None, drop: bool
) -> tuple[list[Labelled], str]:
    """The rows of a table, and a note about those that were dropped because a field is empty."""
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
    counts = " and ".join(
        f"{_counted(found, 'row')} with an empty {column!r}, first at line {found[0]}"
        for column, found in empty.items()
    )
    if empty and not drop:
        raise InputError(f"{path} has {counts}: fill them in, or use --drop-empty")
    return table, f"{path.name}: dropped {counts}" if empty else ""


def _aligned_pairs(split: Split, source: Path, target: Path, *, drop: bool) -> tuple[list[tuple[str, str]], str]:
    """The pairs of lines of two files, and a note about those that were dropped because one line is blank.

    Training pairs with one blank line are left out in any case.
    """
    pairs = aligned(source, target)
    half = [line for line, pair in enumerate(pairs, start=1) if any(pair) and not all(pair)]
    if half and split != "train" and not drop:
        empty, other = (source, target) if pairs[half[0] - 1][1] else (target, source)
        count = f" ({_counted(half, 'pair')} of this kind)" if len(half) > 1 else ""
        fault = f"blank, but the same line of {other} is not{count}: translate it, remove both, or use --drop-empty"
        raise fault_at(empty, half[0], fault)
    note = ""
    if half and drop:
        note = f"{source.name}: dropped {_counted(half, 'pair')} with a blank line, first at line {half[0]}"
    return [pair for pair in pairs if all(pair)], note


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
        sizes=sizes(
            paper=imdb.PAPER.changed(embedding_scale=imdb.GOOD_SCALE),
            small=imdb.SMALL_MODEL,
            tiny=imdb.TINY.changed(embedding_scale=imdb.GOOD_SCALE),
        ),
    ),
    Task(
        name="lm",
        about="a language model of your own text, LSTM",
        kind="yours",
        family=LanguageModel,
        source=lm,
        sizes=sizes(paper=ptb.PAPER, small=ptb.SMALL_MODEL.changed(rows=None), tiny=ptb.TINY),
    ),
    Task(
        name="translate",
        about="your own two aligned files, Transformer",
        kind="yours",
        family=Translation,
        source=translate,
        sizes=sizes(
            paper=translation.DE_EN_PAPER,
            small=translation.DE_EN_SMALL.changed(rows=None, judged=None),
            tiny=translation.DE_EN_TINY,
        ),
    ),
)
