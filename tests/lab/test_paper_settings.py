"""Methods and sizes of the paper: the appendix written a second time, walks, and what is refused."""

import math

import pytest
import torch
from torch import nn

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
FAIRSEQ = {
    "optimizer": "adamw",
    "betas": (0.9, 0.98),
    "learning_rate": 5e-4,
    "schedule": "inverse_sqrt",
    "warmup": 4000,
    "dropout": 0.3,
    "weight_decay": 1e-4,
    "smoothing": 0.1,
    "batch": 4096,
    "average": 10,
    "beam": 5,
    "layers": 6,
    "width": 512,
    "heads": 8,
    "feedforward": 2048,
    "judged": None,
    "clip": None,
}
SETTINGS = {
    "imdb": {
        "vocabulary": 30_000,
        "length": 200,
        "embedding": 500,
        "windows": (3, 4, 5),
        "maps": 500,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "batch": 64,
        "epochs": 10,
        "schedule": "constant",
        "average": 0,
        "clip": None,
    },
    "ptb": {
        "vocabulary": 10_000,
        "hidden": 500,
        "layers": 2,
        "optimizer": "sgd",
        "learning_rate": 50,
        "clip": 0.25,
        "schedule": "halving",
        "halve_after": 10,
        "epochs": 20,
        "batch": 20,
        "length": 70,
        "average": 0,
    },
    # The shipped lists have 17,191 and 7,709 words with three specials; padding is one more.
    "en-vi": FAIRSEQ | {"epochs": 52, "units": "words", "vocabularies": (17_192, 7_710)},
    "de-en": FAIRSEQ | {"epochs": 70, "units": "bpe", "vocabularies": (8_848, 6_632)},
    "mnist": {"hidden": (100, 100)},
}


@pytest.mark.parametrize(("method", "task"), APPENDIX)
def test_radius_norm_and_steps_are_the_appendixs(method, task):
    walk = make(task, method, "paper").walk
    norm, epsilon, steps = APPENDIX[method, task]
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


@pytest.mark.parametrize(
    ("task", "epochs", "start"), [("en-vi", 52, 30), ("de-en", 70, 30), ("en-vi", 12, 7), ("en-vi", 1, 1)]
)
def test_walks_start_at_the_papers_share_of_the_epochs(task, epochs, start):
    """30 / 52 of 12 is 6.9."""
    walk = walk_for("ga-sam", task, "paper", epochs)
    assert walk.start_epoch == start
    assert [walk.passes(epoch) for epoch in (start - 1, start)] == [1, 3]
    assert walk_for("baseline", task, "paper", epochs).passes(epochs) == 1


@pytest.mark.parametrize(
    ("method", "task", "size", "given", "source"),
    [
        ("baseline", "imdb", "paper", {}, "none"),
        ("ga-sam", "imdb", "paper", {}, "paper"),
        ("ga-sam", "imdb", "small", {}, "recommended"),
        ("ga-sam", "docstrings", "paper", {}, "recommended"),  # the appendix has no epsilon for it
        ("model-wise", "en-vi", "paper", {}, "recommended"),
        ("sam", "lm", "paper", {"steps": 2}, "recommended"),
        ("freelb", "imdb", "small", {}, "paper"),  # embeddings have no recommended walk
        ("ga-sam", "classify", "small", {"epsilon": 1e-3}, "given"),
        ("ga-sam", "imdb", "paper", {"budget": 0.2}, "given"),
        ("ga-sam", "imdb", "paper", {"norm": 2.0}, "given"),
        ("ga-sam", "imdb", "paper", {"steps": 3}, "paper"),
    ],
)
def test_every_walk_says_who_chose_its_size(method, task, size, given, source):
    walk = walk_for(method, task, size, 10, **given)
    assert walk.source == source
    if source == "recommended":
        perturbation, schedule = recommended()
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


@pytest.mark.parametrize(
    ("method", "given", "told"),
    [
        ("magic", {}, "method must be one of baseline, sam, asam,"),
        ("baseline", {"epsilon": 0.1, "same_noise": True}, "the baseline does not walk: leave out --epsilon, or name"),
        ("sam", {"epsilon": -1.0}, "epsilon must be a finite number >= 0, got -1.0"),
        ("sam", {"epsilon": "big"}, "epsilon must be a number or null, got 'big'"),
        ("sam", {"norm": 0.5}, "norm must be a number > 1 or math.inf, got 0.5"),
        ("freelb", {"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ("freelb", {"scale": "one"}, "freelb moves embeddings, not weights: leave out --scale"),
        ("ga-sam", {"scale": "huge"}, "scale must be one of"),
        ("ga-sam", {"start_epoch": 11}, "start_epoch must be a whole number from 1 to 10, got 11"),
        ("ga-sam", {"same_noise": "yes"}, "same_noise must be true or false, got 'yes'"),
        ("ga-sam", {"radius": 1}, "a walk has no option 'radius': it has budget, cap, epsilon,"),
        ("ga-sam", {"source": "paper"}, "a walk has no option 'source': it has"),
        ("ga-sam", {"epsilon": 0.1, "budget": 0.1}, "give either --epsilon or --budget"),
        ("gsam", {"beta": 1}, "a walk has no option 'beta': it has alpha, budget,"),
        ("gsam", {"risk": "mean"}, "gsam has its own risk: leave out --risk"),
        ("look-sam", {"every": 1}, "LookSAM changes the steps between walks"),
    ],
)
def test_a_wrong_walk_is_refused_in_one_sentence(method, given, told):
    with pytest.raises(InputError) as caught:
        walk_for(method, "imdb", "small", 10, **given) if "source" not in given else make("imdb", method, walk=given)
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


def test_methods_need_what_they_move():
    with pytest.raises(InputError, match="freelb moves word embeddings, but the model of digits has none"):
        make("digits", "freelb", "tiny", walk={"epsilon": 0.1, "norm": 2.0})
    with pytest.raises(InputError, match="sam-on moves normalisation layers, but the model of imdb has none"):
        make("imdb", "sam-on")
    assert family_on("imdb") == ([name for name in FAMILY if name != "sam-on"], ["sam-on"])
    assert family_on("en-vi") == (list(FAMILY), [])


def test_family_stands_for_the_methods_that_the_model_allows(capsys):
    assert expanded("imdb", ["ga-sam", "family", "gsam"]) == [
        "ga-sam",
        *(name for name in FAMILY if name not in ("ga-sam", "sam-on")),
    ]
    assert "sam-on is left out: the model of imdb has no normalisation layers" in capsys.readouterr().err


def test_options_of_a_method_make_another_run():
    plans = [make("pydoc", "gsam", walk=walk) for walk in ({}, {"alpha": 0.2}, {"alpha": 0.3}, {"alpha": 0.4})]
    assert plans[0] == plans[3]
    assert len({plan.key("data") for plan in plans}) == 3


def test_a_preset_has_no_option_that_a_run_does_not_carry():
    for method in METHODS.values():
        if method.make is None:
            options = {name: getattr(method.preset, name) for name in ("scale", "granularity", "risk", "norm")}
            assert method.preset == Perturbation(epsilon=0, **options)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_counts_its_gradients(method, tmp_path):
    task = "numerals" if method == "sam-on" else "pydoc"
    walk = None if method == "baseline" else {"epsilon": 1e-3, "norm": 2.0}
    plan = make(task, method, "tiny", settings={"epochs": 1, "rows": 60}, walk=walk)
    record = run(plan, tmp_path, cpu=True)
    walks = 0 if method == "baseline" else math.ceil(record.updates / (5 if method == "look-sam" else 1))
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


def built(task, data):
    """A model at the paper's size, without memory for its weights."""
    definition = TASKS[task]
    with torch.device("meta"):
        return definition.family(definition.sizes["paper"], Encoded(data, {}, "")).model()


def shapes(model: nn.Module):
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def test_text_network_of_the_paper():
    found = shapes(built("imdb", {"words": range(30_000), "classes": ("a", "b")}))
    assert found["embedding.weight"] == (30_000, 500)
    assert [found[f"convolutions.{i}.weight"] for i in range(3)] == [(500, 500, 1, window) for window in (3, 4, 5)]
    assert found["output.weight"] == (2, 1500)
    assert len(found) == 1 + 2 * 3 + 2


def test_language_model_of_the_paper():
    model = built("ptb", {"words": range(10_000)})
    found = shapes(model)
    assert model.output.weight is model.embedding.weight
    assert found["embedding.weight"] == (10_000, 500)
    parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    layers = {f"lstm.{part}_l{layer}" for part in parts for layer in (0, 1)}
    assert found.keys() == {"embedding.weight", "output.bias"} | layers
    assert all(found[name] == ((2000, 500) if "weight" in name else (2000,)) for name in layers)


def test_transformer_of_the_paper():
    model = built("en-vi", {"subwords": (numbered(17_192), numbered(7_710))})
    config, found = model.config, shapes(model)
    assert (config.encoder_layers, config.decoder_layers) == (6, 6)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (8, 8)
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.3, 0.0, 0.0)
    assert config.activation_function == "relu"
    assert config.scale_embedding
    assert found["model.encoder.embed_tokens.weight"] == (17_192, 512)
    assert found["model.decoder.embed_tokens.weight"] == (7_710, 512)
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    for side, attentions in (("encoder", 1), ("decoder", 2)):
        layers = {name.split(".")[3] for name in found if name.startswith(f"model.{side}.layers.")}
        assert layers == set("012345")
        inner = {name: shape for name, shape in found.items() if name.startswith(f"model.{side}.layers.0.")}
        assert inner[f"model.{side}.layers.0.fc1.weight"] == (2048, 512)
        # Four projections an attention, two of the feed-forward, a norm after each; with their biases.
        assert len(inner) == 2 * (4 * attentions + 2 + attentions + 1)
    # Post-norm: there is no norm after the last layer.
    assert not [name for name in found if name.count(".") == 3 and "norm" in name]


def test_perceptron_of_the_paper():
    found = shapes(built("mnist", {"pixels": 784, "classes": range(10), "brightest": 255}))
    assert [shape for shape in found.values() if len(shape) == 2] == [(100, 784), (100, 100), (10, 100)]


def fault(task, **settings):
    with pytest.raises(InputError) as caught:
        TASKS[task].settings("tiny", **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("task", "name", "value", "told"),
    [
        ("imdb", "epochs", 0, "epochs must be > 0, got 0"),
        ("imdb", "epochs", 2.5, "epochs must be a whole number, got 2.5"),
        ("imdb", "rows", "all", "rows must be a whole number or null, got 'all'"),
        ("imdb", "learning_rate", "fast", "learning_rate must be a number, got 'fast'"),
        ("imdb", "learning_rate", math.nan, "learning_rate must be a finite number, got nan"),
        ("imdb", "weight_decay", -0.1, "weight_decay must be >= 0, got -0.1"),
        ("imdb", "dropout", 1.0, "dropout must be < 1, got 1.0"),
        ("imdb", "optimizer", "rmsprop", "optimizer must be one of 'adam', 'adamw' or 'sgd', got 'rmsprop'"),
        ("imdb", "windows", 3, "windows must be a list, got 3"),
        ("imdb", "windows", (), "windows must have at least 1 item, got ()"),
        ("en-vi", "vocabularies", (9,), "vocabularies must have more items, got (9,)"),
        ("en-vi", "betas", (0.9, 1.0), "betas must be < 1, got 1.0"),
        ("en-vi", "width", 15, "width must be even and a multiple of heads (2), got 15"),
        ("mnist", "layers", 3, "there is no setting 'layers': there are epochs, batch, learning_rate, rows"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_sentence(task, name, value, told):
    assert fault(task, **{name: value}).startswith(told)


def test_null_takes_a_limit_away_and_a_whole_number_is_the_same_number():
    assert TASKS["ptb"].settings("tiny", rows=None, clip=None) == TASKS["ptb"].sizes["tiny"].model_copy(
        update={"rows": None, "clip": None}
    )
    settings = TASKS["imdb"].settings("tiny", dropout=0, learning_rate=1)
    assert (repr(settings.dropout), repr(settings.learning_rate)) == ("0.0", "1.0")
