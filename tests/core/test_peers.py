"""SAM and element-wise ASAM against another library's, step by step."""

import pytest
import torch
from pytorch_optimizer import SAM
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, asam, sam
from problems import batch, network
from tolerances import PEER, error, flat

STEPS = 20


@pytest.mark.parametrize(("perturbation", "adaptive"), [(sam(0.05), False), (asam(0.5), True)], ids=["sam", "asam"])
def test_twenty_steps_equal_pytorch_optimizer(perturbation, adaptive):
    theirs, ours = network(), network()
    peer = SAM(theirs.parameters(), torch.optim.SGD, rho=perturbation.epsilon, adaptive=adaptive, lr=0.03)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.03)
    sharp = SharpBackward(ours.parameters(), perturbation)
    for step in range(STEPS):
        x, y = batch(seed=step)

        def closure(x=x, y=y):
            loss = cross_entropy(theirs(x), y)
            loss.backward()
            return loss

        closure()
        peer.step(closure)
        peer.zero_grad()
        optimizer.zero_grad()
        sharp(lambda x=x, y=y: cross_entropy(ours(x), y))
        optimizer.step()
    assert error(flat(ours.parameters()), flat(theirs.parameters())) < PEER
    plain = network()
    assert error(flat(plain.parameters()), flat(theirs.parameters())) > 0.01  # the steps did something
