"""Scikit-learn's 1,797 handwritten digits, 8 x 8: the embedded twin of MNIST."""

from __future__ import annotations

from gasam.lab.data.corpus import Corpus
from gasam.lab.data.packages import installed
from gasam.lab.data.source import Source
from gasam.lab.data.splitting import cut, permuted

CLASSES = tuple("0123456789")
TRAIN, VALID = 1_000, 297
DARKEST = 16


def source() -> Source:
    """1,000 train, 297 validate, 500 test; the 17 shades are spread over 0..255, so that bytes mean what MNIST's do."""
    installed("digits", "sklearn")
    return Source("digits", _read, packages=("scikit-learn",))


def _read() -> Corpus:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    pixels, labels = load_digits(return_X_y=True)
    shades = (pixels * (255 / DARKEST)).round().astype("uint8")
    images = [(image.tobytes(), int(label)) for image, label in zip(shades, labels, strict=True)]
    train, valid, test = cut(permuted(images), TRAIN, VALID)
    return Corpus(train, valid, test, classes=CLASSES)
