"""Sizes: the paper's appendix written a second time, the models it describes, and settings that are refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gasam.lab.errors import InputError
from gasam.lab.families.encoded import Encoded
from gasam.lab.families.translation import Subwords
from gasam.lab.tasks import SIZE_NAMES, TASKS

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
APPENDIX = {
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


@pytest.mark.parametrize("task", APPENDIX)
def test_size_paper_is_the_appendix_to_the_letter(task):
    settings = vars(TASKS[task].sizes["paper"])
    assert {name: settings[name] for name in APPENDIX[task]} == APPENDIX[task]
    assert settings["rows"] is None


def test_every_task_has_every_size_of_its_familys_type_and_twins_have_the_papers():
    for name, task in TASKS.items():
        assert set(task.sizes) - {"medium"} == set(SIZE_NAMES)
        assert {type(settings) for settings in task.sizes.values()} == {task.family.settings_type}
        twin = task.kind.removeprefix("twin of ")
        assert twin == task.kind or TASKS[name].sizes["paper"] == TASKS[twin].sizes["paper"]


def numbered(count):
    return Subwords.learn([" ".join(map(str, range(count)))], "words", count).saved


def built(task, data):
    """A model at the paper's size, without memory for its weights."""
    definition = TASKS[task]
    data = Encoded(data, {}, "")
    with torch.device("meta"):
        return definition.family(definition.sizes["paper"], data).model()


def shapes(model):
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
    layers = {
        f"lstm.{kind}_{part}_l{layer}" for kind in ("weight", "bias") for part in ("ih", "hh") for layer in (0, 1)
    }
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
        ("imdb", "epochs", True, "epochs must be a whole number, got True"),
        ("imdb", "batch", None, "batch must be a whole number, got None"),
        ("imdb", "rows", 0, "rows must be > 0, got 0"),
        ("imdb", "rows", "all", "rows must be a whole number or null, got 'all'"),
        ("imdb", "learning_rate", "fast", "learning_rate must be a number, got 'fast'"),
        ("imdb", "learning_rate", math.nan, "learning_rate must be a finite number, got nan"),
        ("imdb", "learning_rate", -1, "learning_rate must be > 0, got -1"),
        ("imdb", "weight_decay", -0.1, "weight_decay must be >= 0, got -0.1"),
        ("imdb", "dropout", 1.0, "dropout must be < 1, got 1.0"),
        ("imdb", "optimizer", "rmsprop", "optimizer must be one of 'adam', 'adamw' or 'sgd', got 'rmsprop'"),
        ("imdb", "windows", 3, "windows must be a list, got 3"),
        ("imdb", "windows", (), "windows must have at least 1 item, got ()"),
        ("imdb", "windows", (3, 0), "windows must be > 0, got 0"),
        (
            "ptb",
            "schedule",
            "sine",
            "schedule must be one of 'constant', 'halving', 'inverse_sqrt'",
        ),
        ("ptb", "clip", 0, "clip must be > 0, got 0"),
        ("en-vi", "units", "letters", "units must be one of 'words' or 'bpe', got 'letters'"),
        ("en-vi", "vocabularies", (9,), "vocabularies must have more items, got (9,)"),
        ("en-vi", "betas", (0.9, 1.0), "betas must be < 1, got 1.0"),
        ("en-vi", "width", 15, "width must be even and a multiple of heads (2), got 15"),
        ("mnist", "layers", 3, "there is no setting 'layers': there are epochs, batch, learning_rate, rows"),
    ],
)
def test_a_setting_that_cannot_be_is_told_in_one_sentence(task, name, value, told):
    assert fault(task, **{name: value}).startswith(told)


def test_null_takes_a_limit_away_and_a_whole_number_is_the_same_number():
    assert TASKS["ptb"].settings("tiny", rows=None, clip=None) == TASKS["ptb"].sizes["tiny"].model_copy(
        update={"rows": None, "clip": None}
    )
    settings = TASKS["imdb"].settings("tiny", dropout=0, learning_rate=1)
    assert (repr(settings.dropout), repr(settings.learning_rate)) == ("0.0", "1.0")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(-2, 2) | st.sampled_from(["adam", "bpe", "x", ""]),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


@given(name=st.sampled_from(list(TASKS["en-vi"].family.settings_type.model_fields)), value=VALUES)
def test_whatever_is_set_is_taken_or_told(name, value):
    found = taken_or_told(name, value)
    assert found.startswith((name, "width must")) if isinstance(found, str) else getattr(found, name) == value


def taken_or_told(name, value):
    try:
        return TASKS["en-vi"].settings("tiny", **{name: value})
    except InputError as error:
        return str(error)
