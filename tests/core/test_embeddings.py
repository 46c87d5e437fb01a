"""FreeLB against a naive version of its own: noise per example, padding masked, mean over the passes."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from gasam import FreeLB, same_noise
from tolerances import EXACT, error, flat, same_bits

TOKENS = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 1]])
LABELS = torch.tensor([0, 1, 0])


class Reader(nn.Module):
    """Keeps the noise of each pass."""

    def __init__(self, padding_idx=0, sparse=False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(9, 5, padding_idx=padding_idx, sparse=sparse, dtype=torch.float64)
        self.out = nn.Linear(5, 2, dtype=torch.float64)
        self.noises = []

    def forward(self, tokens):
        return self.out(torch.tanh(self.words(tokens)).mean(1))

    def loss(self, noise=0.0):
        found = self.words(TOKENS)
        self.noises.append((found - self.words.weight[TOKENS]).detach())
        return cross_entropy(self.out(torch.tanh(found + noise).mean(1)), LABELS)


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
@pytest.mark.parametrize(("steps", "step_size", "factor", "sparse"), [
    (1, None, 4096.0, False), (3, 0.05, 1.0, True), (3, None, 1.0, False)
])  # fmt: skip
def test_noise_climbs_as_the_naive_version(norm, steps, step_size, factor, sparse):
    """A loss scaler's factor of the loss does not change it."""
    model = Reader(sparse=sparse)
    eta = step_size or 1.5 * 0.2 / steps
    losses, noises, total = naive(Reader(), 0.2, norm, steps, eta, TOKENS != 0)
    options = {"norm": norm, "steps": steps, "step_size": step_size}
    free = FreeLB(model.words, 0.2, backward=lambda loss: (factor * loss).backward(), **options)
    returned = free(model.loss)
    assert returned.item() == pytest.approx(losses[0])
    assert error(torch.stack(free.last.losses), losses) < EXACT
    assert error(torch.stack(model.noises), torch.stack(noises)) < EXACT
    assert error(torch.stack(free.last.norms), [noise.norm().item() for noise in noises]) < EXACT
    assert model.words.weight.grad.is_sparse == sparse
    gradients = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in model.parameters()]
    assert error(flat(gradients) / factor, total) < EXACT
    assert free.last.sharpness > 0


@pytest.mark.parametrize("options", [{}, {"padding": 0}])
def test_padding_can_be_named_or_absent(options):
    model = Reader(padding_idx=None)
    FreeLB(model.words, 0.1, **options)(model.loss)
    assert model.noises[1][TOKENS == 0].any() == (not options)


@pytest.mark.parametrize("off", ["epsilon", "enabled"])
def test_off_is_one_plain_pass(off):
    model, plain = Reader(), Reader()
    plain.loss().backward()
    free = FreeLB(model.words, 0.0 if off == "epsilon" else 0.1, steps=3)
    free.enabled = off != "enabled"
    free(model.loss)
    assert len(free.last.losses) == 1
    assert same_bits([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])


def test_every_call_of_several_embeddings_has_noise_of_its_own():
    first, second, seen, weights = nn.Embedding(9, 5), nn.Embedding(9, 5), [], torch.randn(3, 3, 4, 5)

    def loss():
        seen.append([words(TOKENS) - words.weight[TOKENS] for words in (first, first, second)])
        return sum((part * own).sum() for part, own in zip(seen[-1], weights, strict=True))

    FreeLB([first, second], 0.1)(loss)
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(seen[1], 2))


def test_sequence_first_batches_name_their_example_dimension():
    model = Reader()
    by_rows, by_columns = (FreeLB(model.words, 0.1, norm=2.0, example_dim=dim) for dim in (0, 1))
    by_rows(model.loss)
    by_columns(lambda: cross_entropy(model.out(torch.tanh(model.words(input=TOKENS.t())).mean(0)), LABELS))
    assert by_columns.last.norms[-1].item() == pytest.approx(by_rows.last.norms[-1].item())


def checkpointed(model, use_reentrant):
    start = torch.zeros(3, 4, 5, dtype=torch.float64, requires_grad=True)
    return checkpoint(lambda z: torch.tanh(model.words(TOKENS) + z), start, use_reentrant=use_reentrant).sum()


def failing(model):
    model.loss()
    raise KeyboardInterrupt("stop")


LENGTHS = itertools.cycle([4, 3])


@pytest.mark.parametrize(("loss", "words"), [
    (failing, "stop"),
    (lambda model: nn.Embedding(9, 5)(TOKENS).sum(), "did not call the embeddings"),
    (lambda model: model(TOKENS[:, : next(LENGTHS)]).sum(), "must use one batch"),
    (lambda model: checkpointed(model, True), "activation checkpointing|did not call the embeddings"),
    (lambda model: checkpointed(model, False), "activation checkpointing|did not call the embeddings"),
])  # fmt: skip
def test_failures_leave_no_hook_and_mistakes_are_told(loss, words):
    model = Reader()
    with pytest.raises((RuntimeError, KeyboardInterrupt), match=words):
        FreeLB(model.words, 0.1)(lambda: loss(model))
    assert not model.words._forward_hooks


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


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_noise_is_zero_once_anything_is_not_finite(where):
    model = Reader()

    def loss():
        value = model.loss()
        factor = math.nan if len(model.noises) == 2 else 1.0
        value.register_hook(lambda g: g * factor)
        return value * factor if where == "loss" else value

    free = FreeLB(model.words, 0.1, steps=2)
    free(loss)
    assert "not finite" in str(free.last)
    assert [norm.item() > 0 for norm in free.last.norms] == [False, True, False]


def test_noise_of_the_model_is_shared_and_is_that_of_plain_passes():
    model, drawn = Reader(), []
    free = FreeLB(model.words, 0.1, steps=2, around=same_noise())
    torch.manual_seed(0)
    for _ in range(2):
        free(lambda: drawn.append(torch.rand(5)) or model.loss())
    after = torch.get_rng_state()
    torch.manual_seed(0)
    plain = [torch.rand(5), torch.rand(5)]
    assert torch.equal(after, torch.get_rng_state())
    assert torch.equal(torch.stack(drawn), torch.stack(plain).repeat_interleave(3, 0))
