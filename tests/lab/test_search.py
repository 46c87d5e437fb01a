"""The search on made-up responses, whose optimum and collapse are known: rising, flat, noisy, hopeless."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gasam.lab.search.strategy import MANTISSAS, Candidate, FullGrid, TwoStages, best_of, finalists, replayed

INF = math.inf
LOW, HIGH, TOLERANCE = -6, 0, 0.02
GRID = FullGrid((INF, 2.0), LOW, HIGH).propose({})


def search(norms=(INF,)):
    return TwoStages(norms, LOW, HIGH, TOLERANCE)


def hill(peak, width, collapse, height=0.05):
    """A gain that rises to `height` at 10^peak and is lost at 10^collapse."""

    def gain(epsilon):
        x = math.log10(epsilon)
        return height * math.exp(-(((x - peak) / width) ** 2)) if x < collapse else -0.5

    return gain


def measured(gain, norms=(INF, 2.0)):
    return {each: gain(each.value) for each in GRID if each.norm in norms}


def found(strategy, outcomes, budget=None):
    tried = replayed(strategy, outcomes, budget)
    return best_of({each: outcomes[each] for each in tried}), tried


@given(
    peak=st.floats(-5.5, -0.5),
    width=st.floats(0.4, 3),
    beyond=st.floats(0.1, 0.9),
)
def test_finds_the_best_of_the_grid_below_the_collapse(peak, width, beyond):
    outcomes = measured(hill(peak, width, peak + beyond), (INF,))
    best, tried = found(search(), outcomes)
    assert outcomes[best] == max(outcomes.values())
    assert len(tried) <= 11  # three for the order, three for the grid, at most one decade beneath, of 28
    assert len(tried) == len(set(tried))


@settings(max_examples=200)
@given(
    low=st.floats(-5.5, -3),
    harm=st.floats(0.5, 4),
    collapse=st.floats(0.1, 2),
    height=st.floats(0.01, 0.1),
)
def test_finds_a_gain_that_lies_decades_beneath_the_collapse(low, harm, collapse, height):
    """Better up to 10^low, then a long way slightly worse than no walk, then lost."""

    def gain(epsilon):
        x = math.log10(epsilon)
        return height if x < low else -0.01 if x < low + harm else -0.5 if x >= low + harm + collapse else -0.015

    outcomes = measured(gain, (INF,))
    best, _ = found(search(), outcomes)
    assert outcomes[best] == height


@given(peak=st.floats(-4, -1), height=st.floats(0.05, 0.1), seed=st.integers(0, 10_000))
def test_noise_costs_little(peak, height, seed):
    """Gains are seen with an error of at most a fifth of the tolerance: the choice is nearly the grid's best."""
    noise, draw = TOLERANCE / 5, random.Random(seed)
    true = hill(peak, 1.0, peak + 0.5, height)
    seen = {each: true(each.value) + draw.uniform(-noise, noise) for each in GRID if each.norm == INF}
    best, _ = found(search(), seen)
    assert true(best.value) >= max(true(each.value) for each in GRID) - height / 4


@pytest.mark.parametrize("gain", [-0.001, 0.01])
def test_single_order_of_magnitude_is_searched(gain):
    narrow = TwoStages((INF,), -3, -3, TOLERANCE)
    outcomes = {Candidate(INF, -3, mantissa): gain for mantissa in MANTISSAS}
    assert set(replayed(narrow, outcomes)) == set(outcomes)


def test_flat_response_ends_soon_and_takes_the_smallest():
    outcomes = measured(lambda epsilon: 0.0, (INF,))
    best, tried = found(search(), outcomes)
    assert best == min(tried, key=lambda each: each.value)
    assert len(tried) == 6


def test_grid_is_searched_beneath_an_order_that_does_harm():
    """10^-3 loses one percent, less than the tolerance: the grid is that of 10^-4, not of 10^-3."""
    outcomes = measured(lambda epsilon: 0.02 if epsilon < 6e-4 else -0.01 if epsilon < 2e-3 else -0.5, (INF,))
    best, tried = found(search(), outcomes, 4)
    assert tried[-1].value == best.value == 5e-4
    assert {each.value for each in replayed(search(), outcomes)} >= {1e-4, 2e-4, 5e-4, 8e-4}


@pytest.mark.parametrize("seen", [-0.002, 0.002])
def test_a_loss_within_noise_does_not_leave_the_order_of_the_peak(seen):
    """10^-5 looks a little worse than no walk, or a little better; the gain is at 2e-5 and 5e-5."""
    peak = {2e-5: 0.02, 5e-5: 0.03, 8e-5: 0.01, 1e-5: seen}
    outcomes = measured(lambda epsilon: peak.get(epsilon, 0.0 if epsilon < 1e-4 else -0.5), (INF,))
    best, tried = found(search(), outcomes, 4)
    assert best.value == tried[-1].value == 5e-5


def test_an_order_without_any_gain_is_left_though_its_loss_is_small():
    peak = {2e-4: 0.01, 5e-4: 0.02, 8e-4: 0.01, 1e-3: -0.003}
    outcomes = measured(lambda epsilon: peak.get(epsilon, 0.0 if epsilon < 1e-3 else -0.5), (INF,))
    best, tried = found(search(), outcomes)
    assert best.value == 5e-4
    assert len(tried) == 3 + 3 + 4


def test_everything_collapses():
    outcomes = measured(lambda epsilon: -0.9, (INF,))
    _, tried = found(search(), outcomes)
    assert [each.exponent for each in tried] == [-3, -5, -6]


def test_what_gave_no_number_has_collapsed_and_is_never_chosen():
    outcomes = dict.fromkeys(GRID, -INF)
    assert found(search(), outcomes)[0] is None
    outcomes |= {each: 0.01 for each in GRID if each.value < 3e-4}
    assert found(search(), outcomes)[0].value < 3e-4


def test_bisection_knows_the_order_of_magnitude_after_three_tries():
    for order in range(LOW, HIGH + 1):
        outcomes = measured(hill(order, 1.0, order + 0.5), (INF,))
        tried = replayed(search(), outcomes, 3)
        assert search().decade(INF, {each: outcomes[each] for each in tried}) == order


def test_grid_is_the_papers_within_that_order():
    outcomes = measured(hill(-2.5, 1.0, -2.01), (INF,))
    tried = replayed(search(), outcomes)
    assert {each.value for each in tried if each.exponent == -3} == {1e-3, 2e-3, 5e-3, 8e-3}
    assert MANTISSAS == (1, 2, 5, 8)


def test_both_norms_are_searched_in_turn():
    gain = {INF: hill(-4, 1, -3.5), 2.0: hill(-1, 1, -0.5)}
    outcomes = {each: gain[each.norm](each.value) for each in GRID}
    tried = replayed(search((INF, 2.0)), outcomes)
    assert [each.norm for each in tried[:6]] == [INF, 2.0] * 3
    own = [best_of({each: outcomes[each] for each in tried if each.norm == norm}) for norm in (INF, 2.0)]
    assert own == [Candidate(INF, -4), Candidate(2.0, -1)]


@pytest.mark.parametrize("budget", range(8))
def test_budget_is_kept_and_only_cuts_short(budget):
    outcomes = measured(hill(-2.5, 1.0, -2.0), (INF,))
    assert list(replayed(search(), outcomes, budget)) == list(replayed(search(), outcomes))[:budget]


@settings(max_examples=50)
@given(peak=st.floats(-5, -1), cut=st.integers(0, 12), seed=st.integers(0, 100))
def test_interrupted_search_proposes_the_same(peak, cut, seed):
    """Outcomes may come in any order, and some of a round only: what is tried in the end is the same."""
    strategy, outcomes = search((INF, 2.0)), measured(hill(peak, 1.0, peak + 0.4))
    known, draw = {}, random.Random(seed)
    while proposed := strategy.propose(known):
        draw.shuffle(proposed)
        some = proposed[: max(1, cut % (len(proposed) + 1))]
        known |= {each: outcomes[each] for each in some}
    assert set(known) == set(replayed(strategy, outcomes))


def test_radii_are_the_numbers_that_people_write():
    assert [Candidate(INF, -4, m).value for m in MANTISSAS] == [1e-4, 2e-4, 5e-4, 8e-4]
    assert str(Candidate(2.0, -3, 5)) == "L2 0.005"
    below = [Candidate(INF, -3, 2)]
    while len(below) < 6:
        below.append(below[-1].neighbour(-1))
    assert [each.value for each in below] == [2e-3, 1e-3, 8e-4, 5e-4, 2e-4, 1e-4]


def test_full_grid_has_every_radius_once():
    grid = FullGrid((INF,), -4, -2)
    every = grid.propose({})
    assert len(every) == len(set(every)) == 12
    assert grid.propose(dict.fromkeys(every, -INF)) == []


def test_losses_within_the_noise_do_not_move_the_search():
    """10^-1 loses two percent, less than the noise of three: its grid is searched, not that of 10^-2."""
    outcomes = {each: -0.02 if each.exponent == -1 else -0.01 for each in FullGrid((INF,), -2, -1).propose({})}
    sharp, noisy = (TwoStages((INF,), -2, -1, 0.005, noise) for noise in (0.0, 0.03))
    assert {each.exponent for each in replayed(noisy, outcomes)} == {-2, -1}
    assert sum(each.exponent == -1 for each in replayed(noisy, outcomes)) == len(MANTISSAS)
    assert sum(each.exponent == -1 for each in replayed(sharp, outcomes)) < len(MANTISSAS)


@given(loss=st.floats(0, 0.2), noise=st.floats(0.02, 0.2))
def test_only_a_loss_beyond_tolerance_and_noise_is_a_collapse(loss, noise):
    assert TwoStages((INF,), -2, -1, TOLERANCE, noise).collapsed(-loss) == (loss > noise)


def test_finalists_are_the_best_and_those_within_the_noise_of_it():
    known = {Candidate(INF, -1, m): gain for m, gain in zip(MANTISSAS, (0.01, 0.05, 0.04, -INF), strict=True)}
    assert finalists(known, 0.02) == [Candidate(INF, -1, 2), Candidate(INF, -1, 5)]
    assert finalists(known, 0.0) == [Candidate(INF, -1, 2)]
    assert len(finalists(known, 1.0)) == 3
    assert finalists(known, 1.0, most=2) == [Candidate(INF, -1, 2), Candidate(INF, -1, 5)]
    assert finalists({}, 1.0) == []
