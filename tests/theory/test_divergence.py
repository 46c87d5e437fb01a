"""f-divergences: their second-order term, their zeros and infinities, their sign."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gasam.lab.theory.divergence import DIVERGENCES, divergence
from tolerances import EXACT

# f as textbooks write it, with its linear term: at x = p*/p, p and p* both positive.
TEXTBOOK = {
    "kl": lambda t: t * np.log(t),
    "reverse_kl": lambda t: -np.log(t),
    "chi_square": lambda t: (t - 1) ** 2,
    "jensen_shannon": lambda t: (t * np.log(2 * t / (1 + t)) + np.log(2 / (1 + t))) / 2,
    "squared_hellinger": lambda t: (np.sqrt(t) - 1) ** 2,
}
A_2 = {"kl": 1 / 2, "reverse_kl": 1 / 2, "chi_square": 1, "jensen_shannon": 1 / 8, "squared_hellinger": 1 / 4}
every = pytest.mark.parametrize("kind", DIVERGENCES.values(), ids=DIVERGENCES)


@st.composite
def pairs(draw):
    size = draw(st.integers(2, 8))
    numbers = st.lists(st.floats(0.01, 1), min_size=size, max_size=size)
    p, p_star = (np.array(draw(numbers)) for _ in range(2))
    return p_star / p_star.sum(), p / p.sum()


@every
def test_a_2_is_half_the_second_derivative_at_one(kind):
    assert kind.a_2 == A_2[kind.name]
    h = 1e-3
    f = [float(kind.shifted(torch.tensor(x, dtype=torch.float64))) for x in (-2 * h, -h, 0, h, 2 * h)]
    second = (-f[0] + 16 * f[1] - 30 * f[2] + 16 * f[3] - f[4]) / (12 * h * h)
    assert abs(second / 2 - kind.a_2) < 1e-8


@every
@settings(max_examples=25)
@given(pairs())
def test_divergence_is_that_of_the_textbook(kind, pair):
    p_star, p = pair
    expected = float((p * TEXTBOOK[kind.name](p_star / p)).sum())
    value = kind.between(p_star, p)
    assert abs(value - expected) < EXACT
    assert kind.between(p, p) == 0
    assert value >= 0
    assert (value > 0) == bool((p_star != p).any())


@pytest.mark.parametrize(
    ("name", "p_vanishes", "p_star_vanishes"),
    [
        ("kl", math.inf, math.log(2)),
        ("reverse_kl", math.log(2), math.inf),
        ("chi_square", math.inf, 1.0),
        ("jensen_shannon", 0.75 * math.log(4 / 3), 0.75 * math.log(4 / 3)),
        ("squared_hellinger", 2 - math.sqrt(2), 2 - math.sqrt(2)),
    ],
)
def test_zeros_cost_what_they_should(name, p_vanishes, p_star_vanishes):
    kind, half, one = divergence(name), [0.5, 0.5], [1.0, 0.0]
    for found, expected in ((kind.between(half, one), p_vanishes), (kind.between(one, half), p_star_vanishes)):
        assert found == expected if math.isinf(expected) else abs(found - expected) < EXACT


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (lambda kl: kl.between([0.5, 0.4], [0.5, 0.5]), r"p_star must sum to 1, got a sum of 0\.9: divide"),
        (lambda kl: kl.between([0.5, 0.5], [1.5, -0.5]), r"p must be finite numbers >= 0, .*least of -0\.5"),
        (lambda kl: kl.between([0.5, 0.5], [1.0]), "same points, got 2 and 1 numbers"),
        (lambda kl: kl.between([], []), r"at least one, got shape \(0,\)"),
        (lambda kl: divergence("total_variation"), "one of kl, reverse_kl.*got 'total_variation'"),
    ],
)
def test_bad_distributions_get_one_sentence(action, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        action(DIVERGENCES["kl"])
    assert "\n" not in str(caught.value)
