"""Loops as people write them: after five steps the weights are those of a loop over the paper's reference."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from gasam import SharpBackward, SharpnessAware, asam, ga_sam, sam
from problems import batch, network, paper_walk, put_gradient
from tolerances import EXACT, error, flat, same_bits

PERTURBATIONS = {
    "ga_sam": ga_sam(0.1, steps=2),
    "sam": sam(0.1),
    "asam": asam(0.1),
    "budget": ga_sam(budget=0.1, cap=0.01),
}


def micro_batches(accumulate):
    """Five steps of `accumulate` micro-batches each."""
    return [[batch(rows=4, seed=accumulate * step + i) for i in range(accumulate)] for step in range(5)]


def joined(parts):
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def tools(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def plain_loss(model, x, y):
    return cross_entropy(model(x), y)


def paper_loop(model, steps, perturbation, clip=None):
    """Every entry of a step is walked by itself; the mean of the folds is clipped and given to a plain optimizer."""
    optimizer, schedule = tools(model)
    for parts in steps:
        folds = [paper_walk(model, lambda m, p=part: plain_loss(m, *p), perturbation)[-1] for part in parts]
        put_gradient(model, sum(folds) / len(folds))
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()


def sharp_loop(model, steps, perturbation, clip=None, loss=plain_loss):
    optimizer, schedule = tools(model)
    parts = len(steps[0])
    sharp = SharpBackward(model.parameters(), perturbation, backward=lambda backed: (backed / parts).backward())
    for micro in steps:
        for x, y in micro:
            sharp(lambda: loss(model, x, y))  # noqa: B023
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


@pytest.mark.parametrize("name", PERTURBATIONS)
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.2])
def test_walk_for_each_micro_batch_with_clipping_and_a_schedule(name, accumulate, clip):
    model, expected, steps = network(), network(), micro_batches(accumulate)
    sharp_loop(model, steps, PERTURBATIONS[name], clip)
    paper_loop(expected, steps, PERTURBATIONS[name], clip)
    assert error(flat(model.parameters()), flat(expected.parameters())) < EXACT


@pytest.mark.parametrize("name", PERTURBATIONS)
@pytest.mark.parametrize("clip", [None, 0.2])
def test_one_walk_for_all_micro_batches_with_clipping_and_a_schedule(name, clip):
    model, expected, steps = network(), network(), micro_batches(3)
    base, schedule = tools(model)
    clipping = (lambda: nn.utils.clip_grad_norm_(model.parameters(), clip)) if clip else None
    optimizer = SharpnessAware(base, PERTURBATIONS[name], before_step=clipping)
    for micro in steps:

        def closure():
            losses = [plain_loss(model, *part) / len(micro) for part in micro]  # noqa: B023
            for loss in losses:
                loss.backward()
            return torch.stack(losses).sum().detach()

        optimizer.step(closure)
        schedule.step()
    paper_loop(expected, [[joined(micro)] for micro in steps], PERTURBATIONS[name], clip)
    assert error(flat(model.parameters()), flat(expected.parameters())) < EXACT


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("name", PERTURBATIONS)
def test_activation_checkpointing_of_both_kinds(name, use_reentrant):
    def loss(model, x, y):
        hidden = checkpoint(model[:2], x.requires_grad_(), use_reentrant=use_reentrant)
        return cross_entropy(model[2](hidden), y)

    model, expected, steps = network(), network(), micro_batches(2)
    sharp_loop(model, steps, PERTURBATIONS[name], loss=loss)
    paper_loop(expected, steps, PERTURBATIONS[name])
    assert error(flat(model.parameters()), flat(expected.parameters())) < EXACT


@pytest.mark.parametrize("compiled", ["model", "loss"])
def test_compiled_models_see_the_moved_weights_and_are_compiled_once(compiled):
    """Captured and differentiated as ever; the machine code that would take half a minute is left out."""

    def compile_(function):
        return torch.compile(function, backend="aot_eager", fullgraph=True)

    torch.compiler.reset()
    model, expected, steps = network(), network(), micro_batches(1)
    quick, whole = compile_(model), compile_(plain_loss)

    def loss(model, x, y):
        return whole(model, x, y) if compiled == "loss" else cross_entropy(quick(x), y)

    loss(model, *steps[0][0]).backward()
    model.zero_grad()
    with torch.compiler.set_stance("fail_on_recompile"):
        sharp_loop(model, steps, ga_sam(0.1, steps=2), loss=loss)
    paper_loop(expected, steps, ga_sam(0.1, steps=2))
    assert error(flat(model.parameters()), flat(expected.parameters())) < EXACT


class Carrying(nn.Module):
    """A recurrent net that goes on from the state it is given."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.out = nn.LSTM(6, 5, 2), nn.Linear(5, 3)
        self.double()

    def loss_and_state(self, x, y, state):
        hidden, state = self.layers(x.unsqueeze(1), state)
        return cross_entropy(self.out(hidden.squeeze(1)), y), tuple(part.detach() for part in state)


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_every_pass_of_a_recurrent_net_starts_from_the_same_state(name):
    model, expected = Carrying(), Carrying()
    state = expected_state = (torch.zeros(2, 1, 5).double(),) * 2
    places = [p.data_ptr() for p in model.layers._flat_weights]
    sharp = SharpBackward(model.parameters(), PERTURBATIONS[name])
    optimizers = [tools(each)[0] for each in (model, expected)]
    for seed in range(5):
        x, y = batch(seed=seed)
        _, state = sharp(lambda: model.loss_and_state(x, y, state))  # noqa: B023
        optimizers[0].step()
        optimizers[0].zero_grad()

        def loss(each, x=x, y=y, carried=expected_state):
            return each.loss_and_state(x, y, carried)[0]

        put_gradient(expected, paper_walk(expected, loss, PERTURBATIONS[name])[-1])
        _, expected_state = expected.loss_and_state(x, y, expected_state)
        optimizers[1].step()
    assert error(flat(model.parameters()), flat(expected.parameters())) < EXACT
    assert error(flat(state), flat(expected_state)) < EXACT
    assert [p.data_ptr() for p in model.layers._flat_weights] == places  # flattened weights stay where they are
    assert same_bits(model.layers._flat_weights, model.layers.parameters())
