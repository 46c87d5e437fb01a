"""Methods: the appendix's settings written a second time, and where every radius comes from."""

import json
import math
from dataclasses import replace

import pytest
import torch
from gasam.lab.walks import choose
from torch import nn

from gasam import FreeLB, SharpBackward, asam, ga_sam, recommended
from gasam.lab.errors import InputError
from gasam.lab.methods import METHODS, TABLE1, Method
from gasam.lab.record import EpsilonSource
from gasam.lab.training.plan import make

L2, LINF = 2.0, math.inf
TOKENS = 4096  # fairseq's loss is the sum over a batch

# "Main Result Settings", "Ablation Study Settings" and "Adversarial Training Settings": norm, epsilon, K.
APPENDIX = {
    ("sam", "imdb"): (LINF, 2e-5, 1),
    ("asam", "imdb"): (LINF, 5e-3, 1),
    ("layer-sam", "imdb"): (L2, 1e-5, 1),
    ("multi-step-defense", "imdb"): (LINF, 2e-5, 1),
    ("ga-sam", "imdb"): (LINF, 1e-4, 1),
    ("sam", "ptb"): (L2, 5e-3, 1),
    ("asam", "ptb"): (LINF, 5e-4, 1),
    ("layer-sam", "ptb"): (L2, 1e-6, 1),
    ("multi-step-defense", "ptb"): (LINF, 1e-3, 1),
    ("ga-sam", "ptb"): (LINF, 8e-6, 1),
    ("sam", "en-vi"): (LINF, 1.2e-3, 1),
    ("asam", "en-vi"): (LINF, 5e-4, 1),
    ("layer-sam", "en-vi"): (LINF, 1e-3, 1),
    ("multi-step-defense", "en-vi"): (LINF, 5e-4, 2),
    ("ga-sam", "en-vi"): (LINF, 0.9 / TOKENS, 2),
    ("sam", "de-en"): (LINF, 5e-4, 1),
    ("asam", "de-en"): (LINF, 2e-4, 1),
    ("layer-sam", "de-en"): (LINF, 3e-3, 1),
    ("multi-step-defense", "de-en"): (LINF, 5e-4, 2),
    ("ga-sam", "de-en"): (LINF, 0.8 / TOKENS, 2),
    ("single-step", "imdb"): (LINF, 5e-5, 1),
    ("element-wise", "imdb"): (LINF, 5e-6, 1),
    ("model-wise", "imdb"): (LINF, 5e-5, 1),
    ("scale-weight-over-gradient", "imdb"): (LINF, 2e-5, 1),
    ("scale-inverse-gradient", "imdb"): (LINF, 5e-5, 1),
    ("scale-weight-rms", "imdb"): (LINF, 5e-3, 1),
    ("scale-weight", "imdb"): (LINF, 5e-6, 1),
    ("single-step", "ptb"): (L2, 5e-3, 1),
    ("element-wise", "ptb"): (LINF, 2e-6, 1),
    ("model-wise", "ptb"): (LINF, 5e-6, 1),
    ("scale-weight-over-gradient", "ptb"): (L2, 2e-5, 1),
    ("scale-inverse-gradient", "ptb"): (LINF, 5e-6, 1),
    ("scale-weight-rms", "ptb"): (LINF, 1e-4, 1),
    ("scale-weight", "ptb"): (LINF, 1e-7, 1),
    ("freelb", "en-vi"): (LINF, 0.02, 1),
    ("freelb", "de-en"): (LINF, 0.005, 3),
}
# T, who shares it, and which risk.
WALKS = {
    "sam": ("one", "model", "final"),
    "asam": ("weight", "element", "final"),
    "asam-filter": ("weight", "filter", "final"),
    "layer-sam": ("weight_over_gradient", "layer", "final"),
    "multi-step-defense": ("one", "model", "mean"),
    "ga-sam": ("gradient_strength", "layer", "mean"),
    "freelb": ("one", "model", "mean"),
    "single-step": ("gradient_strength", "layer", "final"),
    "element-wise": ("gradient_strength", "element", "mean"),
    "model-wise": ("gradient_strength", "model", "mean"),
    "scale-weight-over-gradient": ("weight_over_gradient", "layer", "mean"),
    "scale-inverse-gradient": ("inverse_gradient", "layer", "mean"),
    "scale-weight-rms": ("weight_rms", "layer", "mean"),
    "scale-weight": ("weight", "layer", "mean"),
}


@pytest.mark.parametrize(("method", "task"), APPENDIX)
def test_radius_norm_and_steps_are_the_appendixs(method, task):
    choice = make(task, method, "paper").choice
    norm, epsilon, steps = APPENDIX[method, task]
    assert (choice.norm, choice.steps) == (norm, steps)
    assert choice.epsilon == pytest.approx(epsilon, rel=1e-12)
    assert choice.epsilon_source.kind == "paper"
    assert choice.start_epoch == (30 if task in ("en-vi", "de-en") else 1)


def test_table_one_is_the_papers_six_methods_and_every_method_is_known_here():
    assert TABLE1 == ("baseline", "sam", "asam", "layer-sam", "multi-step-defense", "ga-sam")
    assert METHODS.keys() >= WALKS.keys() | {"baseline"}


@pytest.mark.parametrize("method", WALKS)
def test_walks_are_what_their_names_say(method):
    choice = choose(method, "imdb", 10)
    assert (choice.scale, choice.granularity, choice.risk) == WALKS[method]


@pytest.mark.parametrize(
    ("task", "epochs", "start"),
    [("en-vi", 52, 30), ("de-en", 70, 30), ("en-vi", 12, 7), ("de-en", 12, 5), ("en-vi", 1, 1), ("imdb", 99, 1)],
)
def test_walks_start_at_the_papers_share_of_the_epochs(task, epochs, start):
    """30 / 52 of 12 is 6.9, 30 / 70 of 12 is 5.1."""
    assert choose("ga-sam", task, epochs).start_epoch == start
    assert choose("baseline", task, epochs).start_epoch == 1


@pytest.mark.parametrize(
    ("method", "task", "given", "source"),
    [
        ("baseline", "imdb", {}, "none"),
        ("sam", "imdb", {}, "paper"),
        ("ga-sam", "en-vi", {}, "paper, 0.9 for the sum of 4,096 tokens (inferred)"),
        ("freelb", "imdb", {}, "paper of en-vi"),
        ("single-step", "docstrings", {}, "paper of imdb"),
        ("ga-sam", "docstrings", {}, "chosen on validation"),
        ("ga-sam", "classify", {}, "recommended"),
        ("sam", "lm", {"steps": 2}, "recommended"),
        ("freelb", "translate", {}, "paper of en-vi"),
        ("ga-sam", "classify", {"epsilon": 1e-3}, "command line"),
        ("ga-sam", "classify", {"budget": 0.2}, "command line"),
        ("ga-sam", "docstrings", {"epsilon": 1e-3}, "command line"),
        ("ga-sam", "docstrings", {"norm": 2.0}, "command line"),
        ("ga-sam", "docstrings", {"steps": 3}, "chosen on validation"),
        ("freelb", "mnist", {"epsilon": 0.1, "norm": 2.0}, "command line"),
    ],
)
def test_every_radius_says_where_it_comes_from(method, task, given, source):
    assert choose(method, task, 10, given).epsilon_source == EpsilonSource.of_sentence(source)


def test_what_is_overridden_is_used_and_the_rest_is_kept():
    usual = choose("ga-sam", "imdb", 10)
    given = {"epsilon": 1, "norm": 3, "steps": 4, "risk": "final", "start_epoch": 10, "same_noise": True, "scale": None}
    changed = choose("ga-sam", "imdb", 10, given)
    assert changed == replace(
        usual, epsilon=1.0, norm=3.0, steps=4, risk="final", start_epoch=10, same_noise=True,
        epsilon_source=EpsilonSource(kind="given"),
    )  # fmt: skip
    assert changed.identity() == json.loads(json.dumps(changed.identity()))
    assert isinstance(changed.epsilon, float)
    assert isinstance(changed.norm, float)


@pytest.mark.parametrize(
    ("method", "given", "told"),
    [
        ("magic", {}, "method must be one of baseline, sam, asam,"),
        ("baseline", {"epsilon": 0.1, "same_noise": True}, "the baseline does not walk: leave out --epsilon, or name"),
        ("baseline", {"start_epoch": 2, "same_noise": True}, "the baseline does not walk: leave out --start-epoch"),
        ("sam", {"epsilon": -1.0}, "epsilon must be a finite number >= 0, got -1.0"),
        ("sam", {"epsilon": math.nan}, "epsilon must be a finite number >= 0, got nan"),
        ("sam", {"epsilon": "big"}, "epsilon must be a finite number >= 0, got 'big'"),
        ("sam", {"norm": 0.5}, "norm must be a number > 1 or math.inf, got 0.5"),
        ("freelb", {"epsilon": -1.0}, "epsilon must be a finite number >= 0, got -1.0"),
        ("freelb", {"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ("freelb", {"scale": "one"}, "freelb moves embeddings, not weights: leave out --scale"),
        ("ga-sam", {"steps": 1.5}, "steps must be a whole number >= 1, got 1.5"),
        ("ga-sam", {"scale": "huge"}, "scale must be one of"),
        ("ga-sam", {"granularity": "row"}, "granularity must be one of"),
        ("ga-sam", {"risk": "worst"}, "risk must be one of 'mean', 'final' or a function of a Step, got 'worst'"),
        ("ga-sam", {"start_epoch": 0}, "start_epoch must be a whole number from 1 to 10, got 0"),
        ("ga-sam", {"start_epoch": 11}, "start_epoch must be a whole number from 1 to 10, got 11"),
        ("ga-sam", {"start_epoch": "last"}, "start_epoch must be a whole number from 1 to 10, got 'last'"),
        ("ga-sam", {"same_noise": "yes"}, "same_noise must be true or false, got 'yes'"),
        (
            "ga-sam",
            {"radius": 1},
            "a walk has no option 'radius': it has budget, cap, epsilon, granularity, norm, risk",
        ),
        ("ga-sam", {"moved": "nothing"}, "a walk has no option 'moved': it has"),
    ],
)
def test_what_cannot_be_is_told_in_one_sentence(method, given, told):
    with pytest.raises(InputError) as caught:
        choose(method, "imdb", 10, given)
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [None, {"epsilon": 0.1, "norm": 2.0}])
def test_noise_on_words_needs_words(given):
    with pytest.raises(InputError, match="freelb moves word embeddings, but the model of digits has none"):
        make("digits", "freelb", "tiny", walk=given)


def test_passes_are_one_more_than_the_steps_once_the_walk_has_begun():
    choice = choose("ga-sam", "en-vi", 52)
    assert [choice.passes(epoch) for epoch in (1, 29, 30, 52)] == [1, 1, 3, 3]
    assert choose("baseline", "imdb", 10).passes(10) == 1
    assert choose("ga-sam", "imdb", 10, {"epsilon": 0.0}).passes(10) == 1


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.make is None])
def test_what_stands_in_for_backward_has_the_walk_and_as_many_passes(method):
    walk = None if method == "baseline" else {"steps": 2, "epsilon": 1e-3, "norm": 2.0}
    plan = make("pydoc", method, "tiny", walk=walk)
    family = plan.definition.family(plan.settings, {"words": range(9)})
    model, calls = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 1)), []
    sharp = plan.choice.backward(family, model, torch.Tensor.backward)
    sharp(lambda: (calls.append(1), model(torch.tensor([[1, 2]])).sum() ** 2)[1])
    assert len(calls) == plan.choice.passes(plan.choice.start_epoch) == (1 if method == "baseline" else 3)
    assert type(sharp) is (FreeLB if method == "freelb" else SharpBackward)
    assert sharp.perturbation.epsilon == plan.choice.epsilon
    assert sharp.perturbation.norm == plan.choice.norm


def test_a_method_without_a_radius_uses_the_recommended_walk():
    choice = choose("model-wise", "en-vi", 52)
    assert (choice.epsilon_source.kind, choice.budget) == ("recommended", recommended()[0].budget)
    given = choose("model-wise", "en-vi", 52, {"epsilon": 0.1})
    assert (given.epsilon_source.kind, given.epsilon, given.norm) == ("given", 0.1, math.inf)


def test_a_preset_with_options_that_a_run_does_not_carry_is_refused():
    for preset in (ga_sam(0, steps=3), ga_sam(0, cap=0.1), asam(0, eta=0.01)):
        with pytest.raises(ValueError, match="the preset of mine may set a named scale"):
            Method("mine", "Mine", "mine", preset)


def test_noise_on_embeddings_without_a_radius_asks_for_one():
    with pytest.raises(InputError, match="no epsilon is known for freelb on mnist: give --epsilon and --norm"):
        choose("freelb", "mnist", 20, {"epsilon": 0.1})
