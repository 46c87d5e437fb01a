"""MNIST's handwritten digits, 28 x 28, out of the four files in the idx format."""

from __future__ import annotations

import math
import struct
from pathlib import Path

from gasam.lab.data.corpus import Corpus
from gasam.lab.data.reading import content, required
from gasam.lab.data.source import Source
from gasam.lab.data.splitting import cut, permuted
from gasam.lab.errors import InputError

FILES = tuple(
    f"mnist/{split}-{kind}-ubyte.gz" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
CLASSES = tuple("0123456789")
SIDE = 28
VALID_SHARE = 6
NOTES = (
    "valid is the last sixth of one fixed permutation of the training file; the paper does not say how it validates",
)


def source(directory: Path) -> Source:
    """Trains on five sixths of the training file (50,000 of 60,000); an image is its 784 pixels, row by row, 0..255."""
    files = required("mnist", directory, FILES)

    def read() -> Corpus:
        images = permuted(_labelled(files[0], files[1]))
        train, valid = cut(images, len(images) - len(images) // VALID_SHARE)
        return Corpus(train, valid, _labelled(files[2], files[3]), classes=CLASSES, notes=NOTES)

    return Source("mnist", read, files=files)


def _labelled(images: Path, labels: Path) -> list[tuple[bytes, int]]:
    pixels, (count, *sides) = _array(images, magic=2051, dimensions=3)
    digits, (labelled,) = _array(labels, magic=2049, dimensions=1)
    if sides != [SIDE, SIDE]:
        raise _fault(images, f"images of {sides[0]} x {sides[1]} pixels, but must be {SIDE} x {SIDE}")
    if count != labelled:
        raise _fault(labels, f"{labelled} labels for the {count} images of {images.name}, but must be as many")
    if digits and max(digits) >= len(CLASSES):
        raise _fault(labels, f"label {max(digits)}, but must be 0 to 9")
    size = SIDE * SIDE
    return [(pixels[size * i : size * (i + 1)], digit) for i, digit in enumerate(digits)]


def _array(path: Path, magic: int, dimensions: int) -> tuple[bytes, tuple[int, ...]]:
    """The bytes of an idx file and their shape: big-endian magic number, then sizes, then the data."""
    data = content(path)
    start = 4 * (1 + dimensions)
    if len(data) < start:
        raise _fault(path, f"{len(data)} bytes, but its header alone must have {start}")
    found, *shape = struct.unpack(f">{1 + dimensions}I", data[:start])
    if found != magic:
        raise _fault(path, f"magic number {found}, but must be {magic}")
    if len(data) - start != math.prod(shape):
        raise _fault(path, f"{len(data) - start} bytes of data, but its header says {math.prod(shape)}")
    return data[start:], tuple(shape)


def _fault(path: Path, fault: str) -> InputError:
    return InputError(f"{path}: {fault}: get it again with `gasam data get mnist`")
