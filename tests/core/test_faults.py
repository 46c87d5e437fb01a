"""Faults in the walk, the planted bugs that a campaign must notice, and the bugs that one has found."""

import warnings

import pytest
import torch
from benchmarks.faults import page, planted, processes, walk
from torch.nn.functional import cross_entropy

from gasam import Schedule, SharpBackward, SharpnessAware, ga_sam
from gasam.portions import Portion
from gasam.schedule import Strength
from gasam.watch import Watch
from gasam.weights import run_again_if_interrupted
from problems import batch, network
from tolerances import same_bits


def test_no_fault_loses_anything():
    found = walk.run(seed=11, faults=120)
    assert found["lost"] == []
    assert found["faults"] == 120
    assert len(found["kinds"]) == len(walk.KINDS)


@pytest.mark.parametrize(
    "bug",
    [
        "the restore skips one tensor",
        "the restore ignores interrupts",
        "a half-finished pass leaves its gradients",
        "a failed step advances the schedule",
        "the method keeps NaN",
    ],
)
def test_campaign_notices_a_planted_bug(bug):
    assert planted.run(names=[bug])[bug] is not None


@pytest.mark.slow
@pytest.mark.parametrize("bug", planted.BUGS)
def test_campaign_notices_every_planted_bug(bug):
    assert planted.run(names=[bug])[bug] is not None


def test_faults_follow_from_the_seed():
    first, second = (walk.run(seed=5, faults=20) for _ in range(2))
    assert first | {"seconds": 0} == second | {"seconds": 0}


def test_page_is_up_to_date():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(page.results())


@pytest.mark.parametrize(
    ("part", "faults", "bugs"),
    [("walk", 10_000, 8), ("processes", 300, 0), ("runs", 1_000, 8), ("cluster", 5, 0), ("inputs", 500, 0)],
)
def test_recorded_campaign_is_large_and_lost_nothing(part, faults, bugs):
    if part not in page.results():
        pytest.skip(f"no campaign is recorded: run `python -m benchmarks faults --only {part}`")
    found = page.results()[part]
    assert found["faults"] >= faults
    assert found["lost"] == []
    assert len(found.get("planted", {})) >= bugs
    assert None not in found.get("planted", {}).values()


@pytest.mark.slow
def test_no_fault_in_two_processes_loses_anything():
    found = processes.campaign(seed=1, size="sample")
    assert found["lost"] == []
    assert found["faults"] == sum(map(sum, processes.SIZES["sample"].values()))


def test_page_is_made_from_the_parts_that_there_are():
    text = page.page({"cluster": {"faults": 3, "lost": ["a record"], "kinds": {"node killed": 3}}})
    assert "| a Ray cluster | 3 | 1 |" in text
    assert "| node killed | 3 |" in text
    assert "| the walk, one process | not run |" in text
    assert "## Faults in the walk" not in text


class Once:
    """Calls a method, and raises the first time instead, or after it."""

    def __init__(self, monkeypatch, owner, name, failure, after=False):
        self.raised = False
        original = getattr(owner, name)

        def failing(inner, *args, **kwargs):
            found = original(inner, *args, **kwargs) if self.raised or after else None
            if not self.raised:
                self.raised = True
                raise failure
            return found

        monkeypatch.setattr(owner, name, failing)


def test_portion_that_fails_once_is_restored(monkeypatch):
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    Once(monkeypatch, Portion, "restore", RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        sharp(lambda: cross_entropy(model(x), y))
    assert same_bits(model.parameters(), before)


def test_walk_after_one_that_could_not_be_restored_starts_from_the_present_weights(monkeypatch):
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))

    def never(self):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(Portion, "restore", never)
        with pytest.raises(RuntimeError, match="out of memory"):
            sharp(lambda: cross_entropy(model(x), y))
    left = [p.detach().clone() for p in model.parameters()]
    sharp(lambda: cross_entropy(model(x), y))
    assert same_bits(model.parameters(), left)


@pytest.mark.parametrize(("owner", "name"), [(Watch, "add"), (Strength, "_count"), (Strength, "_end_step")])
@pytest.mark.parametrize("after", [False, True])
def test_failure_after_the_walk_undoes_the_step(owner, name, after, monkeypatch):
    model, (x, y) = network(), batch()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    gradients = [p.grad.clone() for p in model.parameters()]
    sharp = SharpBackward(model.parameters(), ga_sam(0.1), schedule=Schedule(warmup=3, progress=0.2))
    sharp.load_state_dict(sharp.state_dict() | {"initial": 2.0, "smoothed": 1.0})
    state = sharp.state_dict()
    Once(monkeypatch, owner, name, KeyboardInterrupt, after)
    with pytest.raises(KeyboardInterrupt):
        sharp(lambda: cross_entropy(model(x), y))
    assert same_bits([p.grad for p in model.parameters()], gradients)
    assert sharp.state_dict() == state


@pytest.mark.parametrize("name", ["_count", "_end_step"])
@pytest.mark.parametrize("after", [False, True])
def test_step_of_the_base_is_counted_although_the_count_is_interrupted(name, after, monkeypatch):
    model, (x, y) = network(), batch()
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), ga_sam(0.1), schedule=Schedule(warmup=3))

    def closure():
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    Once(monkeypatch, Strength, name, KeyboardInterrupt, after)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert optimizer.strength.step == 1


def test_interrupt_just_before_the_gradients_are_undone(monkeypatch):
    """The cleanup is cut off before it has begun."""
    model = network()
    calls = []

    def cut_off(action):
        calls.append(action)
        if len(calls) == 1:
            raise KeyboardInterrupt
        run_again_if_interrupted(action)

    def failing():
        monkeypatch.setattr("gasam.weights.run_again_if_interrupted", cut_off)
        raise ValueError

    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    with warnings.catch_warnings(), pytest.raises(KeyboardInterrupt):
        sharp(failing)
    assert calls
    assert all(p.grad is not None and (p.grad == 1).all() for p in model.parameters())
