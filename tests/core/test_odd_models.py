"""Models as they come: unused, frozen, tied, mixed, empty, changing weights, and vectors in ASAM."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Perturbation, SharpBackward, asam, friendly_sam, ga_sam, layer_sam, momentum_sam, sam, sam_on
from problems import at_home, batch, gradient_of, loss_of, network, through_backward
from tolerances import EXACT, error, same_bits


class Dropped(nn.Module):
    """Two layers; the second takes part in the passes that are named."""

    def __init__(self, passes) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3).double(), nn.Linear(6, 3).double()
        self.passes, self.calls = passes, 0

    def forward(self, x):
        self.calls += 1
        return self.first(x) + (self.second(x) if self.calls - 1 in self.passes else 0)


@pytest.mark.parametrize(("passes", "scale", "granularity"), [
    ((0,), "gradient_strength", "layer"), ((1,), "one", "model"), ((2,), "weight", "element"),
    ((0, 2), "weight", "layer"), ((1, 2), "gradient_strength", "model"), ((), "one", "element"),
])  # fmt: skip
def test_gradient_in_some_passes_only(passes, scale, granularity):
    """What moved is moved back; the fold counts a missing gradient as zero; what has none at first takes no part."""
    model, again = Dropped(passes), Dropped(passes)
    again.load_state_dict(model.state_dict())
    perturbation = Perturbation(epsilon=0.05, scale=scale, granularity=granularity, steps=2)
    with at_home(model.parameters()):
        SharpBackward(model.parameters(), perturbation)(loss_of(model))
    assert (model.second.weight.grad is not None) == bool(passes)

    # The same walk on the layers that have a gradient in the clean pass, the other one standing still.
    groups = [{"params": again.first.parameters()}, {"params": again.second.parameters(), "perturb": 0 in passes}]
    SharpBackward(groups, perturbation)(loss_of(again))
    for found, other in zip(model.parameters(), again.parameters(), strict=True):
        assert (found.grad is None) == (other.grad is None)
        assert found.grad is None or torch.equal(found.grad, other.grad)


def test_frozen_weights_stay_and_may_thaw():
    model, seen = network(), []
    model[0].requires_grad_(False)
    model[0].weight.grad = torch.ones_like(model[0].weight)  # left over from before
    model.register_forward_pre_hook(lambda *_: seen.append(model[0].weight.detach().clone()))
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    sharp(loss_of(model))
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    model[0].requires_grad_(True)
    model.zero_grad()
    sharp(loss_of(model))
    assert not torch.equal(seen[2], seen[3])


@pytest.mark.parametrize("walk", [sam(0.5), asam(0.5), layer_sam(0.5), ga_sam(0.5, steps=2), ga_sam(budget=1, cap=0.1)])
def test_all_may_stand_still_also_what_has_no_gradient(walk):
    model = network()
    quantised = nn.Parameter(torch.zeros(4, dtype=torch.uint8), requires_grad=False)
    trace, gradient = through_backward(
        model, walk, given={"params": [*model.parameters(), quantised], "perturb": False}
    )
    assert not trace.climbed
    assert error(gradient, gradient_of(model, loss_of(model)())) < EXACT


def test_tied_weights_move_once():
    torch.manual_seed(0)
    tied, (x, _) = nn.Linear(6, 6).double(), batch()
    found = []
    for given in ([tied.weight, tied.bias], [tied.weight, tied.weight, tied.bias]):
        tied.zero_grad()
        SharpBackward(given, sam(0.1))(lambda: (tied(tied(x)) ** 2).mean())
        found.append([p.grad.clone() for p in tied.parameters()])
    assert same_bits(*found)


def test_the_perturbation_may_change_between_steps():
    model = network()
    sharp = SharpBackward(model.parameters(), sam(0.1))
    for perturbation in (ga_sam(0.1, steps=3), dataclasses.replace(sam(0.2), granularity="filter", steps=2), sam(0.1)):
        sharp.perturbation = perturbation
        sharp(loss_of(model))
        assert torch.equal(
            torch.stack(sharp.last.losses), torch.stack(through_backward(network(), perturbation)[0].losses)
        )


def test_another_perturbation_is_followed_whole():
    """What moves, what is kept and what was measured; the unit of |a| and the last report are the new one's."""
    model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)).double()
    sharp, loss = SharpBackward(model, sam(0.05)), loss_of(model)
    for _ in range(25):
        sharp(loss)
    sharp.perturbation = sam_on(0.05)
    sharp(loss)
    assert sharp.last.groups.labels == ["1.weight", "1.bias"]
    assert sharp.metrics()["step"] == 25
    sharp.perturbation = friendly_sam(0.05)
    sharp(loss)
    assert len(sharp.last.groups.labels) == 6
    sharp.perturbation = momentum_sam(0.05)
    assert not sharp.walks()
    sharp.perturbation = sam(0.05, granularity="module")
    sharp(loss)
    assert sharp.last.groups.labels == ["0", "1", "2"]


@pytest.mark.parametrize("count", [5, 70, 40_000])
def test_own_scales_of_weights_see_only_weights(count):
    """1 / |w| is infinite where small tensors are filled up with zeros."""
    w = nn.Parameter(torch.rand(count).double() + 0.1)
    home, seen = w.detach().clone(), []
    walk = Perturbation(epsilon=0.01, norm=2.0, granularity="element", scale=lambda group: 1 / group.weight)
    sharp = SharpBackward([("w", w), ("empty", nn.Parameter(torch.zeros(0).double()))], walk)
    sharp(lambda: (seen.append(w.detach().clone()), (w**3).sum())[1])
    direction = 3 * home**2 / home  # T g
    expected = 0.01 * direction / direction.norm() / home
    assert error(seen[1] - home, expected) < EXACT
    assert sharp.last.verdict() == "fine"


def test_mixed_types_share_one_walk():
    model, (x, y), walk = network(), batch(torch.float32), ga_sam(0.1, norm=2.0, steps=2)
    model[0].float()
    loss = lambda: cross_entropy(model[2](model[1](model[0](x)).double()), y)  # noqa: E731
    with at_home(model.parameters()):
        found, _ = through_backward(model, walk, loss=loss)
    assert found.climbed
    expected, _ = through_backward(network(), walk)
    assert error(torch.stack(found.losses), torch.stack(expected.losses)) < 1e-5
