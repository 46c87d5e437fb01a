"""How noisy a validation split is, and a search that takes it into account."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic import finding_of, response
from torch import nn

from gasam import recommended
from gasam.lab.families.language import _bootstrap_error
from gasam.lab.families.translation import bleu, bleu_error
from gasam.lab.report.tuning import conclusion, tuning_table
from gasam.lab.search.finding import Finding
from gasam.lab.search.outcome import Trial
from gasam.lab.search.question import SEED_STEP, Question, usual_norms, usual_quantity
from gasam.lab.search.strategy import Candidate, FullGrid, TwoStages, best_of, replayed
from gasam.lab.search.tuned_walk import with_tuned_walk
from gasam.lab.storage import write_json
from gasam.lab.training.plan import make

TUNE = ("tune", "digits", "--size", "tiny", "--epochs", "4", "--trials", "2", "--jobs", "1", "--cpu")


def test_error_of_accuracy_is_that_of_a_share():
    plan = make("digits", "baseline", "tiny")
    family = plan.family(plan.data())
    torch.manual_seed(0)
    model = family.model().eval()
    value, error = family.measure(model, "valid")
    inputs, labels = family.data["valid"]
    right = (model(inputs).argmax(1) == labels).double()
    assert value == pytest.approx(100 * right.mean().item())
    assert error == pytest.approx(100 * right.std(correction=0).item() / math.sqrt(len(labels)), rel=0.02)
    assert family.score(model, "valid") == value


def test_error_of_perplexity_is_a_bootstrap_over_windows():
    """Against the delta method: the error of a mean of 400 windows of like length, times the perplexity."""
    generator = torch.Generator().manual_seed(3)
    losses = 35 * (5 + torch.randn(400, generator=generator, dtype=torch.float64))
    counts = torch.full((400,), 35.0, dtype=torch.float64)
    expected = math.exp(float(losses.sum() / counts.sum())) * float((losses / 35).std()) / math.sqrt(400)
    assert _bootstrap_error(losses, counts) == pytest.approx(expected, rel=0.1)
    assert _bootstrap_error(losses[:1], counts[:1]) is None


def test_error_of_bleu_is_a_bootstrap_over_sentences():
    draw = np.random.default_rng(0)
    references = [" ".join(draw.choice(list("abcdefgh"), 12)) for _ in range(60)]
    lines = [" ".join(c if draw.random() < 0.8 else "x" for c in line.split()) for line in references]
    drawn = [draw.integers(0, 60, 60) for _ in range(200)]
    expected = np.std([bleu([lines[i] for i in some], [references[i] for i in some])[0] for some in drawn])
    assert bleu_error(lines, references) == pytest.approx(expected, rel=0.25)
    assert bleu_error(lines[:1], references[:1]) is None


def test_a_perfect_score_is_not_certain():
    plan = make("digits", "baseline", "tiny")
    data = plan.data()
    family = plan.family(data)
    labels = data["valid"][1]
    rightly = nn.functional.one_hot(labels).float()
    found = family.measure(Always(rightly), "valid")
    assert found.value == 100
    assert 0 < found.error < 1


class Always(nn.Module):
    """Answers what it was given, whatever it is asked."""

    def __init__(self, answers):
        super().__init__()
        self.answers, self.at = nn.Parameter(answers), 0

    def forward(self, inputs):
        self.at += len(inputs)
        return self.answers[self.at - len(inputs) : self.at]


def test_guessing_level_of_a_language_model_is_that_of_frequencies():
    plan = make("pydoc", "baseline", "tiny")
    family = plan.family(plan.data())
    train, valid = (family.data[split].tolist() for split in ("train", "valid"))
    words = len(family.data.shared["words"])
    surprise = [-math.log((train.count(word) + 1) / (len(train) + words)) for word in valid[1:]]
    assert family.worthless("valid") == pytest.approx(math.exp(np.mean(surprise)), rel=1e-5)


def test_the_budget_is_searched_by_default_and_used_with_its_cap_and_schedule(command, tmp_path):
    ended = command(*TUNE, "--out", tmp_path)
    assert ended.code == 0, ended.err
    [file] = (tmp_path / "tuning").glob("*.json")
    found = Finding.read(file)
    perturbation, schedule = recommended()
    assert found.quantity == "budget"
    assert found.walk == {"cap": 0.1, "walk_progress": schedule.progress}
    tried = [one.candidate for one in found.tries]
    assert tried == [Candidate(math.inf, -1, cap=perturbation.cap), Candidate(math.inf, -2)]
    assert found.error > 0
    best = found.chosen()
    choice = with_tuned_walk(make("digits", "ga-sam", "tiny", settings={"epochs": 4}), tmp_path).walk
    assert (choice.budget, choice.cap, choice.epsilon) == (best.value, best.cap or 0.1, None)
    assert choice.schedule() == schedule
    assert choice.source == "tuned"


@pytest.mark.slow
def test_finalists_are_repeated_with_other_seeds_and_chosen_by_their_means(command, tmp_path):
    ended = command(*TUNE, "--seeds", "2", "--out", tmp_path)
    assert ended.code == 0, ended.err
    [file] = (tmp_path / "tuning").glob("*.json")
    found = Finding.read(file)
    assert found.seeds == [0, SEED_STEP]
    assert sum(not isinstance(one, Trial) for one in found.repeats) == 1
    best = found.chosen()
    assert best in found.repeated()
    [again] = [one for one in found.repeats if isinstance(one, Trial) and one.candidate == best]
    assert found.means(best)[0] == pytest.approx((found.one(best).valid + again.valid) / 2)
    assert "have 2 seeds: their means are shown" in ended.out
    second = command(*TUNE, "--seeds", "2", "--out", tmp_path, "--json")
    assert "gradient evaluations" not in second.err, "what was repeated is not repeated again"
    assert json.loads(second.out)["repeats"] == [one.as_json() for one in found.repeats]
    third = command(*TUNE, "--out", tmp_path, "--json")
    assert json.loads(third.out)["repeats"] == [one.as_json() for one in found.repeats], "they are kept without --seeds"
    same_seed = make("digits", "ga-sam", "tiny", SEED_STEP, settings={"epochs": 4})
    with pytest.raises(ValueError, match="another --seed"):
        with_tuned_walk(same_seed, tmp_path)


def test_means_over_seeds_overrule_the_first_seed():
    lucky, steady = response(85.0, exponent=-2), response(83.0, exponent=-1)
    repeats = (
        response(80.0, norm=None, seed=7),
        response(78.0, exponent=-2, seed=7),
        response(83.0, exponent=-1, seed=7),
    )
    first = finding_of("imdb", "ga-sam", [lucky, steady])
    again = finding_of("imdb", "ga-sam", [lucky, steady], repeats=repeats)
    assert first.chosen() == Candidate(math.inf, -2)
    assert again.chosen() == Candidate(math.inf, -1)
    assert again.gains()[Candidate(math.inf, -2)] == pytest.approx((5 / 30 - 2 / 30) / 2)
    assert again.means(again.chosen()) == (83.0, 80.0)
    diverged = replace(again, repeats=(repeats[0] | {"valid": None}, *repeats[1:]))
    assert diverged.chosen() == Candidate(math.inf, -2), "a seed whose baseline diverged does not count"
    lost = replace(again, repeats=(repeats[0], repeats[1] | {"valid": None}))
    assert lost.chosen() == Candidate(math.inf, -1), "a finalist that diverged is not chosen, another trial is"


@pytest.mark.parametrize(
    ("valid", "said"),
    [
        (84.0, "use --norm inf --epsilon 0.01: accuracy 84.00% on validation, +4.00 points compared with the baseline"),
        (81.0, "that is within the noise of the split (1.41 or less)"),
        (79.0, "no epsilon improved on plain training; the best was --norm inf"),
    ],
)
def test_the_conclusion_says_how_far_it_can_be_trusted(valid, said):
    tried = [response(valid, exponent=-2)]
    assert said in conclusion(finding_of("imdb", "ga-sam", tried, error=1.0))


def test_models_at_guessing_level_are_reported():
    tried = [response(50.5, exponent=-1, error=1.0), response(84.0, exponent=-2, error=1.0)]
    notes = " ".join(tuning_table([finding_of("imdb", "ga-sam", tried)]).notes)
    assert "No better than guessing (accuracy 50.00%): L-inf 0.1." in notes
    stuck = finding_of("imdb", "ga-sam", tried, baseline=51.0, error=1.0)
    assert "The baseline is no better than guessing" in " ".join(tuning_table([stuck]).notes)


def test_methods_that_move_embeddings_are_tuned_by_epsilon():
    assert usual_quantity("freelb") == "epsilon"
    assert usual_quantity("sam") == "budget"
    assert usual_norms("sam", "budget") == (2.0,)
    assert usual_norms("ga-sam", "budget") == (math.inf,)
    assert usual_norms("ga-sam", "epsilon") == (math.inf, 2.0)


def test_the_recommended_walk_is_tried_first_and_can_be_chosen():
    question = Question("imdb", "ga-sam", "small")
    [walk] = question.always()
    assert question.plan(walk).walk.identity() == make("imdb", "ga-sam", "small", 0).walk.identity()
    outcomes = dict.fromkeys(FullGrid((math.inf,), -2, -1).propose({}), 0.0) | {walk: 0.05}
    strategy = TwoStages((math.inf,), -2, -1, 0.02, 0.0, question.always())
    tried = replayed(strategy, outcomes)
    assert tried[0] == walk
    assert best_of({each: outcomes[each] for each in tried}) == walk
    assert all(each.cap is None for each in tried[1:])
    assert Question("imdb", "sam", "small", norms=(2.0,)).always()[0].norm == 2.0
    assert Question("imdb", "ga-sam", "small", norms=(2.0,)).always() == ()


def test_the_conclusion_names_searches_that_show_nothing():
    stuck = finding_of("imdb", "ga-sam", [response(84.0, exponent=-2, error=1.0)], baseline=51.0, error=1.0)
    assert "the baseline is no better than guessing, so no walk can be judged" in conclusion(stuck)
    idle = response(80.0, exponent=-2, error=1.0)
    idle["gradient_evaluations"] //= 2
    assert "the walk never began" in conclusion(finding_of("imdb", "ga-sam", [idle], error=1.0))


@pytest.mark.parametrize("quantity", ["budget", "epsilon"])
@pytest.mark.parametrize(("task", "size"), [("imdb", "small"), ("imdb", "paper"), ("numerals", "small")])
def test_tuned_runs_have_the_walk_that_was_tried(tmp_path, quantity, task, size):
    question = Question(task, "ga-sam", size, quantity=quantity)
    candidate = Candidate(math.inf, -2, 5)
    data = question.plan(None).data().hash
    found = replace(
        finding_of(task, "ga-sam", [response(84.0, exponent=-2, mantissa=5)], size=size),
        quantity=quantity, walk=question.fixed(), data=data,
    )  # fmt: skip
    write_json(tmp_path / "tuning" / "a.json", found.as_json())
    choice = with_tuned_walk(make(task, "ga-sam", size), tmp_path).walk
    assert choice.identity() == question.plan(candidate).walk.identity()
    assert choice.source == "tuned"
    own = with_tuned_walk(make(task, "ga-sam", size, walk={"steps": 4}), tmp_path).walk
    assert own.steps == 4


def test_of_several_searches_the_budget_with_the_largest_gain_is_used(tmp_path):
    data = make("imdb", "baseline", "small").data().hash
    for name, quantity, cap, valid in (
        ("a", "epsilon", None, 90.0),
        ("b", "budget", 0.1, 82.0),
        ("c", "budget", 0.03, 83.0),
    ):
        walk = {} if cap is None else {"cap": cap, "walk_progress": 0.2}
        found = finding_of("imdb", "ga-sam", [response(valid, exponent=-2)], size="small")
        write_json(
            tmp_path / "tuning" / f"{name}.json", replace(found, quantity=quantity, walk=walk, data=data).as_json()
        )
    choice = with_tuned_walk(make("imdb", "ga-sam", "small"), tmp_path).walk
    assert (choice.budget, choice.cap) == (0.01, 0.03)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--method", "freelb", "--quantity", "budget"),
            "freelb moves embeddings and has no budget: use --quantity epsilon",
        ),
        (("--full-grid", "--seeds", "2"), "a full grid chooses nothing, so there is nothing to repeat"),
        (("--seed", "2147000000", "--seeds", "3"), "seed must be a whole number from 0 to 2147483647"),
    ],
)
def test_what_cannot_be_searched_is_said_before_anything_is_run(command, tmp_path, words, message):
    ended = command("tune", "docstrings", "--size", "tiny", "--out", tmp_path, *words)
    assert ended.code == 2
    assert message in ended.err
    assert not list(tmp_path.glob("tuning/*.json"))


def test_the_recommended_walk_is_tried_once_under_its_own_cap():
    cap = recommended()[0].cap
    assert Question("imdb", "ga-sam", "small", cap=cap).always() == (Candidate(math.inf, -1),)
    strategy = TwoStages((math.inf,), -1, -1, 0.02, 0.0, (Candidate(math.inf, -1),))
    assert strategy.propose({}).count(Candidate(math.inf, -1)) == 1
