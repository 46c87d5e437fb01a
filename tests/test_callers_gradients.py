"""What the caller has in `.grad`: added to in place, and unchanged after a failure."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, ga_sam, sam
from problems import batch, network
from tolerances import EXACT, error, flat, same_bits


class TestCallersGradients:
    @pytest.mark.parametrize(
        "perturbation", [ga_sam(0.1), sam(0.1), ga_sam(0.1, steps=3)], ids=["mean", "final", "K=3"]
    )
    def test_a_flat_buffer_gets_the_gradient(self, perturbation):
        model, (x, y) = network(), batch()
        expected = network()
        SharpBackward(expected.parameters(), perturbation)(lambda: cross_entropy(expected(x), y))
        sizes = [p.numel() for p in model.parameters()]
        buffer = torch.full((sum(sizes),), 2.0, dtype=torch.float64)
        for parameter, part in zip(model.parameters(), buffer.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        SharpBackward(model.parameters(), perturbation)(lambda: cross_entropy(model(x), y))
        assert error(buffer, 2.0 + flat([p.grad for p in expected.parameters()])) < EXACT

    @pytest.mark.parametrize("k", [0, 1, 2])
    def test_a_failure_leaves_the_buffer_as_it_was(self, k):
        model, (x, y) = network(), batch()
        tensors = [torch.randn_like(p) for p in model.parameters()]
        before, calls = [t.clone() for t in tensors], []
        for parameter, tensor in zip(model.parameters(), tensors, strict=True):
            parameter.grad = tensor

        def backward(loss):
            loss.backward()
            calls.append(1)
            if len(calls) == k + 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            SharpBackward(model.parameters(), ga_sam(0.1, steps=2), backward=backward)(
                lambda: cross_entropy(model(x), y)
            )
        assert same_bits(tensors, before)
        assert all(p.grad is tensor for p, tensor in zip(model.parameters(), tensors, strict=True))

    def test_an_error_of_the_function_is_not_hidden(self):
        a, b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        a.grad, b.grad = torch.ones(3), torch.ones(3)
        calls = []

        def loss():
            calls.append(1)
            if len(calls) == 2:
                a.data = torch.zeros(4)
                raise KeyError("mine")
            return (a**2).sum() + (b**2).sum()

        with pytest.raises((KeyError, RuntimeError)):
            SharpBackward([a, b], ga_sam(0.1, steps=2))(loss)
        assert (b.grad == 1).all()

    @pytest.mark.parametrize("kind", ["requires grad", "expanded"])
    def test_unusual_gradients_are_added_to(self, kind):
        a = nn.Parameter(torch.randn(3))
        a.grad = torch.ones(3, requires_grad=True) if kind == "requires grad" else torch.ones(1).expand(3)
        SharpBackward([a], sam(0.1))(lambda: 2 * a.sum())
        assert torch.equal(a.grad.detach(), torch.full((3,), 3.0))

    @pytest.mark.parametrize("steps", [1, 3])
    def test_two_parameters_may_share_one_gradient(self, steps):
        a, b, shared = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2)), torch.zeros(2)
        a.grad = b.grad = shared
        SharpBackward([a, b], ga_sam(0.1, steps=steps))(lambda: 3 * a.sum() + 5 * b.sum())
        assert torch.allclose(shared, torch.full((2,), 8.0))

    def test_clearing_gradients_in_the_function_is_refused(self):
        model = nn.Linear(2, 1)

        def loss():
            model.zero_grad()
            return model(torch.ones(1, 2)).sum()

        with pytest.raises(RuntimeError, match="cleared the gradients"):
            SharpBackward(model.parameters(), ga_sam(0.1))(loss)
