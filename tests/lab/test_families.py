"""Families of models: encoding, batches, losses and metrics against definitions written out by hand."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gasam.lab.data.corpus import Corpus
from gasam.lab.families.classification import TextClassification, TextCNNSettings, words
from gasam.lab.families.family import Encoded, encode
from gasam.lab.families.images import ImageClassification, MLPSettings
from gasam.lab.families.language import LanguageModel, LSTMSettings, windows
from gasam.lab.methods import walk_for
from gasam.lab.storage import Checkpoints
from gasam.lab.tasks import TASKS
from gasam.lab.training.loop import optimizer_for, rate_factor
from gasam.lab.training.plan import make
from tolerances import EXACT, error, same_bits

TRAINED = {"epochs": 1, "batch": 4, "learning_rate": 0.1, "dropout": 0.0}


RATES = [
    ("en-vi", 1, 1, 5e-4 / 4000), ("de-en", 3, 4000, 5e-4), ("en-vi", 9, 16_000, 2.5e-4), ("ptb", 10, 9_000, 50.0),
    ("ptb", 12, 1, 12.5), ("ptb", 20, 1, 50 / 1024), ("imdb", 10, 4_000, 1e-3),
]  # fmt: skip


@pytest.mark.parametrize(("task", "epoch", "update", "rate"), RATES)
def test_learning_rates_at_points_computed_by_hand(task, epoch, update, rate):
    recipe = TASKS[task].sizes["paper"]
    found = recipe.learning_rate * rate_factor(recipe, epoch, update, 10**6)
    assert found == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_rate_rises_then_falls_to_zero(schedule):
    recipe = TASKS["imdb"].settings("tiny", schedule=schedule, warmup=4)
    rates = [rate_factor(recipe, 1, update, 20) for update in range(1, 21)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert sorted(rates[3:], reverse=True) == rates[3:]
    assert 0 < rates[-1] < 0.07


@pytest.mark.parametrize(("task", "kind"), [("imdb", "Adam"), ("ptb", "SGD"), ("en-vi", "AdamW")])
def test_optimizers_have_the_recipes_numbers(task, kind):
    recipe = TASKS[task].sizes["paper"]
    optimizer = optimizer_for(nn.Linear(2, 2), recipe)
    [group] = optimizer.param_groups
    assert type(optimizer).__name__ == kind
    assert (group["lr"], group["weight_decay"]) == (recipe.learning_rate, recipe.weight_decay)
    assert group.get("betas") == {"imdb": (0.9, 0.999), "ptb": None, "en-vi": (0.9, 0.98)}[task]


REVIEWS = Corpus(
    train=[("Good GOOD film<br />Isn't it?", 1), ("bad film!", 0), ("zebra apple apple", 0)],
    valid=[("a good zebra", 1)],
    test=[("unseen seen good bad film it", 0)],
    classes=("no", "yes"),
)
CNN = TextCNNSettings(**TRAINED, vocabulary=8, length=5, embedding=4, maps=3)


def test_texts_are_the_most_frequent_words_of_training_padded_and_cut():
    """apple, film and good are there twice, the others once: of these the alphabetically first three."""
    assert words("It isn't<br />GOOD... 10/10?!") == ["it", "isn't", "good", "10", "10", "?", "!"]
    data = encode(TextClassification, REVIEWS, CNN)
    assert data.shared["words"] == ["<pad>", "<unk>", "apple", "film", "good", "!", "?", "bad"]
    assert data.shared["classes"] == ["no", "yes"]
    assert data["train"][0].tolist() == [[4, 4, 3, 1, 1], [7, 3, 5, 0, 0], [1, 2, 2, 0, 0]]
    assert data["valid"][0].tolist() == [[1, 4, 1, 0, 0]]
    assert data["test"][0].tolist() == [[1, 1, 4, 7, 3]]
    assert [data[split][1].tolist() for split in ("train", "valid", "test")] == [[1, 0, 0], [1], [0]]


def test_fewer_rows_are_a_part_of_training_and_their_words_alone_are_known():
    data = encode(TextClassification, REVIEWS, TextCNNSettings(**vars(CNN) | {"rows": 1}))
    assert [len(data[split][1]) for split in ("train", "valid", "test")] == [1, 1, 1]
    assert set(data.shared["words"][2:]) in [set(words(text)) for text, _ in REVIEWS.train]


def test_text_network_is_convolutions_and_their_largest_values():
    """Against numpy: a row of zeros where there is no word, and the largest of each map over all places."""
    data = encode(TextClassification, REVIEWS, CNN)
    model = TextClassification(CNN, data).model().double()
    with torch.no_grad():  # one map of each window is largest where there is nothing, if there is such a place
        model.embedding.weight.abs_()
        for convolution in model.convolutions:
            convolution.weight[0].abs_().neg_()
            convolution.bias.abs_()
    tokens = data["train"][0]
    embedded = model.embedding.weight.detach().numpy()[tokens.numpy()]
    features = []
    for window, convolution in zip((3, 4, 5), model.convolutions, strict=True):
        weight, bias = (tensor.detach().numpy() for tensor in (convolution.weight, convolution.bias))
        padded = np.pad(embedded, ((0, 0), (window - 1, window - 1), (0, 0)))
        places = [padded[:, i : i + window] for i in range(padded.shape[1] - window + 1)]
        maps = np.stack([np.einsum("bwe,mew->bm", place, weight[:, :, 0]) + bias for place in places])
        features.append(np.maximum(maps.max(axis=0), 0))
    output = [tensor.detach().numpy() for tensor in (model.output.weight, model.output.bias)]
    expected = np.concatenate(features, axis=1) @ output[0].T + output[1]
    assert not model.embedding.weight[0].any()
    assert error(model(tokens), expected) < EXACT


@pytest.mark.parametrize("rows", [1, 250, 251, 700])
def test_accuracy_is_the_share_of_right_answers(rows):
    inputs, labels = torch.randn(rows, 6), torch.randint(0, 3, (rows,))
    model = nn.Linear(6, 3)
    found = (inputs.numpy() @ model.weight.detach().numpy().T + model.bias.detach().numpy()).argmax(axis=1)
    family = TextClassification(CNN, Encoded({}, {"test": (inputs, labels)}, ""))
    assert family.measure(model, "test").value == pytest.approx(100 * np.mean(found == labels.numpy()), rel=EXACT)


def test_every_row_is_in_one_batch_of_an_epoch_and_seeds_change_the_order():
    settings = TextCNNSettings(**TRAINED | {"batch": 2}, vocabulary=8, length=5, embedding=4, maps=3)
    family = TextClassification(settings, encode(TextClassification, REVIEWS, settings))
    epochs = [family.batches(torch.Generator().manual_seed(seed)) for seed in (1, 1, *range(2, 12))]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [2, 1]
        assert sorted(torch.cat(batches).tolist()) == [0, 1, 2]
    assert torch.equal(epochs[0][0], epochs[1][0])
    assert len({tuple(torch.cat(batches).tolist()) for batches in epochs}) > 2


def test_images_are_numbers_from_zero_to_one():
    corpus = Corpus([(bytes([0, 51, 255]), 1), (bytes([1, 2, 3]), 0)], [(b"abc", 0)], [(b"xyz", 1)], ("a", "b"))
    settings = MLPSettings(**TRAINED, hidden=(5,))
    family = ImageClassification(settings, encode(ImageClassification, corpus, settings))
    images, labels = family.batch(torch.tensor([0, 1]))
    assert error(family.model()[0](images), np.array([[0, 0.2, 1], [1 / 255, 2 / 255, 3 / 255]])) < 1e-7
    assert labels.tolist() == [1, 0]


@given(words=st.integers(2, 60), columns=st.integers(1, 8), length=st.integers(1, 9))
def test_every_following_word_is_predicted_once_and_columns_go_on(words, columns, length):
    stream = torch.arange(words, dtype=torch.int32)
    family = LanguageModel(LSTMSettings(**TRAINED | {"batch": columns}, vocabulary=9, length=length, hidden=2), {})
    family.data["train"] = stream
    batches = [family.batch(chosen) for chosen in family.batches(torch.Generator())]
    columns = min(columns, words // 2)
    rows = words // columns
    assert all(0 < len(inputs) <= length for inputs, _ in batches)
    inputs, following = (torch.cat(parts) for parts in zip(*batches, strict=True))
    for column in range(columns):
        start = column * rows
        assert inputs[:, column].tolist() == list(range(start, start + rows - 1))
        assert following[:, column].tolist() == list(range(start + 1, start + rows))


LINES = Corpus(["b a", "a <unk> c"], ["a d"], ["c b a b", "a d c"])


def language_model(**changes):
    settings = LSTMSettings(**TRAINED | {"vocabulary": 4, "length": 3, "hidden": 5} | changes)
    torch.manual_seed(3)
    family = LanguageModel(settings, encode(LanguageModel, LINES, settings))
    model = family.model()
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.9, 0.9)
    return family, model


def test_text_is_one_stream_with_an_end_after_every_line():
    """Of b and c, once each, the alphabetically first is known."""
    data = language_model()[0].data
    assert data.shared["words"] == ["<unk>", "<eos>", "a", "b"]
    assert [data[split].tolist() for split in ("train", "valid")] == [[3, 2, 1, 2, 0, 0, 1], [2, 0, 1]]


@torch.no_grad()
def test_perplexity_is_that_of_reading_word_by_word():
    family, model = language_model()
    model.double().eval()
    stream = family.data["test"].long()
    total, state = 0.0, None
    for word, following in pairwise(stream):
        scores, state = model(word.view(1, 1), state)
        scores = scores.view(-1).numpy()
        total += np.log(np.exp(scores).sum()) - scores[following]
    assert family.measure(model, "test").value == pytest.approx(math.exp(total / (len(stream) - 1)), rel=EXACT)
    family, model = language_model(batch=10)  # more columns than the text has words
    assert math.isfinite(family.validate(model))
    assert len(windows(family.data["valid"], 10, 3)) == 1


@pytest.mark.parametrize("method", ["sam", "ga-sam", "freelb"])
def test_the_clean_pass_leaves_the_state_that_is_carried(method):
    family, model = language_model(batch=1)
    walk = walk_for(method, "ptb", "tiny", 1, epsilon=0.5, norm=2.0, steps=2)
    batch = family.batch(family.batches(torch.Generator())[0])
    before = (torch.randn(2, 1, 5), torch.randn(2, 1, 5))
    _, clean = family.loss(model, batch, before)
    seen = []

    def loss():
        value, state = family.loss(model, batch, before)
        seen.append(state)
        return value, state

    _, carried = walk.backward(family, model, torch.Tensor.backward)(loss)
    assert same_bits(carried, clean)
    assert len(seen) == 3
    assert not same_bits(seen[1], clean)
    assert not any(part.requires_grad for part in carried)


@pytest.mark.parametrize("task", ["digits", "docstrings", "pydoc", "numerals"])
def test_the_part_of_a_batch_is_what_its_first_examples_give_on_their_own(task):
    plan = make(task, "baseline", "tiny")
    family = plan.family(plan.data())
    model, dim = family.model().eval(), family.example_dim
    first, *others = family.batches(torch.Generator().manual_seed(1))
    carried = family.loss(model, family.batch(first), None)[1]
    chosen = max(others, key=lambda batch: batch.shape[dim])
    whole, rows = (family.batch(chosen), carried), chosen.shape[dim]
    part, share = family.part(whole, rows, 0.25)
    own = math.ceil(rows / 4)
    alone = family.batch(chosen.narrow(dim, 0, own)), carried and tuple(state[:, :own] for state in carried)
    assert (share, own < rows) == (own / rows, True)
    found, of_alone, of_whole = (family.loss(model, *each)[0] for each in (part, alone, whole))
    assert error(found, of_alone) < 1e-6 < error(found, of_whole)


def test_averaged_weights_are_the_mean_in_double_precision(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    epochs = [{"w": torch.randn(7, 3) * 10.0**n, "half": torch.randn(5).bfloat16(), "seen": torch.tensor(n)}
              for n in range(6)]  # fmt: skip
    for number, weights in enumerate(epochs):
        checkpoints.save(checkpoints.epoch(number), weights)
    averaged = checkpoints.average(last=5, count=3)
    mean = np.mean([weights["w"].double().numpy() for weights in epochs[3:]], axis=0).astype(np.float32)
    half = sum(weights["half"].double() for weights in epochs[3:]) / 3
    assert same_bits([averaged["w"], averaged["half"]], [torch.from_numpy(mean), half.bfloat16()])
    assert averaged["seen"] == 5


def test_what_all_splits_share_is_learnt_from_the_training_split_alone():
    """So that nothing of the test split is left when a search is given the data without it."""
    seen = []

    class Curious(TextClassification):
        @staticmethod
        def learn(training, settings):
            seen.append((training.train, training.valid, training.test))
            return TextClassification.learn(training, settings)

    encode(Curious, REVIEWS, CNN)
    assert seen == [(REVIEWS.train, [], [])]
