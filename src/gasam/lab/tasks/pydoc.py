"""The task pydoc: Python's language reference from the standard library, the embedded twin of Penn TreeBank."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator

from gasam.lab.data.corpus import Corpus, Source, Split
from gasam.lab.families.language import LanguageModel
from gasam.lab.tasks import ptb
from gasam.lab.tasks.task import Task, sizes

SMALL = ptb.SMALL.changed(rows=None, epochs=6, halve_after=3, batch=20, vocabulary=4_000, hidden=64)

TOKEN = re.compile(r"\w+|[^\w\s]")
RULE = re.compile(r"^[*=~^\"'-]{3,}$", re.MULTILINE)


def source() -> Source:
    """Paragraphs of lower-case words and single punctuation marks, one example each.

    Of every ten topics, in alphabetical order, one is for validation and one for test. Topics quote each other, so only
    the first occurrence of a paragraph is used, and no paragraph is in two splits.
    """
    return Source("pydoc", _read, options=f"Python {platform.python_version()}")


def _read() -> Corpus:
    from pydoc_data.topics import topics

    splits: dict[Split, list[str]] = {"train": [], "valid": [], "test": []}
    seen: set[str] = set()
    for number, name in enumerate(sorted(topics)):
        fresh = [paragraph for paragraph in dict.fromkeys(_paragraphs(topics[name])) if paragraph not in seen]
        seen.update(fresh)
        splits[_split(number)] += fresh
    return Corpus(splits["train"], splits["valid"], splits["test"])


def _split(number: int) -> Split:
    return "valid" if number % 10 == 0 else "test" if number % 10 == 5 else "train"


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", RULE.sub("", text)):
        tokens = TOKEN.findall(paragraph.lower())
        if tokens:
            yield " ".join(tokens)


TASKS = (
    Task(
        name="pydoc",
        about="language model of Python's language reference, LSTM",
        kind="twin of ptb",
        family=LanguageModel,
        source=lambda origin: source(),
        sizes=sizes(paper=ptb.PAPER, small=SMALL, tiny=ptb.TINY),
        borrows_from=("ptb", "en-vi"),
    ),
)
