"""FreeLB against a naive version of its own: noise per example, padding masked, mean over the passes."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from gasam import FreeLB, same_noise
from tolerances import EXACT, error, flat

TOKENS = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 1]])
LABELS = torch.tensor([0, 1, 0])


class Reader(nn.Module):
    def __init__(self, padding_idx=0, sparse=False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(9, 5, padding_idx=padding_idx, sparse=sparse, dtype=torch.float64)
        self.out = nn.Linear(5, 2, dtype=torch.float64)

    def forward(self, tokens, noise=0.0):
        return self.out(torch.tanh(self.words(tokens) + noise).mean(1))

    def loss(self, noise=0.0):
        return cross_entropy(self(TOKENS, noise), LABELS)


def naive(model, epsilon, norm, steps, eta, mask):
    """FreeLB out of place, an example at a time; returns losses, noises and the mean gradient."""
    noise = torch.zeros(3, 4, 5, dtype=torch.float64)
    losses, noises, total = [], [], 0
    for k in range(steps + 1):
        variable = noise.clone().requires_grad_()
        loss = model.loss(variable)
        *gradients, g = torch.autograd.grad(loss, [*model.parameters(), variable])
        total = total + flat(gradients) / (steps + 1)
        losses.append(loss.item())
        noises.append(noise)
        if k == steps:
            break
        noise = noise.clone()
        for i in range(3):
            h = g[i] * mask[i, :, None]
            if norm == math.inf:
                noise[i] = (noise[i] + eta * h.sign()).clamp(-epsilon, epsilon)
                continue
            powered = h.sign() * h.abs() ** (1 / (norm - 1))
            moved = noise[i] + eta * powered / powered.abs().pow(norm).sum() ** (1 / norm)
            size = moved.abs().pow(norm).sum() ** (1 / norm)
            noise[i] = moved * min(1.0, epsilon / size)
    return losses, noises, total


@pytest.mark.parametrize("norm", [1.5, 2.0, 3.0, math.inf])
@pytest.mark.parametrize(("steps", "step_size"), [(1, None), (3, 0.05), (3, None)])
def test_noise_climbs_as_the_naive_version(norm, steps, step_size):
    model = Reader()
    eta = step_size or 1.5 * 0.2 / steps
    losses, noises, total = naive(Reader(), 0.2, norm, steps, eta, TOKENS != 0)
    free = FreeLB(model.words, 0.2, norm=norm, steps=steps, step_size=step_size)
    returned = free(model.loss)
    assert returned.item() == pytest.approx(losses[0])
    assert error(torch.stack(free.last.losses), losses) < EXACT
    assert error(torch.stack(free.last.norms), [noise.norm().item() for noise in noises]) < EXACT
    assert error(flat([p.grad for p in model.parameters()]), total) < EXACT
    assert free.last.sharpness > 0


def seen_noise(model, free):
    """The noise of each pass, read off what the layers behind the embedding get."""
    clean = model.words(TOKENS).detach()
    seen = []
    original = torch.tanh

    def spy(values):
        seen.append((values - clean).detach())
        return original(values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "tanh", spy)
        free(model.loss)
    return seen


@pytest.mark.parametrize("norm", [2.0, math.inf])
@pytest.mark.parametrize("start", ["zero", "uniform"])
def test_noise_stays_in_every_examples_ball_and_off_the_padding(norm, start):
    model = Reader()
    noises = seen_noise(model, FreeLB(model.words, 0.1, norm=norm, steps=3, start=start))
    assert len(noises) == 4
    for noise in noises:
        for example in noise:
            assert torch.linalg.vector_norm(example, norm) <= 0.1 * (1 + 1e-9)
        assert not noise[TOKENS == 0].any()
    assert noises[0].any() == (start == "uniform")
    assert all(example.any() for example in noises[-1])


def test_padding_can_be_named_or_absent():
    model = Reader(padding_idx=None)
    assert seen_noise(model, FreeLB(model.words, 0.1))[1][TOKENS == 0].any()
    assert not seen_noise(model, FreeLB(model.words, 0.1, padding=0))[1][TOKENS == 0].any()


@pytest.mark.parametrize("off", ["epsilon", "enabled"])
def test_off_is_one_plain_pass(off):
    model, plain = Reader(), Reader()
    plain.loss().backward()
    free = FreeLB(model.words, 0.0 if off == "epsilon" else 0.1, steps=3)
    free.enabled = off != "enabled"
    free(model.loss)
    assert len(free.last.losses) == 1
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_noise_does_not_see_the_factor_of_the_loss():
    results = []
    for factor in (1.0, 4096.0):
        model = Reader()
        free = FreeLB(model.words, 0.1, norm=2.0, steps=2, backward=lambda loss, f=factor: (f * loss).backward())
        free(model.loss)
        results.append((torch.stack(free.last.losses), flat([p.grad for p in model.parameters()]) / factor))
    for plain, scaled in zip(*results, strict=True):
        assert error(scaled, plain) < EXACT


def test_several_embeddings_and_calls_have_noise_of_their_own():
    torch.manual_seed(0)
    first, second = nn.Embedding(9, 5), nn.Embedding(9, 5)
    free = FreeLB([first, second], 0.1)
    free(lambda: (first(TOKENS) * second(TOKENS) * first(TOKENS[:, :1])).sum())
    size = 0.1 * math.sqrt(TOKENS.numel() * 5 * 2 + 3 * 5)
    assert free.last.norms[-1].item() == pytest.approx(size, rel=1e-3)


def test_sequence_first_batches_name_their_example_dimension():
    model = Reader()
    by_rows = FreeLB(model.words, 0.1, norm=2.0)
    by_rows(model.loss)
    expected = by_rows.last.norms[-1]

    class Turned(Reader):
        def forward(self, tokens, noise=0.0):
            return self.out(torch.tanh(self.words(tokens.t())).mean(0))

    turned = Turned()
    by_columns = FreeLB(turned.words, 0.1, norm=2.0, example_dim=1)
    by_columns(turned.loss)
    assert by_columns.last.norms[-1].item() == pytest.approx(expected.item())


def test_hooks_are_gone_afterwards_also_after_a_failure():
    model = Reader()
    free = FreeLB(model.words, 0.1)
    free(model.loss)
    assert not model.words._forward_hooks

    def failing():
        model.loss()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        free(failing)
    assert not model.words._forward_hooks


def test_passes_that_call_the_embeddings_differently_are_told():
    model = Reader()
    lengths = iter([4, 3])
    with pytest.raises(RuntimeError, match="must use one batch"):
        FreeLB(model.words, 0.1)(lambda: model(TOKENS[:, : next(lengths)]).sum())


def test_unused_embeddings_are_told():
    model = Reader()
    with pytest.raises(RuntimeError, match="did not call the embeddings"):
        FreeLB(nn.Embedding(3, 2), 0.1)(model.loss)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, which it hides where it can
def test_compiled_models_that_ran_before_are_told_the_cure_and_it_works():
    torch.compiler.reset()
    model, plain = Reader(), Reader()
    quick, free = torch.compile(model, backend="eager"), FreeLB(model.words, 0.1, steps=2)
    quick(TOKENS)
    with pytest.raises(RuntimeError, match=r"if torch\.compile ran .* torch\.compiler\.reset\(\)"):
        free(lambda: cross_entropy(quick(TOKENS), LABELS))
    torch.compiler.reset()
    for _ in range(3):
        free(lambda: cross_entropy(quick(TOKENS), LABELS))
        FreeLB(plain.words, 0.1, steps=2)(plain.loss)
    assert error(*(flat([p.grad for p in each.parameters()]) for each in (model, plain))) < EXACT


def test_sparse_embeddings_work():
    sparse, dense = Reader(sparse=True), Reader()
    for model in (sparse, dense):
        FreeLB(model.words, 0.1, steps=2)(model.loss)
    assert sparse.words.weight.grad.is_sparse
    assert error(sparse.words.weight.grad.to_dense(), dense.words.weight.grad) < EXACT


def test_tokens_may_be_given_by_name():
    model, named = Reader(), Reader()
    FreeLB(model.words, 0.1)(model.loss)
    original = named.words.forward
    free = FreeLB(named.words, 0.1)
    free(lambda: cross_entropy(named.out(torch.tanh(named.words(input=TOKENS)).mean(1)), LABELS))
    assert named.words.forward == original
    assert error(named.words.weight.grad, model.words.weight.grad) < EXACT


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_embeddings_inside_checkpointing_are_refused(use_reentrant):
    model = Reader()
    start = torch.zeros(3, 4, 5, dtype=torch.float64, requires_grad=True)

    def loss():
        hidden = checkpoint(lambda z: torch.tanh(model.words(TOKENS) + z), start, use_reentrant=use_reentrant)
        return cross_entropy(model.out(hidden.mean(1)), LABELS)

    with pytest.raises(RuntimeError, match=r"activation checkpointing|did not call the embeddings"):
        FreeLB(model.words, 0.1)(loss)
    assert not model.words._forward_hooks


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_noise_is_zero_once_anything_is_not_finite(where):
    model, passes = Reader(), []

    def loss():
        passes.append(1)
        value = model.loss()
        if len(passes) == 2 and where == "loss":
            return value * math.nan
        if len(passes) == 2:
            value.register_hook(lambda g: g * math.nan)
        return value

    free = FreeLB(model.words, 0.1, steps=2)
    free(loss)
    assert "not finite" in str(free.last)
    assert [norm.item() > 0 for norm in free.last.norms] == [False, True, False]


SHARED = pytest.mark.parametrize("around", [{}, {"around": same_noise()}], ids=["fresh", "shared"])


class Drawing(nn.Module):
    """Keeps the noise and the dropout mask of each pass."""

    def __init__(self, drops: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(9, 5), nn.Linear(5, 2)
        self.drops = drops
        self.noises, self.masks = [], []

    def loss(self):
        found = self.words(TOKENS)
        self.noises.append((found - self.words.weight[TOKENS]).detach())
        self.masks.append(torch.rand(5) > 0.5 if self.drops else torch.ones(5))
        return cross_entropy(self.out(torch.tanh(found).mean(1) * self.masks[-1]), LABELS)


@pytest.mark.parametrize("start", ["zero", "uniform"])
def test_shared_masks_are_those_of_plain_passes(start):
    model, plain = Drawing(drops=True), Drawing(drops=True)
    free = FreeLB(model.words, 0.1, steps=2, start=start, around=same_noise())
    torch.manual_seed(3)
    free(model.loss), free(model.loss)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    plain.loss(), plain.loss()
    assert torch.equal(after, torch.get_rng_state())
    assert len(model.masks) == 6
    assert all(torch.equal(mask, plain.masks[i // 3]) for i, mask in enumerate(model.masks))


@SHARED
@pytest.mark.parametrize("drops", [False, True])
def test_starts_differ_and_come_back_with_the_seed(drops, around):
    """Also where the model draws nothing, and the stream would stand still."""
    model = Drawing(drops)
    free = FreeLB(model.words, 0.1, start="uniform", **around)
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        for _ in range(3):
            free(model.loss)
    starts = model.noises[::2]
    assert all(torch.equal(a, b) for a, b in zip(starts[:3], starts[3:6], strict=True))
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(starts[3:], 2))


def test_every_call_of_an_embedding_draws_its_own_start():
    words, seen = nn.Embedding(9, 5), []

    def loss():
        seen.append([words(TOKENS) - words.weight[TOKENS] for _ in range(2)])
        return sum(part.sum() for part in seen[-1])

    FreeLB(words, 0.1, start="uniform")(loss)
    assert not torch.equal(*seen[0])


def test_noise_is_not_made_of_the_models_random_numbers():
    model = Drawing(drops=False)
    torch.manual_seed(3)
    FreeLB(model.words, 1.0, start="uniform")(model.loss)
    torch.manual_seed(3)
    drawn = torch.zeros(3, 4, 5).uniform_(-1, 1)
    assert (model.noises[0] - drawn).abs().mean() > 0.1
