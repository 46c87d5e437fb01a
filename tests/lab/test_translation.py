"""Translation: pieces of text, batches of tokens, fairseq's label smoothing, and a beam search that ends in order."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gasam.lab.data.corpus import Corpus
from gasam.lab.errors import InputError
from gasam.lab.families.family import Encoded, encode
from gasam.lab.families.translation import (
    SPECIALS,
    Subwords,
    TransformerSettings,
    Translation,
    bleu,
    joined,
)
from local_layout import sentence
from tolerances import EXACT

TRAINED = {"epochs": 1, "batch": 64, "learning_rate": 1e-2, "dropout": 0.0, "vocabularies": (60, 60)}
SMALL = {"width": 32, "layers": 1, "heads": 2, "feedforward": 32}
PAD, BEGIN, FINISH, UNKNOWN = range(4)
LINES = [f"{sentence(i)} Zürich{i} , n' est-ce &apos;pas ?" for i in range(30)]


@given(words=st.integers(2, 9), tokens=st.integers(1, 6), smoothing=st.floats(0, 0.5), seed=st.integers(0, 2**31 - 1))
def test_label_smoothing_is_fairseqs(words, tokens, smoothing, seed):
    """(1 - s - s / (V - 1)) nll + s / (V - 1) * the sum of -log p over all words, the mean over tokens."""
    generator = np.random.default_rng(seed)
    scores, right = 5 * generator.normal(size=(tokens, words)), generator.integers(0, words, tokens)
    surprise = np.log(np.exp(scores).sum(axis=1, keepdims=True)) - scores
    share = smoothing / (words - 1)
    losses = (1 - smoothing - share) * surprise[range(tokens), right] + share * surprise.sum(axis=1)
    family = Translation(TransformerSettings(**TRAINED, units="bpe", smoothing=smoothing), None)
    family.subwords = ((), range(words))
    scores, right = torch.from_numpy(scores), torch.from_numpy(right)
    found = torch.nn.functional.cross_entropy(scores, right, label_smoothing=family.smoothing)
    assert float(found) == pytest.approx(losses.mean(), rel=EXACT, abs=EXACT)


@pytest.mark.parametrize("units", ["words", "bpe"])
def test_text_survives_its_pieces_and_special_ones_are_silent(units):
    """Start, end and padding come from a beam search: were they words, BLEU would count them as wrong ones."""
    pieces = Subwords.learn(LINES, units, 400)
    numbers = pieces.encode(LINES)
    assert pieces.decode([[BEGIN, *line.tolist(), PAD, PAD] for line in numbers]) == LINES
    assert all(line[-1] == FINISH and (line[:-1] > FINISH).all() for line in numbers)
    for line in pieces.encode([f"quick {special} fox" for special in SPECIALS]):
        assert line[-1] == FINISH
        assert not set(line[:-1].tolist()) & {PAD, BEGIN, FINISH}


def test_words_that_are_not_listed_are_unknown():
    pieces = Subwords.learn(["b b c c a a", "d"], "words", 7)
    assert len(pieces) == 7
    [line] = pieces.encode(["a d c"])
    assert line.tolist() == [4, UNKNOWN, 6, FINISH]
    assert pieces.decode([line.tolist()]) == ["a <unk> c"]


def test_a_shipped_list_is_taken_whole_if_it_fits_else_its_most_frequent_words():
    shipped = ("<unk>", "<s>", "</s>", "cat", "dog", "eel")
    text = ["dog dog bee bee bee eel"]
    assert len(Subwords.learn(text, "words", 7, shipped)) == 7
    few = Subwords.learn(text, "words", 6, shipped)
    assert few.decode([line.tolist() for line in few.encode(["cat dog eel bee"])]) == ["<unk> dog eel <unk>"]


def test_pieces_are_as_many_as_asked_and_the_same_every_time():
    """The library's own trainer numbers them otherwise every time (tokenizers issue 1794)."""
    learnt = {json.dumps(Subwords.learn(LINES, "bpe", 120).saved) for _ in range(4)}
    assert len(learnt) == 1
    assert len(Subwords(json.loads(learnt.pop()))) == 120


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60), tokens=st.integers(1, 90))
def test_batches_hold_every_pair_once_and_no_more_tokens_than_allowed(lengths, tokens):
    lines = [torch.full((length,), 4 + row) for row, length in enumerate(lengths)]
    shorter = [line[: (len(line) + 1) // 2] for line in lines]
    data = Encoded({}, {"train": {"source": joined(lines), "target": joined(shorter)}}, "")
    family = Translation(TransformerSettings(**TRAINED | {"batch": tokens}, units="bpe"), data)
    epochs = [family.batches(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    for batches in epochs:
        assert sorted(torch.cat(batches).tolist()) == list(range(len(lengths)))
        for chosen in batches:
            source, target = family.batch(chosen)
            assert source.numel() <= tokens or len(chosen) == 1
            assert target.numel() <= source.numel()
            for row, words in zip(chosen.tolist(), source.tolist(), strict=True):
                assert words == [4 + row] * lengths[row] + [PAD] * (len(words) - lengths[row])
    assert [batch.tolist() for batch in epochs[0]] == [batch.tolist() for batch in epochs[1]]
    if len(set(lengths)) > 8:
        assert [batch.tolist() for batch in epochs[0]] != [batch.tolist() for batch in epochs[2]]


def corpus(rows):
    """Every word has one translation: a text in another order, or with marks left in, has another BLEU."""
    generator = np.random.default_rng(5)
    pairs = []
    for _ in range(rows):
        numbers = generator.integers(0, 12, generator.integers(4, 9))
        pairs.append((" ".join(f"s{n}" for n in numbers), " ".join(f"t{n}" for n in numbers)))
    return Corpus(pairs[20:], pairs[:10], pairs[10:20])


@pytest.fixture(scope="module")
def translator():
    """Trained until it knows the words: judged sentences are of many lengths and not sorted by them."""
    settings = TransformerSettings(**TRAINED | SMALL | {"batch": 256}, units="words")
    family = Translation(settings, encode(Translation, corpus(320), settings))
    torch.manual_seed(1)
    model = family.model().train()
    optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate)
    for epoch in range(25):
        for chosen in family.batches(torch.Generator().manual_seed(epoch)):
            optimizer.zero_grad()
            family.loss(model, family.batch(chosen), None)[0].backward()
            optimizer.step()
    return family, model.eval()


def test_beam_search_translates_in_the_order_of_the_text(translator):
    family, model = translator
    lengths = [len(line) for line in family.sides["test"][0]]
    assert lengths != sorted(lengths)
    assert family.translate(model, family.sides["test"][0]) == [target for _, target in corpus(320).test]
    assert family.measure(model, "test").value == pytest.approx(100)


def test_validation_is_the_perplexity_of_the_right_words(translator):
    """Written out sentence by sentence: no padding, and no smoothing."""
    family, model = translator
    surprises = []
    for source, target in zip(*family.sides["valid"], strict=True):
        before = torch.cat([torch.tensor([BEGIN]), target[:-1].long()])
        with torch.no_grad():
            scores = model(input_ids=source.long()[None], decoder_input_ids=before[None]).logits[0].double()
        surprises += [float(s.logsumexp(0) - s[word]) for s, word in zip(scores, target.tolist(), strict=True)]
    assert family.validate(model) == pytest.approx(np.exp(np.mean(surprises)), rel=1e-5)


def test_noise_goes_on_words_and_not_on_places(translator):
    family, model = translator
    sizes = [module.weight.shape[0] for module in family.embeddings(model)]
    assert sizes == [len(pieces) for pieces in family.subwords]
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    assert len(tables) == 4  # the other two are tables of positions


def test_bleu_is_of_text_as_it_is_and_says_so():
    """Four of five words, three of four pairs, two of three triples, one of two fours; no length penalty."""
    (value, _), signature = bleu(["a b c d x"], ["a b c d e"])
    assert value == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    assert "tok:none" in signature
    assert bleu(["A , b c ."], ["a , b c ."])[0].value < 100


def test_long_pairs_are_left_out_and_none_left_is_told():
    pairs = corpus(60)
    settings = TransformerSettings(**TRAINED, units="words", length=6)
    family = Translation(settings, encode(Translation, pairs, settings))
    assert family.count("train") == sum(len(source.split()) < 6 for source, _ in pairs.train)
    assert family.count("test") == 10
    with pytest.raises(InputError, match="no training pair has at most 3 tokens in both languages: raise length"):
        encode(Translation, pairs, TransformerSettings(**TRAINED, units="words", length=3))
