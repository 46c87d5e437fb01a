"""SharpnessAware is a real torch optimizer: closures, hooks, schedulers, groups, resume, checkpoints, copies."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn.utils import clip_grad_norm_
from torch.optim import lr_scheduler

from gasam import SharpnessAware, ga_sam, sam
from problems import at_home, loss_of, network
from tolerances import flat, same_bits


def closure_of(model, optimizer, seed: int = 1):
    loss = loss_of(model, seed=seed)

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    return closure


def train(model, optimizer, steps, scheduler=None) -> None:
    for step in steps:
        optimizer.step(closure_of(model, optimizer, seed=step))
        if scheduler is not None:
            scheduler.step()


def wrapped(walk, base=torch.optim.SGD, lr=0.1, **options):
    """A network, and the wrapper of its optimizer."""
    model = network()
    return model, SharpnessAware(base(model.parameters(), lr=lr), walk, **options)


def test_step_returns_the_clean_loss():
    model, optimizer = wrapped(ga_sam(0.1, steps=3))
    clean = loss_of(model)().item()
    assert optimizer.step(closure_of(model, optimizer)).item() == clean
    assert len(optimizer.last.losses) == 4
    assert isinstance(optimizer, torch.optim.Optimizer)


@pytest.mark.parametrize("off", ["epsilon", "enabled"])
@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.Adam])
def test_off_is_the_base_optimizer_bit_for_bit(off, base):
    plain = network()
    train(plain, base(plain.parameters(), lr=0.1), range(5))
    model, optimizer = wrapped(ga_sam(0.0 if off == "epsilon" else 0.1, steps=2), base)
    optimizer.enabled = off != "enabled"
    train(model, optimizer, range(5))
    assert len(optimizer.last.losses) == 1
    assert "off" in str(optimizer.last)
    assert same_bits(plain.parameters(), model.parameters())


def test_resume_equals_never_stopping(tmp_path):
    def fresh():
        model, optimizer = wrapped(ga_sam(0.1, steps=2), torch.optim.Adam, lr=0.01)
        return model, optimizer, lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def trained(parts, steps):
        train(*parts[:2], steps, parts[2])
        return parts

    whole, first, resumed = trained(fresh(), range(8)), trained(fresh(), range(4)), fresh()
    torch.save([part.state_dict() for part in first], tmp_path / "checkpoint.pt")
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)  # no pickled objects of ours
    for part, state in zip(resumed, saved, strict=True):
        part.load_state_dict(state)
    trained(resumed, range(4, 8))
    assert same_bits(resumed[0].parameters(), whole[0].parameters())


def test_state_is_the_bases_own():
    model = network()
    base = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = SharpnessAware(base, ga_sam(0.1))
    train(model, optimizer, range(2))
    plain = torch.optim.Adam(network().parameters(), lr=0.01)
    plain.load_state_dict(optimizer.state_dict())  # a plain Adam reads it, and nothing was added
    assert optimizer.state_dict().keys() == base.state_dict().keys()
    assert optimizer.param_groups is base.param_groups
    assert optimizer.state is base.state
    assert {key for state in base.state.values() for key in state} == {"step", "exp_avg", "exp_avg_sq"}
    base.load_state_dict(base.state_dict())  # replaces the lists
    assert optimizer.param_groups is base.param_groups
    train(model, optimizer, [2])


SCHEDULERS = {
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.StepLR(o, 1)]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_attach_without_a_warning(name):
    def rates(wrap: bool, attached_to: str) -> list[float]:
        model = network()
        base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = SharpnessAware(base, ga_sam(0.1)) if wrap else base
        scheduler = SCHEDULERS[name](optimizer if attached_to == "wrapper" else base)
        found = []
        for step in range(4):
            optimizer.step(closure_of(model, optimizer, seed=step))
            scheduler.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    assert rates(True, "wrapper") == rates(True, "base") == rates(False, "base")  # warnings are errors here


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_train_on_as_the_original(copier):
    model, optimizer = wrapped(ga_sam(0.1, steps=2), torch.optim.Adam, lr=0.01)
    lr_scheduler.StepLR(optimizer, 5)
    train(model, optimizer, range(2))
    twin, twin_optimizer = copier((model, optimizer))
    assert twin_optimizer.param_groups[0]["params"][0] is next(twin.parameters())
    train(model, optimizer, range(2, 5))
    train(twin, twin_optimizer, range(2, 5))
    assert same_bits(model.parameters(), twin.parameters())


def test_before_step_sees_the_folded_gradient_and_clips_it():
    model, seen = network(), []
    before = flat(model.parameters())
    base = torch.optim.SGD(model.parameters(), lr=1.0)
    clip = lambda: seen.append(clip_grad_norm_(model.parameters(), 0.01))  # noqa: E731
    train(model, SharpnessAware(base, ga_sam(0.5), before_step=clip), [0])
    assert seen[0] > 0.01
    assert (flat(model.parameters()) - before).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_optimizer_hooks_run():
    seen, (model, optimizer) = [], wrapped(ga_sam(0.1))
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.base.register_step_pre_hook(lambda *_: seen.append("base"))
    optimizer.register_state_dict_post_hook(lambda *_: seen.append("saved"))
    optimizer.register_state_dict_pre_hook(lambda *_: seen.append("saving"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: seen.append("loading"))
    optimizer.register_load_state_dict_post_hook(lambda *_: seen.append("loaded"))
    train(model, optimizer, [0])
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["before", "base", "after", "saving", "saved", "loading", "loaded"]


class TestGroups:
    def test_groups_added_later_take_part(self):
        model = network()
        optimizer = SharpnessAware(torch.optim.SGD(model[0].parameters(), lr=0.1), sam(0.1))
        train(model, optimizer, [0])
        before = [p.detach().clone() for p in model[2].parameters()]
        optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.2})
        train(model, optimizer, [1])
        assert not same_bits(model[2].parameters(), before)
        assert optimizer.param_groups[1]["lr"] == 0.2

    @pytest.mark.parametrize("bad", [{"rho": 0.1}, {"params": [torch.zeros(2, dtype=torch.cfloat)]}])
    def test_a_bad_group_is_refused_when_it_is_added(self, bad):
        model = network()
        optimizer = SharpnessAware(torch.optim.SGD(model[0].parameters(), lr=0.1), sam(0.1))
        with pytest.raises((ValueError, TypeError)):
            optimizer.add_param_group({"params": list(model[2].parameters())} | bad)
        assert len(optimizer.param_groups) == 1
        optimizer.add_param_group({"params": model[2].parameters()})
        assert len(optimizer.param_groups) == 2

    def test_groups_may_stand_still_also_after_loading_a_plain_checkpoint(self):
        model, places = network(), []
        groups = [{"params": model[0].parameters(), "perturb": False}, {"params": model[2].parameters()}]
        optimizer = SharpnessAware(torch.optim.SGD(groups, lr=0.1), sam(0.5))
        plain = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.2)
        optimizer.load_state_dict(plain.state_dict())
        assert optimizer.param_groups[0]["lr"] == 0.2
        model.register_forward_pre_hook(lambda *_: places.append([model[i].weight.detach().clone() for i in (0, 2)]))
        train(model, optimizer, [0])
        assert torch.equal(places[0][0], places[1][0])
        assert not torch.equal(places[0][1], places[1][1])
        assert not torch.equal(model[0].weight, places[0][0])  # still trained


class TestDistributedCheckpoint:
    """Its functions create the state of a fresh optimizer by a step with learning rates of 0 and no closure."""

    @pytest.mark.parametrize("rate", [0.01, torch.tensor(0.01)])
    def test_state_comes_from_a_fresh_optimizer(self, rate):
        model, twin = network(), network()
        optimizer = SharpnessAware(torch.optim.Adam(model.parameters(), lr=rate, foreach=False), ga_sam(0.1))
        with at_home(model.parameters()):
            state = get_optimizer_state_dict(model, optimizer)
        assert optimizer.param_groups[0]["lr"] == rate
        other = SharpnessAware(torch.optim.Adam(twin.parameters(), lr=0.5, foreach=False), ga_sam(0.1))
        set_optimizer_state_dict(twin, other, state)
        assert other.param_groups[0]["lr"] == rate
        assert all(p.grad is None for p in twin.parameters())

    def test_a_rate_above_zero_needs_a_closure(self):
        groups = [{"params": [nn.Parameter(torch.ones(2))], "lr": 0.0}, {"params": [nn.Parameter(torch.ones(2))]}]
        optimizer = SharpnessAware(torch.optim.SGD(groups, lr=0.1), ga_sam(0.1))
        with pytest.raises(RuntimeError, match="needs a closure"):
            optimizer.step()
