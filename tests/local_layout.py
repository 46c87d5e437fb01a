"""Data in the local layout, twenty lines a file, and the place of the published data where a machine has it."""

import gzip
import json
import os
import struct
from pathlib import Path

from gasam.lab.data.corpus import SPLITS, data_directory

# Read when this is imported: while tests run, the environment points to their own data.
PUBLISHED = data_directory(None)
PROMISED = bool(os.environ.get("GASAM_DATA"))
"""Whoever names a folder means to test what is in it: then nothing is skipped."""

ROWS = 20
PANGRAM = "the quick brown fox jumps over a lazy dog while seven wizards box with black quartz and judge my vow"
WORDS = PANGRAM.split()


def sentence(number: int, words: int = 6) -> str:
    return " ".join(WORDS[(number * 7 + 3 * i) % len(WORDS)] for i in range(words))


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_lines(path: Path, lines: list[str]) -> Path:
    return write(path, "".join(f"{line}\n" for line in lines))


def write_imdb(directory: Path, rows: int = ROWS) -> Path:
    for split in ("train", "test"):
        reviews = [{"label": i % 2, "id": i, "text": f"{split} {i} {sentence(i)}"} for i in range(rows)]
        write_lines(directory / f"imdb/{split}.jsonl.gz", [json.dumps(review) for review in reviews])
    return directory


def write_ptb(directory: Path, rows: int = ROWS) -> Path:
    for split in ("train", "valid", "test"):
        write_lines(directory / f"ptb/ptb.{split}.txt.gz", [f" {split} {sentence(i)} " for i in range(rows)])
    return directory


def write_pairs(directory: Path, name: str, languages: tuple[str, str], rows: int = ROWS) -> None:
    for language in languages:
        lines = [f"{name} {i} {sentence(i)} {language}" for i in range(rows)]
        write_lines(directory / f"{name}.{language}.gz", lines)


def write_en_vi(directory: Path, rows: int = ROWS) -> Path:
    for name in ("ted_small", "news_wiki", "tst2012", "tst2013"):
        write_pairs(directory / "iwslt15", name, ("en", "vi"), rows)
    for language in ("en", "vi"):
        write_lines(directory / f"iwslt15/vocab.{language}", ["<unk>", "<s>", "</s>", *sorted(WORDS), language])
    return directory


def write_de_en(directory: Path, rows: int = ROWS) -> Path:
    for name in ("train_subset", "valid", "test"):
        write_pairs(directory / "iwslt14", name, ("de", "en"), rows)
    return directory


def idx(magic: int, sizes: list[int], data: bytes) -> bytes:
    return struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + data


def write_mnist(directory: Path, rows: int = ROWS) -> Path:
    for shift, split in enumerate(("train", "t10k")):
        pixels = b"".join(bytes((i * 13 + 5 * p + shift) % 256 for p in range(784)) for i in range(rows))
        write(directory / f"mnist/{split}-images-idx3-ubyte.gz", idx(2051, [rows, 28, 28], pixels))
        labels = bytes(i % 10 for i in range(rows))
        write(directory / f"mnist/{split}-labels-idx1-ubyte.gz", idx(2049, [rows], labels))
    return directory


WRITERS = {"imdb": write_imdb, "ptb": write_ptb, "en-vi": write_en_vi, "de-en": write_de_en, "mnist": write_mnist}


def sizes(corpus) -> tuple[int, ...]:
    return tuple(len(getattr(corpus, split)) for split in SPLITS)


def disjoint(corpus) -> bool:
    """No example of a split is in another."""
    train, valid, test = (set(getattr(corpus, split)) for split in SPLITS)
    return not (train & valid or train & test or valid & test)
