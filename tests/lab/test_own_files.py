"""The user's own files: what is accepted, what is held out, and one sentence with file and line for every fault."""

import csv
import gzip
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusal

from gasam.lab.data.files import values
from gasam.lab.tasks import Origin, find
from local_layout import sentence, sizes, write, write_lines

LABELS = ("spam", "ham")
TABLE = [(f"{sentence(i)} {i}", LABELS[i % 2]) for i in range(40)]
TASKS = ("classify", "lm", "translate")


def source(task, train, valid=None, test=None, **options):
    return find(task).source(Origin(train=train, valid=valid, test=test, **options))


def thrice(task, path, **options):
    """The corpus whose splits are all the same file."""
    return source(task, path, path, path, **options).read()


def table(rows, delimiter=",", header=("text", "label")):
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter).writerows([header, *rows])
    return stream.getvalue()


def jsonl(rows):
    return "".join(json.dumps({"text": text, "label": label, "other": 1}) + "\n" for text, label in rows)


def fault(task, *files, **options):
    """The one sentence of an error, raised when the source is made or read."""
    return refusal(lambda: source(task, *files, **options).read())


FORMATS = {
    "a.csv": table(TABLE),
    "a.tsv.gz": table(TABLE, "\t"),
    "a.jsonl.gz": jsonl(TABLE),
    "A.CSV": table(TABLE),
    "bom.csv": "\ufeff" + table(TABLE),
    "unix.csv": table(TABLE).replace("\r\n", "\n"),
    "windows.jsonl": jsonl(TABLE).replace("\n", "\r\n"),
    "blank lines.jsonl": jsonl(TABLE).replace("\n", "\n\n"),
    "blank lines.csv": table(TABLE) + "\r\n\r\n",
}


@pytest.mark.parametrize("name", FORMATS)
def test_one_table_in_every_form_gives_one_corpus(tmp_path, name):
    corpus = thrice("classify", write(tmp_path / name, FORMATS[name]))
    assert corpus.train == corpus.valid == corpus.test == [(text, int(label == "spam")) for text, label in TABLE]
    assert corpus.classes == ("ham", "spam")
    assert not corpus.notes


def test_columns_are_chosen_and_delimiters_found(tmp_path):
    rows = [("10", "bad", "x"), ("9", "good", "y")]
    for delimiter in (",", ";", "\t", "|"):
        path = write(tmp_path / "a.csv", table(rows, delimiter, ("stars", " review ", "id")))
        corpus = thrice("classify", path, text_column="review", label_column="stars")
        assert corpus.train == [("bad", 1), ("good", 0)]
        assert corpus.classes == ("9", "10")  # sorted as numbers


def test_inputs_of_predictions_are_json_values_or_rows_by_column(tmp_path):
    path = write(tmp_path / "a.jsonl", '[1, 2]\n\n{"x": 3}\n')
    assert list(values(path)) == [(1, [1, 2]), (2, None), (3, {"x": 3})]
    for delimiter in ",;":
        path = write(tmp_path / "a.csv", table([(1, 2)], delimiter, ("x", "y")))
        assert list(values(path)) == [(2, {"x": "1", "y": "2"})]


def test_empty_rows_are_left_out_with_a_note(tmp_path):
    full = write(tmp_path / "full.csv", table([("a", "x"), ("b", "y")]))
    some = write(tmp_path / "some.csv", table([("a", "x"), ("", "y"), ("b", "y"), ("c", " "), (" ", "x")]))
    corpus = source("classify", full, full, some).read()
    assert corpus.train == corpus.test == [("a", 0), ("b", 1)]
    assert corpus.notes == ("some.csv: dropped rows with an empty 'text' or 'label': 3, the first at line 3",)
    zeros = write(tmp_path / "zeros.jsonl", jsonl([("a", 0), ("b", 1)]))
    assert thrice("classify", zeros).classes == ("0", "1")


@given(
    rows=st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from("xyz")), min_size=1),
    delimiter=st.sampled_from([",", "\t"]),
)
def test_any_text_survives_a_table(tmp_path_factory, rows, delimiter):
    rows = [(f"start {text} end", label) for text, label in rows] + [("last", "w")]
    path = tmp_path_factory.mktemp("tables") / {",": "a.csv", "\t": "a.tsv"}[delimiter]
    path.write_bytes(table(rows, delimiter).encode())
    corpus = thrice("classify", path)
    assert [(text, corpus.classes[label]) for text, label in corpus.test] == rows


def test_a_field_may_be_longer_than_the_csv_module_allows(tmp_path):
    limit = csv.field_size_limit()
    corpus = thrice("classify", write(tmp_path / "a.csv", table([("long " * 50_000, "x"), ("short", "y")])))
    assert len(corpus.train[0][0]) == 250_000
    assert csv.field_size_limit() == limit


FAULTS = {
    "a header only": ("a.csv", "text,label\n", " has no examples, but --train must have at least one"),
    "a field too many": ("a.csv", "text,label\na,x\nb,c,y\n", ", line 3: 3 fields, but the header has 2: quote a"),
    "after a field of three lines": ("a.csv", 'text,label\n"a\nb\nc",x\nb\n', ", line 5: 1 fields, but the header"),
    "a quote never closed": ("a.csv", 'text,label\na,x\n"b,y\nc,x\n', ", line 3: not a row of a table (unexpected end"),
    "carriage returns": ("a.csv", "text,label\ra,x\r", ", line 1: not a row of a table (new-line character seen"),
    "a column in capitals": ("a.csv", "id,text,Label\n1,a,x\n",
        ", line 1: no column 'label' among 'id', 'text', 'Label': name it with --label-column"),
    "a row without the column": ("a.jsonl", jsonl(TABLE[:1]) + '{"text": "b"}\n', ", line 2: no column 'label'"),
    "JSON without end": ("a.jsonl", "[" * 100_000, ", line 1: not JSON ("),
    "no object": ("a.jsonl", '["a", 1]\n', ", line 1: a list, but a line must be an object with 'text', 'label'"),
    "half a character": ("a.jsonl", '{"text": "\\uD83D", "label": 1}\n', ", line 1: half of a surrogate pair"),
    "text that is a number": ("a.jsonl", '{"text": 1.5, "label": 1}\n', ", line 1: 'text' is 1.5, but must be a"),
    "an unknown label": ("a.csv", "text,label\na,ham\nb,egg\n",
        ", line 3: label 'egg' is not in the training file, which has 'ham', 'spam'"),
    "one class": ("a.csv", "text,label\na,x\nb,x\n", ": every row has the label 'x', but at least two"),
    "Latin-1": ("a.csv", "text,label\na,x\ncaf\u00e9,y\n".encode("latin-1"), ", line 3: byte 0xe9 at position 4"),
    "another suffix": ("a.xlsx", "text,label\n", " must end in .csv, .tsv or .jsonl (or these + .gz), got '.xlsx'"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_bad_tables_are_told_with_file_and_line(tmp_path, name):
    filename, data, expected = FAULTS[name]
    good = write(tmp_path / "good.csv", table(TABLE))
    path = write(tmp_path / filename, data)
    files = (good, good, path) if name == "an unknown label" else (path, path, path)
    assert fault("classify", *files).startswith(f"{path}{expected}")


@pytest.mark.parametrize("task", TASKS)
def test_missing_files_folders_and_no_file_at_all_are_told(tmp_path, task):
    good = write_lines(tmp_path / "a.txt", ["a"])
    pair = (lambda path: f"{good},{path}") if task == "translate" else str
    absent = tmp_path / "absent.csv"
    assert fault(task, pair(good), pair(absent)) == f"{absent} is not a file: check --valid"
    assert fault(task, pair(tmp_path)) == f"{tmp_path} is not a file: check --train"
    assert fault(task, None) == f"{task} needs a training file: give it with --train"


def test_lines_of_text_are_examples(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffone two\r\n\r\n  three \n\nfour")
    assert thrice("lm", path).train == thrice("lm", path).test == ["one two", "three", "four"]
    path.write_bytes(b"line\n" * 9)
    expected = f"{path}: 9 examples are too few to hold out a tenth for valid and test: give at least 10"
    assert fault("lm", path).startswith(expected)
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(b"text\n" * 1000)[:-9])
    assert fault("lm", packed).startswith(f"{packed}: not a complete gzip file (")


def pair_of_files(folder, first, second):
    return f"{write_lines(folder / 'a.de', first)},{write_lines(folder / 'a.en', second)}"


def test_aligned_files_are_pairs(tmp_path):
    names = pair_of_files(tmp_path, ["ja", "", "nein ", "gut"], ["yes", "", "no", " "])
    corpus = thrice("translate", names)
    assert corpus.train == corpus.test == [("ja", "yes"), ("nein", "no")]
    assert corpus.notes[0] == "a.de: dropped pairs with one blank line: 1, the first at line 4"
    names = pair_of_files(tmp_path, ["ja", "nein"], ["yes"])
    expected = f"{tmp_path}/a.de has 2 lines and {tmp_path}/a.en has 1, but line n of one must be the translation"
    assert fault("translate", names).startswith(expected)
    expected = "--train must name two files separated by a comma, such as a.de,a.en, got 'a.de'"
    assert fault("translate", "a.de") == expected


def write_for(task, folder, rows=43):
    if task == "classify":
        return write(folder / "a.csv", table([(f"{i} {sentence(i)}", i % 3) for i in range(rows)]))
    lines = [f"{i} {sentence(i)}" for i in range(rows)]
    return pair_of_files(folder, lines, lines) if task == "translate" else write_lines(folder / "a.txt", lines)


@pytest.mark.parametrize("task", TASKS)
def test_what_no_file_is_given_for_is_held_out_and_said(tmp_path, task):
    names = write_for(task, tmp_path)
    whole = thrice(task, names).train
    corpus = source(task, names).read()
    assert sizes(corpus) == (35, 4, 4)
    assert sorted(corpus.train + corpus.valid + corpus.test) == sorted(whole)
    expected = r"valid and test: 4 of the 43 examples of a\.\w+, held out (at its end|by a .*)"
    assert re.fullmatch(expected, corpus.notes[0])
    assert source(task, names).read() == corpus
    assert (corpus.train + corpus.valid + corpus.test == whole) == (task == "lm")  # only text stays in its order

    alone = source(task, names, names).read()
    assert sizes(alone) == (39, 43, 4)
    assert alone.notes[0].startswith("test: 4 of the 43 examples of a.")


def test_other_files_splits_or_columns_have_other_keys(tmp_path):
    path = write(tmp_path / "a.csv", table(TABLE))
    keys = [
        source("classify", path, path).key,
        source("classify", path, None, path).key,
        source("classify", path, path, text_column="label", label_column="text").key,
        source("lm", path, path).key,
    ]
    assert len(set(keys)) == len(keys)
