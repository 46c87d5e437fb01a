"""The task digits: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, the embedded twin of MNIST."""

from __future__ import annotations

from gasam.lab.data.corpus import Corpus, Source, cut, permuted
from gasam.lab.data.locations import installed
from gasam.lab.families.images import ImageClassification
from gasam.lab.tasks import mnist
from gasam.lab.tasks.task import Task, l2, linf, sizes

CLASSES = tuple("0123456789")
TRAIN, VALID = 1_000, 297
DARKEST = 16


def source() -> Source:
    """1,000 training, 297 validation and 500 test images; the 17 shades are scaled to 0..255, as in MNIST."""
    installed("digits", "sklearn")
    return Source("digits", _read, packages=("scikit-learn",))


def _read() -> Corpus:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    pixels, labels = load_digits(return_X_y=True)
    shades = (pixels * (255 / DARKEST)).round().astype("uint8")
    images = [(image.tobytes(), int(label)) for image, label in zip(shades, labels, strict=True)]
    train, valid, test = cut(permuted(images), TRAIN, VALID)
    return Corpus(train, valid, test, classes=CLASSES)


TASKS = (
    Task(
        name="digits",
        about="scikit-learn's 8 x 8 digits, MLP",
        kind="twin of mnist",
        family=ImageClassification,
        source=lambda origin: source(),
        sizes=sizes(paper=mnist.PAPER, small=mnist.PAPER.changed(epochs=60), tiny=mnist.TINY),
        chosen_radii={
            "sam": l2(0.05),
            "asam": linf(5e-2),
            "layer-sam": l2(1e-3),
            "multi-step-defense": linf(1e-2),
            "ga-sam": linf(2e-3),
        },
        borrows_from=("mnist", "imdb"),
    ),
)
