"""The user's own files: what is accepted, what is held out, and one sentence with file and line for every fault."""

import csv
import gzip
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasam.lab.data.corpus import SPLITS
from gasam.lab.errors import InputError
from gasam.lab.tasks import own as files
from local_layout import sentence, write, write_lines

LABELS = ("spam", "ham")
TABLE = [(f"{sentence(i)} {i}", LABELS[i % 2]) for i in range(40)]


def table(rows, delimiter=",", header=("text", "label")):
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter).writerows([header, *rows])
    return stream.getvalue()


def jsonl(rows):
    return "".join(json.dumps({"text": text, "label": label, "other": 1}) + "\n" for text, label in rows)


def fault(make):
    """The one sentence of an error, raised when the source is made or read."""
    with pytest.raises(InputError) as caught:
        make().read()
    assert "\n" not in str(caught.value)
    return str(caught.value)


FORMATS = {
    "a.csv": table(TABLE),
    "a.tsv": table(TABLE, "\t"),
    "a.jsonl": jsonl(TABLE),
    "a.csv.gz": table(TABLE),
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
    path = write(tmp_path / name, FORMATS[name])
    corpus = files.classify(path, path, path).read()
    assert corpus.train == corpus.valid == corpus.test == [(text, int(label == "spam")) for text, label in TABLE]
    assert corpus.classes == ("ham", "spam")
    assert not corpus.notes


def test_columns_are_chosen_by_name(tmp_path):
    path = write(tmp_path / "a.csv", table([("1", "bad", "x"), ("5", "good", "y")], header=("stars", " review ", "id")))
    corpus = files.classify(path, path, path, text_column="review", label_column="stars").read()
    assert corpus.train == [("bad", 0), ("good", 1)]
    assert corpus.classes == ("1", "5")


@pytest.mark.parametrize(("written", "given"), [(";", ";"), ("|", "|"), ("\t", "tab"), ("\t", "\\t"), ("\t", "\t")])
def test_the_delimiter_is_chosen(tmp_path, written, given):
    usual, other = (write(tmp_path / f"{i}.csv", table(TABLE, each)) for i, each in enumerate((",", written)))
    found = files.classify(other, other, other, delimiter=given).read()
    assert found == files.classify(usual, usual, usual).read()
    assert found.digest() == files.classify(usual, usual, usual).read().digest()


@pytest.mark.parametrize("given", [";;", "", '"', "\n"])
def test_a_delimiter_is_one_character(tmp_path, given):
    path = write(tmp_path / "a.csv", table(TABLE))
    expected = f"--delimiter must be one character such as ';', or tab, got {given!r}"
    assert fault(lambda: files.classify(path, path, path, delimiter=given)) == expected


def test_json_has_no_delimiter(tmp_path):
    path = write(tmp_path / "a.jsonl", jsonl(TABLE))
    expected = f"{path}: a JSONL file has no delimiter: leave out --delimiter"
    assert fault(lambda: files.classify(path, path, path, delimiter=";")) == expected


def test_empty_rows_are_dropped_with_a_note(tmp_path):
    full = write(tmp_path / "full.csv", table([("a", "x"), ("b", "y")]))
    some = write(tmp_path / "some.csv", table([("a", "x"), ("", "y"), ("b", "y"), ("c", " "), (" ", "x")]))
    corpus = files.classify(some, full, full, drop_empty=True).read()
    assert corpus.train == corpus.test == [("a", 0), ("b", 1)]
    assert corpus.notes == (
        "some.csv: dropped 2 rows with an empty 'text', first at line 3, "
        "and 1 row with an empty 'label', first at line 5",
    )
    assert files.classify(full, full, full, drop_empty=True).read().notes == ()


def test_numbers_are_labels_and_sort_as_numbers(tmp_path):
    path = write(tmp_path / "a.jsonl", jsonl([("a", 10), ("b", 9), ("c", "2")]))
    assert files.classify(path, path, path).read().classes == ("2", "9", "10")


@given(
    rows=st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from("xyz")), min_size=1),
    delimiter=st.sampled_from([",", "\t"]),
)
def test_any_text_survives_a_table(tmp_path_factory, rows, delimiter):
    rows = [(f"start {text} end", label) for text, label in rows] + [("last", "w")]
    path = tmp_path_factory.mktemp("tables") / {",": "a.csv", "\t": "a.tsv"}[delimiter]
    path.write_bytes(table(rows, delimiter).encode())
    corpus = files.classify(path, path, path).read()
    assert [(text, corpus.classes[label]) for text, label in corpus.test] == rows


def test_a_field_may_be_longer_than_the_csv_module_allows(tmp_path):
    limit = csv.field_size_limit()
    path = write(tmp_path / "a.csv", table([("long " * 50_000, "x"), ("short", "y")]))
    assert len(files.classify(path, path, path).read().train[0][0]) == 250_000
    assert csv.field_size_limit() == limit


CLASSIFY_FAULTS = {
    "an empty file": ("a.csv", "", " has no examples, but --train must have at least one"),
    "a header only": ("a.csv", "text,label\n", " has no examples, but --train must have at least one"),
    "nothing but blank lines": ("a.jsonl", "\n\n", " has no examples, but --train must have at least one"),
    "a field too many": ("a.csv", "text,label\na,x\nb,c,y\n", ", line 3: 3 fields, but the header has 2: quote a"),
    "a field too few": ("a.tsv", "text\tlabel\na\n", ", line 2: 1 fields, but the header has 2: quote a field"),
    "after a field of three lines": ("a.csv", 'text,label\n"a\nb\nc",x\nb\n', ", line 5: 1 fields, but the header"),
    "a row of two lines": ("a.csv", 'text,label\na,x\n"a\nb",x,y\n', ", line 3: 3 fields, but the header has 2"),
    "a quote never closed": ("a.csv", 'text,label\na,x\n"b,y\nc,x\n', ", line 3: not a row of a table (unexpected end"),
    "text after a quote": ("a.csv", 'text,label\n"a"b,x\n', ", line 2: not a row of a table ("),
    "an unknown column": ("a.csv", "review,label\na,x\n",
        ", line 1: no column 'text' among 'review', 'label': use --text-column review"),
    "a column in capitals": ("a.csv", "id,text,Label\n1,a,x\n",
        ", line 1: no column 'label' among 'id', 'text', 'Label': use --label-column Label"),
    "columns unlike any": ("a.csv", "q,w,e\n1,a,x\n",
        ", line 1: no column 'text' among 'q', 'w', 'e': use --text-column with one of these"),
    "semicolons": ("a.csv", "text;label\na;x\n", ", line 1: the header looks separated by ';': use --delimiter ';'"),
    "quoted semicolons": ("a.csv", '"text";"label"\na;x\n',
        ", line 1: the header looks separated by ';': use --delimiter ';'"),
    "tabs in a CSV": ("a.csv", "text\tlabel\na\tx\n",
        ", line 1: the header looks separated by tab: use --delimiter tab"),
    "a row without the column": ("a.jsonl", jsonl(TABLE[:1]) + '{"text": "b"}\n', ", line 2: no column 'label'"),
    "an empty object": ("a.jsonl", "{}\n", ", line 1: no column 'text' among none: rename"),
    "no JSON": ("a.jsonl", '{"text": "a", "label": 1}\n{"text": \n', ", line 2: not JSON (Expecting value"),
    "JSON without end": ("a.jsonl", "[" * 100_000, ", line 1: not JSON ("),
    "no object": ("a.jsonl", '["a", 1]\n', ", line 1: a list, but a line must be an object with 'text', 'label'"),
    "half a character": ("a.jsonl", '{"text": "\\uD83D", "label": 1}\n', ", line 1: half of a surrogate pair"),
    "an empty text": ("a.csv", "text,label\na,x\n ,y\n",
        ": 1 row has an empty 'text', first at line 3: fill them in, or use --drop-empty"),
    "an empty label": ("a.csv", "text,label\na,\n", ": 1 row has an empty 'label', first at line 2: fill"),
    "empty texts and labels": ("a.csv", "text,label\na,x\n,\n,y\n",
        ": 2 rows have an empty 'text', first at line 3, and 1 row has an empty 'label', first at line 3: fill"),
    "no label": ("a.jsonl", '{"text": "a", "label": null}\n', ": 1 row has an empty 'label', first at line 1: fill"),
    "text that is a number": ("a.jsonl", '{"text": 1.5, "label": 1}\n', ", line 1: 'text' is 1.5, but must be a"),
    "label that is a list": ("a.jsonl", '{"text": "a", "label": [1]}\n', ", line 1: 'label' is [1], but must be a"),
    "one class": ("a.csv", "text,label\na,x\nb,x\n", ": every row has the label 'x', but at least two"),
    "Latin-1": ("a.csv", "text,label\na,x\ncaf\u00e9,y\n".encode("latin-1"), ", line 3: byte 0xe9 at position 4"),
    "Latin-1 in a quoted line": ("a.csv", 'text,label\n"a\ncaf\u00e9",y\n'.encode("latin-1"), ", line 3: byte 0xe9"),
    "UTF-16": ("a.csv", "text,label\na,x\n".encode("utf-16"), ", line 1: byte 0x"),
    "another suffix": ("a.xlsx", "text,label\n", " must end in .csv, .tsv or .jsonl (or these + .gz), got '.xlsx'"),
    "no suffix": ("data.gz", "text,label\n", " must end in .csv, .tsv or .jsonl (or these + .gz), got 'no ending'"),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSIFY_FAULTS)
def test_bad_tables_are_told_with_file_and_line(tmp_path, name):
    filename, data, expected = CLASSIFY_FAULTS[name]
    path = write(tmp_path / filename, data)
    assert fault(lambda: files.classify(path, path, path)).startswith(f"{path}{expected}")


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_label_that_training_never_saw_is_told(tmp_path, split):
    train = write(tmp_path / "a.csv", table(TABLE))
    other = write(tmp_path / "b.csv", table([("a", "ham"), ("b", "egg")]))
    told = fault(lambda: files.classify(**{"train": train, "valid": train, "test": train} | {split: other}))
    assert told == f"{other}, line 3: label 'egg' is not in the training file, which has 'ham', 'spam'"


TASKS = {"classify": files.classify, "lm": files.lm, "translate": files.translate}


@pytest.mark.parametrize("task", TASKS)
def test_missing_files_folders_and_no_file_at_all_are_told(tmp_path, task):
    good = write_lines(tmp_path / "a.txt", ["a"])
    pair = (lambda path: f"{good},{path}") if task == "translate" else str
    absent = tmp_path / "absent.csv"
    assert fault(lambda: TASKS[task](pair(absent))) == f"{absent} does not exist: check --train"
    assert fault(lambda: TASKS[task](pair(good), pair(absent))) == f"{absent} does not exist: check --valid"
    assert fault(lambda: TASKS[task](pair(tmp_path))) == f"{tmp_path} is a folder, but --train must name a file"
    assert fault(lambda: TASKS[task](None)) == f"{task} needs a training file: give it with --train"


def test_a_damaged_archive_is_told(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(b"plain text")
    assert fault(lambda: files.lm(path)).startswith(f"{path}: not a complete gzip file (")
    path.write_bytes(gzip.compress(b"text\n" * 1000)[:-9])
    assert fault(lambda: files.lm(path)).startswith(f"{path}: not a complete gzip file (")


def test_lines_of_text_are_examples(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffone two\r\n\r\n  three \n\nfour")
    corpus = files.lm(path, path, path).read()
    assert corpus.train == corpus.valid == corpus.test == ["one two", "three", "four"]


LM_FAULTS = {
    "an empty file": (b"", " has no examples, but --train must have at least one"),
    "nothing but blanks": (b"\n \n", " has no examples, but --train must have at least one"),
    "Latin-1": ("a\nb\n\u00fc\n".encode("latin-1"), ", line 3: byte 0xfc at position 1 is not UTF-8: save the file as"),
    "nine lines": (b"line\n" * 9, ": 9 examples are too few to hold out a tenth for valid and test: give at least 10"),
}


@pytest.mark.parametrize("name", LM_FAULTS)
def test_bad_text_is_told_with_file_and_line(tmp_path, name):
    path = write(tmp_path / "a.txt", LM_FAULTS[name][0])
    assert fault(lambda: files.lm(path)).startswith(f"{path}{LM_FAULTS[name][1]}")


def pair_of_files(folder, first, second):
    return f"{write_lines(folder / 'a.de', first)},{write_lines(folder / 'a.en', second)}"


def test_aligned_files_are_pairs(tmp_path):
    names = pair_of_files(tmp_path, ["ja", "", "nein "], ["yes", "", "no"])
    corpus = files.translate(names, names, names).read()
    assert corpus.train == corpus.valid == corpus.test == [("ja", "yes"), ("nein", "no")]


def test_half_a_pair_is_dropped_from_training_and_told_elsewhere(tmp_path):
    half = pair_of_files(tmp_path / "half", ["ja", "nein"], ["yes", ""])
    good = pair_of_files(tmp_path, ["ja", "nein"], ["yes", "no"])
    assert files.translate(half, good, good).read().train == [("ja", "yes")]
    blank, other = tmp_path / "half/a.en", tmp_path / "half/a.de"
    expected = (
        f"{blank}, line 2: blank, but the same line of {other} is not: translate it, remove both, or use --drop-empty"
    )
    assert fault(lambda: files.translate(good, half, good)) == expected
    assert fault(lambda: files.translate(good, good, half)) == expected
    corpus = files.translate(good, half, good, drop_empty=True).read()
    assert (corpus.train, corpus.valid) == ([("ja", "yes"), ("nein", "no")], [("ja", "yes")])
    assert corpus.notes == ("a.de: dropped 1 pair with a blank line, first at line 2",)


def test_unequal_files_are_told_with_both_counts(tmp_path):
    names = pair_of_files(tmp_path, ["ja", "nein"], ["yes"])
    expected = f"{tmp_path}/a.de has 2 lines and {tmp_path}/a.en has 1, but line n of one must be the translation"
    assert fault(lambda: files.translate(names)).startswith(expected)


@pytest.mark.parametrize("names", ["a.de", "a.de,a.en,a.fr", ""])
def test_translation_needs_two_names(names):
    expected = f"--train must name two files separated by a comma, such as a.de,a.en, got {names!r}"
    assert fault(lambda: files.translate(names)) == expected


def write_for(task, folder, rows=43):
    if task == "classify":
        return write(folder / "a.csv", table([(f"{i} {sentence(i)}", i % 3) for i in range(rows)]))
    lines = [f"{i} {sentence(i)}" for i in range(rows)]
    return pair_of_files(folder, lines, lines) if task == "translate" else write_lines(folder / "a.txt", lines)


@pytest.mark.parametrize("task", TASKS)
def test_what_no_file_is_given_for_is_held_out_and_said(tmp_path, task):
    names = write_for(task, tmp_path)
    whole = TASKS[task](names, names, names).read().train
    corpus = TASKS[task](names).read()
    assert [len(getattr(corpus, split)) for split in SPLITS] == [35, 4, 4]
    assert sorted(corpus.train + corpus.valid + corpus.test) == sorted(whole)
    assert re.fullmatch(
        r"valid and test: 4 of the 43 examples of a\.\w+, held out (at its end|by a .*)", corpus.notes[0]
    )
    assert TASKS[task](names).read() == corpus

    alone = TASKS[task](names, names).read()
    assert [len(getattr(alone, split)) for split in SPLITS] == [39, 43, 4]
    assert alone.notes[0].startswith("test: 4 of the 43 examples of a.")
    assert TASKS[task](names).key != TASKS[task](names, names).key


def test_held_out_text_is_the_end_and_held_out_rows_are_mixed(tmp_path):
    lines = files.lm(write_for("lm", tmp_path)).read()
    assert [int(line.split()[0]) for line in lines.train + lines.valid + lines.test] == list(range(43))
    rows = files.classify(write_for("classify", tmp_path)).read()
    assert {int(text.split()[0]) for text, _ in rows.test} != set(range(39, 43))


def test_too_few_rows_to_hold_out_are_told_with_the_cure(tmp_path):
    path = write_for("classify", tmp_path, rows=9)
    assert fault(lambda: files.classify(path, valid=path)) == (
        f"{path}: 9 examples are too few to hold out a tenth for test: give at least 10 examples, or --test"
    )


def test_files_given_for_other_splits_or_columns_have_other_keys(tmp_path):
    path = write(tmp_path / "a.csv", table(TABLE))
    keys = {
        files.classify(path, path).key,
        files.classify(path, None, path).key,
        files.classify(path, path, text_column="label", label_column="text").key,
        files.lm(path, path).key,
    }
    assert len(keys) == 4
