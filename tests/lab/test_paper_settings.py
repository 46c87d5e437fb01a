"""Methods and sizes of the paper: the appendix written a second time, walks, and what is refused."""

import math

import pytest
import torch
from refusals import refusal

from gasam import FreeLB, Perturbation, Schedule, SharpBackward, recommended
from gasam.lab.api import expanded
from gasam.lab.errors import InputError
from gasam.lab.families.family import Encoded
from gasam.lab.families.translation import Subwords
from gasam.lab.methods import FAMILY, METHODS, TABLE1, Walk, walk_for
from gasam.lab.tasks import TASKS
from gasam.lab.training.plan import family_on, make
from gasam.lab.training.run import run

L2, LINF = 2.0, math.inf
TOKENS = 4096  # fairseq's loss is the sum over a batch

# "Main Result Settings", "Ablation Study Settings" and "Adversarial Training Settings": norm, epsilon, K.
APPENDIX = {
    "sam": {"imdb": (LINF, 2e-5, 1), "ptb": (L2, 5e-3, 1), "en-vi": (LINF, 1.2e-3, 1), "de-en": (LINF, 5e-4, 1)},
    "asam": {"imdb": (LINF, 5e-3, 1), "ptb": (LINF, 5e-4, 1), "en-vi": (LINF, 5e-4, 1), "de-en": (LINF, 2e-4, 1)},
    "layer-sam": {"imdb": (L2, 1e-5, 1), "ptb": (L2, 1e-6, 1), "en-vi": (LINF, 1e-3, 1), "de-en": (LINF, 3e-3, 1)},
    "multi-step-defense": {
        "imdb": (LINF, 2e-5, 1), "ptb": (LINF, 1e-3, 1), "en-vi": (LINF, 5e-4, 2), "de-en": (LINF, 5e-4, 2),
    },
    "ga-sam": {
        "imdb": (LINF, 1e-4, 1), "ptb": (LINF, 8e-6, 1),
        "en-vi": (LINF, 0.9 / TOKENS, 2), "de-en": (LINF, 0.8 / TOKENS, 2),
    },
    "single-step": {"imdb": (LINF, 5e-5, 1), "ptb": (L2, 5e-3, 1)},
    "element-wise": {"imdb": (LINF, 5e-6, 1), "ptb": (LINF, 2e-6, 1)},
    "model-wise": {"imdb": (LINF, 5e-5, 1), "ptb": (LINF, 5e-6, 1)},
    "scale-weight-over-gradient": {"imdb": (LINF, 2e-5, 1), "ptb": (L2, 2e-5, 1)},
    "scale-inverse-gradient": {"imdb": (LINF, 5e-5, 1), "ptb": (LINF, 5e-6, 1)},
    "scale-weight-rms": {"imdb": (LINF, 5e-3, 1), "ptb": (LINF, 1e-4, 1)},
    "scale-weight": {"imdb": (LINF, 5e-6, 1), "ptb": (LINF, 1e-7, 1)},
    "freelb": {"en-vi": (LINF, 0.02, 1), "de-en": (LINF, 0.005, 3)},
}  # fmt: skip
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
FAIRSEQ = {
    "optimizer": "adamw", "betas": (0.9, 0.98), "learning_rate": 5e-4, "schedule": "inverse_sqrt", "warmup": 4000,
    "dropout": 0.3, "weight_decay": 1e-4, "smoothing": 0.1, "batch": 4096, "average": 10, "beam": 5, "layers": 6,
    "width": 512, "heads": 8, "feedforward": 2048, "judged": None, "clip": None,
}  # fmt: skip
SETTINGS = {
    "imdb": {
        "vocabulary": 30_000, "length": 200, "embedding": 500, "windows": (3, 4, 5), "maps": 500, "optimizer": "adam",
        "learning_rate": 1e-3, "batch": 64, "epochs": 10, "schedule": "constant", "average": 0, "clip": None,
    },
    "ptb": {
        "vocabulary": 10_000, "hidden": 500, "layers": 2, "optimizer": "sgd", "learning_rate": 50, "clip": 0.25,
        "schedule": "halving", "halve_after": 10, "epochs": 20, "batch": 20, "length": 70, "average": 0,
    },
    # The shipped lists have 17,191 and 7,709 words with three specials; padding is one more.
    "en-vi": FAIRSEQ | {"epochs": 52, "units": "words", "vocabularies": (17_192, 7_710)},
    "de-en": FAIRSEQ | {"epochs": 70, "units": "bpe", "vocabularies": (8_848, 6_632)},
    "mnist": {"hidden": (100, 100)},
}  # fmt: skip


@pytest.mark.parametrize("method", APPENDIX)
def test_radius_norm_and_steps_are_the_appendixs(method):
    for task, (norm, epsilon, steps) in APPENDIX[method].items():
        walk = make(task, method, "paper").walk
        assert (walk.norm, walk.steps, walk.source) == (norm, steps, "paper")
        assert walk.epsilon == pytest.approx(epsilon, rel=1e-12)
        assert walk.start_epoch == (30 if task in ("en-vi", "de-en") else 1)


@pytest.mark.parametrize("task", SETTINGS)
def test_size_paper_is_the_appendix_to_the_letter(task):
    settings = vars(TASKS[task].sizes["paper"])
    assert {name: settings[name] for name in SETTINGS[task]} == SETTINGS[task]
    assert settings["rows"] is None


def test_methods_are_what_their_names_say():
    assert TABLE1 == ("baseline", "sam", "asam", "layer-sam", "multi-step-defense", "ga-sam")
    assert METHODS.keys() >= WALKS.keys() | {"baseline"}
    for method, parts in WALKS.items():
        walk = walk_for(method, "imdb", "paper", 10)
        assert (walk.scale, walk.granularity, walk.risk) == parts
    found = [name for name, method in METHODS.items() if method.make is not None]
    assert (*TABLE1, *found) == FAMILY


def test_walks_start_at_the_papers_share_of_the_epochs():
    """30 / 52 of 12 is 6.9."""
    for task, epochs, start in (("en-vi", 52, 30), ("de-en", 70, 30), ("en-vi", 12, 7), ("en-vi", 1, 1)):
        assert walk_for("ga-sam", task, "paper", epochs).start_epoch == start


SOURCES = [
    ("baseline", "imdb", "paper", {}, "none"), ("ga-sam", "imdb", "paper", {}, "paper"),
    ("ga-sam", "imdb", "small", {}, "recommended"), ("ga-sam", "imdb", "paper", {"steps": 3}, "paper"),
    ("ga-sam", "docstrings", "paper", {}, "recommended"),  # the appendix has no epsilon for it
    ("freelb", "imdb", "small", {}, "paper"),  # embeddings have no recommended walk
    ("ga-sam", "classify", "small", {"epsilon": 1e-3}, "given"), ("ga-sam", "imdb", "paper", {"budget": 0.2}, "given"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "task", "size", "given", "source"), SOURCES)
def test_every_walk_says_who_chose_its_size(method, task, size, given, source):
    walk = walk_for(method, task, size, 10, **given)
    assert walk.source == source
    if source == "recommended":
        perturbation, schedule = recommended(2)
        assert (walk.budget, walk.cap, walk.schedule()) == (perturbation.budget, perturbation.cap, schedule)
        assert walk.norm == METHODS[method].preset.norm


def test_either_walk_can_be_asked_for_in_every_size():
    assert walk_for("ga-sam", "imdb", "small", 10, "paper").epsilon == 1e-4
    assert walk_for("ga-sam", "imdb", "paper", 10, "recommended").source == "recommended"
    with pytest.raises(InputError, match="the paper has no epsilon for gsam on imdb"):
        walk_for("gsam", "imdb", "small", 10, "paper")


def test_given_options_are_used_and_the_rest_is_kept():
    usual = walk_for("ga-sam", "imdb", "paper", 10)
    given = {"epsilon": 1, "norm": 3, "steps": 4, "risk": "final", "start_epoch": 10, "same_noise": True}
    changed = walk_for("ga-sam", "imdb", "paper", 10, **given, scale=None)
    assert changed == usual.model_copy(update=given | {"source": "given"})
    assert isinstance(changed.epsilon, float)
    assert Walk(**changed.model_dump(mode="json")) == changed
    assert str(changed) == "epsilon 1, L3, K = 4, risk final, start epoch 10, same noise"
    family = walk_for("look-sam", "imdb", "small", 10, budget=0.2, cap=0.05, norm=LINF, granularity="layer", every=3)
    walk = family.perturbation()
    assert (walk.budget, walk.cap, walk.norm, walk.granularity) == (0.2, 0.05, LINF, "layer")
    assert family.schedule() == Schedule(progress=0.2, every=3, weight=1.0)


WRONG_WALKS = [
    ("ga-sam", {"source": "paper"}, "a walk has no option 'source': it has"),
    ("baseline", {"epsilon": 0.1, "same_noise": True}, "the baseline does not walk: leave out --epsilon, or name"),
    ("sam", {"epsilon": -1.0}, "epsilon must be a finite number >= 0, got -1.0"),
    ("sam", {"norm": 0.5}, "norm must be a number > 1 or math.inf, got 0.5"),
    ("ga-sam", {"scale": "huge"}, "scale must be one of"),
    ("ga-sam", {"start_epoch": 11}, "start_epoch must be a whole number from 1 to 10, got 11"),
    ("ga-sam", {"radius": 1}, "a walk has no option 'radius': it has ascent_fraction, budget,"),
    ("ga-sam", {"epsilon": 0.1, "budget": 0.1}, "give either an epsilon or a budget, got"),
    ("gsam", {"risk": "mean"}, "gsam has its own risk: leave out --risk"),
    ("look-sam", {"every": 1}, "LookSAM changes the steps between walks"),
    ("freelb", {"ascent_fraction": 0.25}, "freelb moves embeddings, not weights: leave out --ascent-fraction"),
    ("look-sam", {"ascent_fraction": 0.25}, "look-sam needs the whole batch in every pass: leave out --ascent-f"),
    ("momentum-sam", {"ascent_fraction": 0.25}, "momentum-sam needs the whole batch in every pass: leave out"),
    ("sam", {"ascent_fraction": 0.25, "every": 4}, "--ascent-fraction needs the weight 1 in the schedule: add"),
    ("sam", {"ascent_fraction": 0.0}, "ascent_fraction must be > 0, got 0.0"),
]


@pytest.mark.parametrize(("method", "given", "told"), WRONG_WALKS)
def test_a_wrong_walk_is_refused_in_one_sentence(method, given, told):
    assert refusal(walk_for, method, "imdb", "small", 10, **given).startswith(told)


def test_family_stands_for_the_methods_that_the_model_allows(capsys):
    assert family_on("en-vi") == (list(FAMILY), [])
    assert expanded("imdb", ["ga-sam", "family", "gsam"]) == [
        "ga-sam",
        *(name for name in FAMILY if name not in ("ga-sam", "sam-on")),
    ]
    assert "sam-on is left out: the model of imdb has no normalisation layers" in capsys.readouterr().err


def test_a_preset_has_no_option_that_a_run_does_not_carry():
    for method in METHODS.values():
        if method.make is None:
            options = {name: getattr(method.preset, name) for name in ("scale", "granularity", "risk", "norm")}
            assert method.preset == Perturbation(epsilon=0, **options)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_counts_its_gradients(method, tmp_path):
    task = {"sam-on": "numerals", "freelb": "pydoc"}.get(method, "digits")
    walk = None if method == "baseline" else {"epsilon": 1e-3, "norm": 2.0}
    plan = make(task, method, "tiny", settings={"epochs": 1, "rows": 60}, walk=walk)
    record = run(plan, tmp_path, cpu=True)
    one_pass = method in ("baseline", "momentum-sam", "random-offsets")
    walks = 0 if one_pass else math.ceil(record.updates / (5 if method == "look-sam" else 1))
    assert record.gradient_evaluations == record.updates + walks
    assert record.diverged is False

    family = plan.family(plan.data())
    sharp = plan.walk.backward(family, family.model(), torch.Tensor.backward)
    assert type(sharp) is (FreeLB if method == "freelb" else SharpBackward)


def test_every_task_has_every_size_and_twins_have_the_papers():
    for task in TASKS.values():
        assert {"paper", "small", "tiny"} <= set(task.sizes)
        assert {type(settings) for settings in task.sizes.values()} == {task.family.settings_type}
        twin = task.kind.removeprefix("twin of ")
        assert twin == task.kind or task.sizes["paper"] == TASKS[twin].sizes["paper"]


def numbered(count):
    return Subwords.learn([" ".join(map(str, range(count)))], "words", count).saved


ATTENTION, NORM = 4 * (512 * 512 + 512), 2 * 512
FEEDFORWARD = 2 * 512 * 2048 + 2048 + 512
PARAMETERS = {
    "imdb": 30_000 * 500 + sum(500 * 500 * window + 500 for window in (3, 4, 5)) + 1500 * 2 + 2,
    "ptb": 10_000 * 500 + 10_000 + 2 * (2 * 2000 * 500 + 2 * 2000),  # the output layer is tied, with a bias
    "mnist": 784 * 100 + 100 + 100 * 100 + 100 + 100 * 10 + 10,
    # The output layer is tied; there is a norm after each part of a layer, and none after the last layer.
    "en-vi": (17_192 + 7_710) * 512 + 6 * (3 * ATTENTION + 2 * FEEDFORWARD + 5 * NORM),
}
DATA = {
    "imdb": {"words": range(30_000), "classes": ("a", "b")},
    "ptb": {"words": range(10_000)},
    "mnist": {"pixels": 784, "classes": range(10), "brightest": 255},
    "en-vi": {"subwords": (numbered(17_192), numbered(7_710))},
}


@pytest.mark.parametrize("task", PARAMETERS)
def test_models_of_the_paper_have_the_weights_that_its_numbers_give(task):
    family = TASKS[task].family(TASKS[task].sizes["paper"], Encoded(DATA[task], {}, ""))
    with torch.device("meta"):  # without memory for the weights
        model = family.model()
    weights = [weight for name, weight in model.named_parameters() if "embed_positions" not in name]
    assert sum(weight.numel() for weight in weights) == PARAMETERS[task]
    if task == "en-vi":
        config = model.config
        assert (config.encoder_layers, config.decoder_layers) == (6, 6)
        assert (config.encoder_attention_heads, config.decoder_attention_heads) == (8, 8)
        assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.3, 0.0, 0.0)
        assert config.activation_function == "relu"
        assert config.scale_embedding


WRONG_SETTINGS = [
    ("imdb", "epochs", 0, "epochs must be > 0, got 0"),
    ("imdb", "learning_rate", "fast", "learning_rate must be a number, got 'fast'"),
    ("imdb", "dropout", 1.0, "dropout must be < 1, got 1.0"),
    ("imdb", "optimizer", "rmsprop", "optimizer must be one of 'adam', 'adamw' or 'sgd', got 'rmsprop'"),
    ("en-vi", "betas", (0.9, 1.0), "betas must be < 1, got 1.0"),
    ("en-vi", "width", 15, "width must be even and a multiple of heads (2), got 15"),
]


@pytest.mark.parametrize(("task", "name", "value", "told"), WRONG_SETTINGS)
def test_a_wrong_setting_is_refused_in_one_sentence(task, name, value, told):
    assert refusal(TASKS[task].settings, "tiny", **{name: value}).startswith(told)


def test_null_takes_a_limit_away_and_a_whole_number_is_the_same_number():
    assert TASKS["ptb"].settings("tiny", rows=None, clip=None) == TASKS["ptb"].sizes["tiny"].model_copy(
        update={"rows": None, "clip": None}
    )
    settings = TASKS["imdb"].settings("tiny", dropout=0, learning_rate=1)
    assert (repr(settings.dropout), repr(settings.learning_rate)) == ("0.0", "1.0")
