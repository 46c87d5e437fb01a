"""SAM, ASAM and the family against another library, step by step, where both compute the same; the reason if not."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Schedule, SharpBackward, asam, friendly_sam, gsam, look_sam, sam, wsam
from problems import batch, closure_of, loss_of, network
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
    """A function that takes one step of their class on the batch of a seed."""
    import pytorch_optimizer  # takes seconds, which collecting need not

    parameters, sgd, kind = model.parameters(), torch.optim.SGD, getattr(pytorch_optimizer, name)
    if name == "GSAM":
        optimizer = kind(parameters, sgd(model.parameters(), lr=RATE), model, Constant(), **options)
    else:
        optimizer = kind(*[model] * (name == "WSAM"), parameters, sgd, rho=RHO, lr=RATE, **options)

    def step(seed):
        plain = closure_of(loss_of(model, seed=seed))

        def closure():
            optimizer.zero_grad()
            return plain()

        if name == "GSAM":
            optimizer.set_closure(cross_entropy, *batch(seed=seed))
            optimizer.step()
        else:
            if name != "WSAM":
                closure()
            optimizer.step(closure)

    return step


def difference(name, perturbation, options, made=network, schedule=None, after_first=lambda sharp: None):
    """Between the weights of both after twenty steps."""
    peer, model = made(), made()
    their_step, sharp = theirs(name, peer, **options), SharpBackward(model, perturbation, schedule=schedule)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        for seed in range(STEPS):
            their_step(seed)
            optimizer.zero_grad()
            sharp(loss_of(model, seed=seed))
            optimizer.step()
            if seed == 0:
                after_first(sharp)
    assert error(flat(made().parameters()), flat(peer.parameters())) > 0.01  # the steps did something
    return error(flat(model.parameters()), flat(peer.parameters()))


@pytest.mark.parametrize(("name", "perturbation", "options"), [
    ("SAM", sam(RHO), {"adaptive": False, "perturb_eps": 0.0}),
    ("SAM", asam(RHO), {"adaptive": True, "perturb_eps": 0.0}),
    ("GSAM", gsam(RHO, alpha=0.4), {"alpha": 0.4}),
    ("WSAM", wsam(RHO, gamma=0.8), {"gamma": 0.8, "decouple": False}),
    # Their decoupled form gives the sharpness to the weights directly, which SGD does with any gradient.
    ("WSAM", wsam(RHO, gamma=0.8), {"gamma": 0.8, "decouple": True}),
])  # fmt: skip
def test_twenty_steps_equal_pytorch_optimizer(name, perturbation, options):
    assert difference(name, perturbation, options) < EXACT


def begin_with_the_first_gradient(sharp):
    """m_0 = g_0 as in their class, instead of (1 - decay) g_0 as in the paper."""
    state = sharp.state_dict()
    state["method"]["running mean"] = [tensor / (1 - 0.9) for tensor in state["method"]["running mean"]]
    sharp.load_state_dict(state)


def test_friendly_sam_differs_only_in_the_first_running_mean():
    """They climb g - sigma m_{t-1}, with the older mean: for sigma = 1 the same direction as the paper's g - m_t."""
    case = "FriendlySAM", friendly_sam(RHO, sigma=1.0, decay=0.9), {"sigma": 1.0, "lmbda": 0.9}
    assert difference(*case, after_first=begin_with_the_first_gradient) < EXACT
    assert difference(*case) > 1e-6


def one_tensor():
    torch.manual_seed(0)
    return nn.Linear(6, 3, bias=False).double()


def test_look_sam_agrees_on_a_model_of_one_tensor():
    """They decompose the gradient of each tensor, the paper that of the whole model."""
    case, schedule = ("LookSAM", look_sam(RHO, alpha=0.7), {"alpha": 0.7, "k": 4}), Schedule(every=4, weight=1)
    assert difference(*case, one_tensor, schedule) < PEER_LOOK_SAM
    assert difference(*case, network, schedule) > 1e-4
