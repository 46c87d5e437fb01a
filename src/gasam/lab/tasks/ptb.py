"""Penn TreeBank, word level: Mikolov's 10,000-word form that language models are compared on."""

from __future__ import annotations

from pathlib import Path

from gasam.lab.data.corpus import Corpus
from gasam.lab.data.reading import lines, required
from gasam.lab.data.source import Source

FILES = ("ptb/ptb.train.txt.gz", "ptb/ptb.valid.txt.gz", "ptb/ptb.test.txt.gz")


def source(directory: Path) -> Source:
    """The three files as they are, a line an example; the data is the paper's."""
    files = required("ptb", directory, FILES)

    def read() -> Corpus:
        train, valid, test = ([line.strip() for line in lines(file)] for file in files)
        return Corpus(train, valid, test)

    return Source("ptb", read, files=files)
