"""The task mnist: handwritten digits of 28 x 28 pixels, from four files in the idx format."""

from __future__ import annotations

import struct
from pathlib import Path

from gasam.lab.data.corpus import Corpus, Source, cut, permuted, required
from gasam.lab.data.files import idx
from gasam.lab.data.published import Published, Row, on_hub
from gasam.lab.errors import InputError
from gasam.lab.families.images import ImageClassification, MLPSettings
from gasam.lab.tasks.task import Task

FILES = tuple(
    f"mnist/{split}-{kind}-ubyte.gz" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
CLASSES = tuple("0123456789")
SIDE = 28
NOTES = (
    "valid is the last sixth of one fixed permutation of the training file; the paper does not say how it validates",
)

PAPER = MLPSettings(epochs=20, batch=64, learning_rate=1e-3, dropout=0.0)
TINY = PAPER.changed(rows=200, epochs=2)


def source(directory: Path) -> Source:
    """Five sixths of the training file (50,000 of 60,000) are for training; an image is 784 bytes, row by row."""
    files = required("mnist", directory, FILES)

    def read() -> Corpus:
        images = permuted(_labelled(files[0], files[1]))
        train, valid = cut(images, len(images) - len(images) // 6)
        return Corpus(train, valid, _labelled(files[2], files[3]), classes=CLASSES, notes=NOTES)

    return Source("mnist", read, files=files)


def _labelled(images: Path, labels: Path) -> list[tuple[bytes, int]]:
    (count, *sides), pixels = idx(images, 3)
    (labelled,), digits = idx(labels, 1)
    if sides != [SIDE, SIDE] or count != labelled or max(digits, default=0) >= len(CLASSES):
        raise InputError(
            f"{images} and {labels} must have as many images of {SIDE} x {SIDE} pixels as labels from 0 to 9: "
            "delete them and download them again with `gasam data --get mnist`"
        )
    size = SIDE * SIDE
    return [(pixels[size * i : size * (i + 1)], digit) for i, digit in enumerate(digits)]


def _from_hub(table: list[Row]) -> list[bytes]:
    """The files in the idx format: a magic number, the sizes, the data."""
    pictures = [row["image"].convert("L") for row in table]
    width, height = pictures[0].size
    pixels = b"".join(picture.tobytes() for picture in pictures)
    labels = bytes(row["label"] for row in table)
    return [struct.pack(">4I", 2051, len(table), height, width) + pixels, struct.pack(">2I", 2049, len(table)) + labels]


PUBLISHED = Published(
    tuple(
        on_hub(files, _from_hub, "ylecun/mnist", "mnist", split)
        for files, split in ((FILES[:2], "train"), (FILES[2:], "test"))
    ),
    "idx files as published",
    {
        "mnist/t10k-images-idx3-ubyte.gz": (10000, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        "mnist/t10k-labels-idx1-ubyte.gz": (10000, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        "mnist/train-images-idx3-ubyte.gz": (60000, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        "mnist/train-labels-idx1-ubyte.gz": (60000, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    },
)

TASKS = (
    Task(
        name="mnist",
        about="handwritten digits, MLP 784-100-100-10",
        kind="paper",
        family=ImageClassification,
        source=lambda origin: source(origin.folder),
        sizes={"paper": PAPER, "small": PAPER.changed(rows=10_000), "tiny": TINY},
        published=PUBLISHED,
    ),
)
