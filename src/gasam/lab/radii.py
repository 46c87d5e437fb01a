"""How far each method walks: the paper's appendix, and what was chosen on validation where it has no number."""

from __future__ import annotations

import math
from typing import NamedTuple


class Radius(NamedTuple):
    norm: float
    epsilon: float
    steps: int = 1
    remark: str = ""


def l2(epsilon: float, steps: int = 1) -> Radius:
    return Radius(2.0, epsilon, steps)


def linf(epsilon: float, steps: int = 1) -> Radius:
    return Radius(math.inf, epsilon, steps)


def of_token_sum(epsilon: float) -> Radius:
    """T of GA-SAM is the inverse of a gradient. With the mean loss 0.9 would move every weight by about one, so it must
    belong to fairseq's sum over the 4,096 tokens of a batch."""
    return Radius(math.inf, epsilon / 4096, 2, f"{epsilon:g} for the sum of 4,096 tokens (inferred)")


PAPER: dict[str, dict[str, Radius]] = {
    "sam": {"imdb": linf(2e-5), "ptb": l2(5e-3), "en-vi": linf(1.2e-3), "de-en": linf(5e-4)},
    "asam": {"imdb": linf(5e-3), "ptb": linf(5e-4), "en-vi": linf(5e-4), "de-en": linf(2e-4)},
    "asam-filter": {
        task: Radius(math.inf, epsilon, 1, "element-wise ASAM's over the root of a filter's size (inferred)")
        for task, epsilon in (("imdb", 1e-4), ("ptb", 2e-5), ("en-vi", 2e-5), ("de-en", 1e-5))
    },
    "layer-sam": {"imdb": l2(1e-5), "ptb": l2(1e-6), "en-vi": linf(1e-3), "de-en": linf(3e-3)},
    "multi-step-defense": {"imdb": linf(2e-5), "ptb": linf(1e-3), "en-vi": linf(5e-4, 2), "de-en": linf(5e-4, 2)},
    "ga-sam": {"imdb": linf(1e-4), "ptb": linf(8e-6), "en-vi": of_token_sum(0.9), "de-en": of_token_sum(0.8)},
    "freelb": {"en-vi": linf(0.02, 1), "de-en": linf(0.005, 3)},
    "single-step": {"imdb": linf(5e-5), "ptb": l2(5e-3)},
    "element-wise": {"imdb": linf(5e-6), "ptb": linf(2e-6)},
    "model-wise": {"imdb": linf(5e-5), "ptb": linf(5e-6)},
    "scale-weight-over-gradient": {"imdb": linf(2e-5), "ptb": l2(2e-5)},
    "scale-inverse-gradient": {"imdb": linf(5e-5), "ptb": linf(5e-6)},
    "scale-weight-rms": {"imdb": linf(5e-3), "ptb": linf(1e-4)},
    "scale-weight": {"imdb": linf(5e-6), "ptb": linf(1e-7)},
}

CHOSEN: dict[str, dict[str, Radius]] = {
    "sam": {"docstrings": linf(2e-3), "numerals": linf(1e-4), "digits": l2(0.05)},
    "asam": {"docstrings": linf(5e-2), "digits": linf(5e-2)},
    "layer-sam": {"docstrings": l2(3e-4), "digits": l2(1e-3)},
    "multi-step-defense": {"docstrings": linf(2e-3), "digits": linf(1e-2)},
    "ga-sam": {"docstrings": linf(5e-3), "numerals": linf(2e-5, 2), "digits": linf(2e-3)},
}
"""On validation, with other seeds than the first: three tries for each method, for numerals two, of which en-vi's own
radii were the first and far too large."""

START_EPOCH = {"en-vi": (30, 52), "de-en": (30, 70), "numerals": (30, 52), "translate": (30, 52)}
"""The epoch, counted from 1, with which the walk begins, and of how many."""

KIN = {
    "imdb": ("en-vi",),
    "ptb": ("en-vi",),
    "docstrings": ("imdb", "en-vi"),
    "classify": ("docstrings", "imdb", "en-vi"),
    "pydoc": ("ptb", "en-vi"),
    "lm": ("pydoc", "ptb", "en-vi"),
    "numerals": ("en-vi",),
    "translate": ("numerals", "en-vi"),
    "mnist": ("digits", "imdb"),
    "digits": ("mnist", "imdb"),
}
"""Where a task without a number of its own looks next."""
