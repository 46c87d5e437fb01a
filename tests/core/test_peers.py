"""SAM, ASAM and the family against another library, step by step, where both compute the same; the reason if not."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Schedule, SharpBackward, asam, friendly_sam, gsam, look_sam, sam, wsam
from problems import batch, network
from tolerances import EXACT, PEER_LOOK_SAM, error, flat

STEPS, RATE, RHO = 20, 0.03, 0.05


@pytest.fixture(autouse=True)
def exact_norm(monkeypatch):
    """Their norm of all gradients in float64: they round it to float32, and how far off that is depends on the CPU."""

    def squared_norm(groups, weight_adaptive=False):
        scaled = [p.grad * p if group.get("adaptive") else p.grad for group in groups for p in group["params"]]
        return torch.stack([gradient.square().sum() for gradient in scaled]).sum(0, keepdim=True)

    monkeypatch.setattr("pytorch_optimizer.optimizer.sam.get_global_gradient_norm", squared_norm)


class Constant:
    """A radius that does not follow the learning rate."""

    def step(self):
        return RHO


def theirs(name, model, **options):
    """A function that takes one step of their class."""
    from pytorch_optimizer import GSAM, SAM, WSAM, FriendlySAM, LookSAM  # takes seconds, which collecting need not

    parameters, sgd = model.parameters(), torch.optim.SGD
    if name == "gsam":
        optimizer = GSAM(parameters, sgd(model.parameters(), lr=RATE), model, Constant(), **options)
    elif name == "wsam":
        optimizer = WSAM(model, parameters, sgd, rho=RHO, lr=RATE, **options)
    else:
        kind = {"sam": SAM, "friendly_sam": FriendlySAM, "look_sam": LookSAM}[name]
        optimizer = kind(parameters, sgd, rho=RHO, lr=RATE, **options)

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        if name == "gsam":
            optimizer.set_closure(cross_entropy, x, y)
            optimizer.step()
        else:
            if name != "wsam":
                closure()
            optimizer.step(closure)

    return step


def difference(name, perturbation, made=network, schedule=None, after_first=None, **options):
    """Between the weights of both after twenty steps."""
    peer, model = made(), made()
    their_step, sharp = theirs(name, peer, **options), SharpBackward(model, perturbation, schedule=schedule)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        for seed in range(STEPS):
            x, y = batch(seed=seed)
            their_step(x, y)
            optimizer.zero_grad()
            sharp(lambda x=x, y=y: cross_entropy(model(x), y))
            optimizer.step()
            if seed == 0 and after_first is not None:
                after_first(sharp)
    assert error(flat(made().parameters()), flat(peer.parameters())) > 0.01  # the steps did something
    return error(flat(model.parameters()), flat(peer.parameters()))


@pytest.mark.parametrize(("perturbation", "adaptive"), [(sam(RHO), False), (asam(RHO), True)], ids=["sam", "asam"])
def test_twenty_steps_equal_pytorch_optimizer(perturbation, adaptive):
    assert difference("sam", perturbation, adaptive=adaptive, perturb_eps=0.0) < EXACT


def test_gsam():
    assert difference("gsam", gsam(RHO, alpha=0.4), alpha=0.4) < EXACT


@pytest.mark.parametrize("decouple", [True, False])
def test_wsam_where_the_optimizer_is_sgd_without_momentum(decouple):
    """Their decoupled form gives the sharpness to the weights directly, which SGD does with any gradient."""
    assert difference("wsam", wsam(RHO, gamma=0.8), gamma=0.8, decouple=decouple) < EXACT


def begin_with_the_first_gradient(sharp):
    """m_0 = g_0 as in their class, instead of (1 - decay) g_0 as in the paper."""
    state = sharp.state_dict()
    state["method"]["running mean"] = [tensor / (1 - 0.9) for tensor in state["method"]["running mean"]]
    sharp.load_state_dict(state)


def test_friendly_sam_differs_only_in_the_first_running_mean():
    """They climb g - sigma m_{t-1}, with the older mean: for sigma = 1 the same direction as the paper's g - m_t."""
    walk, options = friendly_sam(RHO, sigma=1.0, decay=0.9), {"sigma": 1.0, "lmbda": 0.9}
    assert difference("friendly_sam", walk, after_first=begin_with_the_first_gradient, **options) < EXACT
    assert difference("friendly_sam", walk, **options) > 1e-6


def one_tensor():
    torch.manual_seed(0)
    return nn.Linear(6, 3, bias=False).double()


def test_look_sam_agrees_on_a_model_of_one_tensor():
    """They decompose the gradient of each tensor, the paper that of the whole model."""
    schedule = Schedule(every=4, weight=1)
    walk, options = look_sam(RHO, alpha=0.7), {"alpha": 0.7, "k": 4}
    assert difference("look_sam", walk, one_tensor, schedule, **options) < PEER_LOOK_SAM
    assert difference("look_sam", walk, network, schedule, **options) > 1e-4
