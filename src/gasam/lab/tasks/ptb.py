"""The task ptb: the word-level Penn TreeBank in Mikolov's version with 10,000 words."""

from __future__ import annotations

from pathlib import Path

from gasam.lab.data.corpus import Corpus, Source, required
from gasam.lab.data.files import lines
from gasam.lab.data.published import Published, Row, as_lines, on_hub
from gasam.lab.families.language import LanguageModel, LSTMSettings
from gasam.lab.tasks.task import Task

FILES = ("ptb/ptb.train.txt.gz", "ptb/ptb.valid.txt.gz", "ptb/ptb.test.txt.gz")

PAPER = LSTMSettings(
    epochs=20,
    batch=20,
    optimizer="sgd",
    learning_rate=50.0,
    clip=0.25,
    schedule="halving",
    halve_after=10,
    dropout=0.5,
    vocabulary=10_000,
    length=70,
    hidden=500,
)
SMALL_MODEL = PAPER.changed(
    rows=3_000, epochs=12, halve_after=5, batch=10, length=35, hidden=128, dropout=0.2, learning_rate=20.0
)
SMALL = SMALL_MODEL.changed(
    epochs=24,
    halve_after=9,
    learning_rate=39.0,
    clip=0.14,
    weight_decay=1.2e-6,
    dropout=0.46,
    embedding_range=0.14,
)
"""The settings that a search of 16 trials chose for plain training on validation."""
MEDIUM = PAPER.changed(rows=10_000, epochs=14, halve_after=8, length=35, hidden=200, learning_rate=20.0)
"""As much dropout as in the paper's model, on a quarter of its text."""
TINY = PAPER.changed(rows=200, epochs=2, halve_after=1, batch=8, dropout=0.1, vocabulary=200, length=10, hidden=16)


def source(directory: Path) -> Source:
    """The three files without changes, one example per line. The paper uses the same data."""
    files = required("ptb", directory, FILES)

    def read() -> Corpus:
        train, valid, test = ([line.strip() for line in lines(file)] for file in files)
        return Corpus(train, valid, test)

    return Source("ptb", read, files=files)


def _from_hub(table: list[Row]) -> list[bytes]:
    return [as_lines(row["sentence"] for row in table)]


PUBLISHED = Published(
    tuple(
        on_hub((f"ptb/ptb.{name}.txt.gz",), _from_hub, "ptb-text-only/ptb_text_only", "penn_treebank", split)
        for name, split in (("train", "train"), ("valid", "validation"), ("test", "test"))
    ),
    "one tokenised sentence per line",
    {
        "ptb/ptb.test.txt.gz": (3_761, "38a777800d6c33e401453fe41d87d4548247bed3bdd9d54a58928f53ef6e84d6"),
        "ptb/ptb.train.txt.gz": (42_068, "05c01a9258233ad1eaa215f507c0b3b12ce2130dd579ea16099e037debab6dca"),
        "ptb/ptb.valid.txt.gz": (3_370, "ef32d560607be130628303616ea6aefc6f906223135adfb49d9e516a3a7865e4"),
    },
)

TASKS = (
    Task(
        name="ptb",
        about="language model of the Penn TreeBank, LSTM",
        kind="paper",
        family=LanguageModel,
        source=lambda origin: source(origin.folder),
        sizes={"paper": PAPER, "medium": MEDIUM, "small": SMALL, "tiny": TINY},
        published=PUBLISHED,
    ),
)
