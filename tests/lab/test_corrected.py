"""Several methods against plain training, corrected for their number."""

import numpy as np
import pytest
from scipy import stats
from synthetic import record, records_of

from gasam.lab.report import corrected
from gasam.lab.report.frame import groups_of

PLAIN = [84.0, 84.4, 84.2, 84.1]
SCORES = {
    "baseline": PLAIN,
    "sam": [84.4, 84.7, 84.2],
    "asam": [84.3, 84.5, 84.4, 84.2],
    "ga-sam": [85.3, 85.1, 85.4, 85.0],
    "layer-sam": [83.0, 83.2, 83.5, 83.1],
}


def standings(runs, task="imdb", size="small"):
    plain, *others = groups_of(runs, task, size)
    found = corrected.corrected_standings(others, plain)
    return {group.method: found[group.key] for group in others if group.key in found}


def simulated_chances(scores, rounds=40_000):
    """P(max |t| >= |t_i|) of the null hypothesis, from random scores: t with the variance that all groups share."""
    sizes = [len(each) for each in scores]
    freedom = sum(sizes) - len(sizes)

    def statistic(samples):
        pooled = sum(each.var(-1, ddof=1) * (each.shape[-1] - 1) for each in samples) / freedom
        return np.stack(
            [
                abs(each.mean(-1) - samples[0].mean(-1)) / np.sqrt(pooled * (1 / each.shape[-1] + 1 / sizes[0]))
                for each in samples[1:]
            ]
        )

    generator = np.random.default_rng(3)
    largest = statistic([generator.standard_normal((rounds, size)) for size in sizes]).max(0)
    return [float((largest >= each).mean()) for each in statistic([np.array(each) for each in scores])]


def test_chances_are_those_of_a_simulation():
    plain, *others = groups_of(records_of("imdb", SCORES), "imdb", "small")
    found = {group.method: chance for group, chance in corrected._chances(others, plain)}
    ordered = [list(PLAIN), *(SCORES[method] for method in found)]
    assert list(found.values()) == pytest.approx(simulated_chances(ordered), abs=0.01)


def test_one_method_is_judged_by_the_t_test_with_equal_variances():
    plain, sam = groups_of(records_of("imdb", {"baseline": PLAIN, "sam": SCORES["sam"]}), "imdb", "small")
    [(_, chance)] = corrected._chances([sam], plain)
    assert chance == pytest.approx(stats.ttest_ind(SCORES["sam"], PLAIN).pvalue, abs=1e-3)


def test_methods_that_differ_by_more_than_the_common_spread_are_better_or_worse():
    assert standings(records_of("imdb", SCORES)) == {
        "sam": "no difference",
        "asam": "no difference",
        "ga-sam": "better",
        "layer-sam": "worse",
    }


def test_a_lower_perplexity_is_better():
    found = standings(records_of("ptb", SCORES), "ptb")
    assert (found["ga-sam"], found["layer-sam"]) == ("worse", "better")


def test_a_spread_that_is_small_by_chance_does_not_decide():
    """The interval of these differences alone excludes zero by far, because they are almost equal."""
    lucky = [score + shift for score, shift in zip(PLAIN, (0.08, 0.081, 0.082, 0.08), strict=True)]
    runs = records_of("imdb", {"baseline": PLAIN, "sam": lucky, "asam": [84.3, 83.8, 84.5, 84.0]})
    plain, sam, _ = groups_of(runs, "imdb", "small")
    assert sam.standing(plain) == "better"
    assert standings(runs)["sam"] == "no difference"


def test_what_failed_is_not_pooled():
    """A method with failed seeds would hide every difference, and one that collapsed or diverged has its own words."""
    failed = SCORES | {"freelb": [85.0, 50.0, 50.1, 85.2], "single-step": [60.0, 60.1, 60.2, 60.1]}
    runs = records_of("imdb", failed, worthless=50.0, test_error=0.1)
    diverged = [86.0, 86.1, 86.2, None]
    runs += records_of("imdb", {"element-wise": diverged}, worthless=50.0, test_error=0.1)
    assert standings(runs) == standings(records_of("imdb", SCORES))


@pytest.mark.parametrize(("times", "judged"), [(9, True), (11, False)])
def test_a_method_may_vary_ten_times_as_much_as_the_others(times, judged):
    usual = np.array([-0.1, 0.1, 0.0])
    scores = {"baseline": 84 + usual, "sam": 84 + usual[::-1], "asam": 84 + usual, "ga-sam": 90 + times * usual}
    assert ("ga-sam" in standings(records_of("imdb", scores))) == judged


def test_a_baseline_that_failed_with_some_seeds_decides_nothing():
    assert standings(records_of("imdb", SCORES | {"baseline": [85.0, 50.0, 85.1, 50.2]})) == {}
    assert standings(records_of("imdb", SCORES | {"baseline": [84.0, 84.4, 84.2, None]})) == {}


def test_a_method_that_varies_more_than_the_others_needs_its_own_interval():
    """The pooled variance alone would call it better."""
    quiet = dict.fromkeys(("baseline", "sam", "asam", "layer-sam", "multi-step-defense", "single-step"), PLAIN)
    scores = quiet | {"ga-sam": [85.4, 84.2, 84.4, 85.2]}
    plain, *others = groups_of(records_of("imdb", scores), "imdb", "small")
    chances = {group.method: chance for group, chance in corrected._chances(others, plain)}
    assert chances["ga-sam"] < 0.05 < stats.ttest_rel(scores["ga-sam"], PLAIN).pvalue
    assert standings(records_of("imdb", scores))["ga-sam"] == "no difference"


def test_methods_without_common_seeds_are_not_judged():
    others = [record("imdb", "sam", score, seed=seed) for seed, score in enumerate(SCORES["ga-sam"], 5)]
    assert standings([*records_of("imdb", {"baseline": PLAIN}), *others]) == {}


def test_equal_scores_of_one_method_are_judged():
    runs = records_of("imdb", {"baseline": PLAIN, "sam": [85.5] * 4, "asam": [84.2] * 4})
    assert standings(runs) == {"sam": "better", "asam": "no difference"}


def test_two_seeds_decide_nothing():
    two = {method: scores[:2] for method, scores in SCORES.items()}
    assert standings(records_of("imdb", two)) == {}
    assert list(standings(records_of("imdb", two | {"baseline": PLAIN, "sam": SCORES["sam"]}))) == ["sam"]
    assert standings(records_of("imdb", {"baseline": [84.0] * 3, "sam": [85.0] * 3})) == {}, "no spread is known"
