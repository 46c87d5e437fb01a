"""Mistakes in a loss function that would otherwise go unnoticed: each is named, with its cure."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, SharpnessAware, frozen_batchnorm, ga_sam, sam
from problems import batch, network


@pytest.fixture
def parts():
    model = network()
    return model, SharpBackward(model, ga_sam(0.1)), *batch()


def messages_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught]


def test_precomputed_loss_is_refused(parts):
    model, sharp, x, y = parts
    loss = cross_entropy(model(x), y)
    with pytest.raises(
        RuntimeError, match=r"computed before it was called.*sharp\(lambda: loss_function\(model\(x\), y\)\)"
    ):
        sharp(lambda: loss)


@pytest.mark.parametrize("enabled", [True, False])
def test_precomputed_features_are_refused_also_while_the_walk_waits(parts, enabled):
    model, sharp, x, y = parts
    sharp.enabled = enabled
    features = model[0](x)
    for _ in range(2):  # also in the second attempt
        with pytest.raises(RuntimeError, match="computed before it was called"):
            sharp(lambda: cross_entropy(model[2](features.tanh()), y))


def test_later_calls_explain_torchs_message(parts):
    model, sharp, x, y = parts
    sharp(lambda: cross_entropy(model(x), y))
    loss = cross_entropy(model(x), y)
    with pytest.raises(RuntimeError, match="compute everything from the inputs inside the function"):
        sharp(lambda: loss)


def test_closures_explain_torchs_message():
    model, (x, y) = network(), batch()
    loss = cross_entropy(model(x), y)
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), ga_sam(0.1))

    def closure():
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match="compute everything from the inputs inside the function"):
        optimizer.step(closure)


def test_other_failures_are_as_they_were(parts):
    with pytest.raises(ZeroDivisionError):
        parts[1](lambda: 1 / 0)


def test_threads_and_detached_results_are_fine(parts):
    """Autograd counts its nodes for each thread, so their age can't be told from a number."""
    model, sharp, x, y = parts
    model(x).sum().backward()
    model.zero_grad()
    teacher = model(x)
    with ThreadPoolExecutor(2) as pool:
        call = lambda: cross_entropy(torch.cat(list(pool.map(model, [x[:6], x[6:]]))), y) + teacher.detach().sum()  # noqa: E731
        assert messages_of(lambda: sharp(call)) == []


def test_autocast_around_an_earlier_forward_is_fine():
    model, (x, y) = network(torch.float32), batch(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
        SharpBackward(model, ga_sam(0.1))(lambda: cross_entropy(model(x), y))


def test_data_from_outside_is_fine(parts):
    model, sharp, x, y = parts
    x = x * 2
    weights = torch.ones(3, dtype=x.dtype, requires_grad=True)  # a leaf of the caller's own
    assert messages_of(lambda: sharp(lambda: cross_entropy(model(x), y, weight=weights.detach()))) == []


def test_consumed_iterators_are_named(parts):
    model, sharp, *_ = parts
    batches = iter([batch(seed=i) for i in range(4)])

    def loss():
        x, y = next(batches)
        return cross_entropy(model(x), y)

    messages = messages_of(lambda: sharp(loss))
    assert len(messages) == 1
    assert "uses the iterator 'batches'" in messages[0]
    assert "call next() before" in messages[0]


bias = iter([1])


def test_attributes_are_not_taken_for_variables(parts):
    model, sharp, x, y = parts
    assert messages_of(lambda: sharp(lambda: cross_entropy(model(x), y) + model[0].bias.sum())) == []


def test_iterables_that_can_be_read_again_are_fine(parts):
    model, sharp, *_ = parts
    batches = [batch(seed=i) for i in range(4)]
    assert messages_of(lambda: sharp(lambda: sum(cross_entropy(model(x), y) for x, y in batches))) == []


def test_overwritten_state_is_named():
    cell = nn.RNNCell(6, 5).double()
    head = nn.Linear(5, 3).double()
    x, y = batch()
    hidden = torch.zeros(12, 5).double()

    def loss():
        nonlocal hidden
        hidden = cell(x, hidden.detach())
        return cross_entropy(head(hidden), y)

    sharp = SharpBackward(nn.ModuleList([cell, head]), ga_sam(0.1))
    messages = messages_of(lambda: sharp(loss))
    assert len(messages) == 1
    assert "reads and overwrites 'hidden'" in messages[0]
    assert "(loss, hidden)" in messages[0]


def test_results_kept_for_later_are_fine(parts):
    model, sharp, x, y = parts
    logits = None

    def loss():
        nonlocal logits
        logits = model(x)
        return cross_entropy(logits, y)

    assert messages_of(lambda: sharp(loss)) == []
    assert logits is not None


def test_scaler_inside_the_function_is_named(parts):
    model, sharp, x, y = parts
    scaler = torch.amp.GradScaler("cpu")
    messages = messages_of(lambda: sharp(lambda: scaler.scale(cross_entropy(model(x), y))))
    assert len(messages) == 1
    assert "multiplies its loss by 65536, as GradScaler.scale does" in messages[0]


@pytest.mark.parametrize("factor", [0.5, 1024, 1024.0])
def test_ordinary_factors_are_fine(parts, factor):
    model, sharp, x, y = parts
    assert messages_of(lambda: sharp(lambda: factor * cross_entropy(model(x), y))) == []


def test_files_and_caches_are_fine(parts, tmp_path):
    model, sharp, x, y = parts
    mask = None
    with (tmp_path / "log").open("w") as log:

        def loss():
            nonlocal mask
            if mask is None:
                mask = torch.ones_like(x)
            value = cross_entropy(model(x * mask), y)
            print(value.item(), file=log)
            return value

        assert messages_of(lambda: sharp(loss)) == []


def test_returned_dictionaries_are_not_changed(parts):
    model, sharp, x, y = parts
    result = {}

    def loss():
        result["loss"] = cross_entropy(model(x), y)
        return result

    assert sharp(loss)["loss"].item() == sharp.last.losses[0].item() != sharp.last.losses[1].item()


def test_lazy_modules_are_named():
    with pytest.raises(ValueError, match="Sequential has lazy modules without weights yet: run one forward pass first"):
        SharpBackward(nn.Sequential(nn.LazyLinear(3)))


def test_child_called_module_keeps_its_name():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(6, 3)
            self.weight = nn.Parameter(torch.ones(3))

    assert SharpBackward(Wrapper(), ga_sam(0.1)).weights.names == ["weight", "module.weight", "module.bias"]


def test_scale_of_the_gradient_is_read_after_the_function():
    model, (x, y) = network(), batch()
    seen = {}

    def loss():
        seen["rows"] = len(y)
        return cross_entropy(model(x), y, reduction="sum")

    sharp = SharpBackward(model, gradient_scale=lambda: seen["rows"])
    returned = sharp(loss)
    assert sharp.state_dict()["losses"][0] == pytest.approx(returned.item() / 12)


def test_dictionaries_and_outputs_give_their_loss(parts):
    model, sharp, x, y = parts
    for make in (dict, MappingProxyType):
        returned = sharp(lambda make=make: make({"loss": cross_entropy(model(x), y), "rows": 12}))
        assert returned["rows"] == 12
        assert not returned["loss"].requires_grad


def test_hugging_face_outputs_give_their_loss():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    model, (x, y) = network(), batch()

    def loss():
        logits = model(x)
        return outputs.SequenceClassifierOutput(loss=cross_entropy(logits, y), logits=logits)

    returned = SharpBackward(model, ga_sam(0.1))(loss)
    assert isinstance(returned, outputs.SequenceClassifierOutput)
    assert not returned.loss.requires_grad
    assert returned.logits.shape == (12, 3)


def test_dictionaries_without_a_loss_are_named(parts):
    with pytest.raises(TypeError, match="an output with a loss, got dict"):
        parts[1](lambda: {"logits": torch.zeros(3)})


def test_first_step_is_explained():
    optimizer = SharpnessAware(torch.optim.SGD(network().parameters(), lr=0.1), sam(0.1))
    with pytest.raises(RuntimeError, match=r"has no first_step and second_step: call step\(closure\) once"):
        optimizer.first_step(zero_grad=True)


def test_frozen_and_quantised_parameters_of_a_model_are_skipped():
    model, (x, y) = network(), batch()
    model[0].requires_grad_(False)
    model.quantised = nn.Parameter(torch.zeros(4, dtype=torch.uint8), requires_grad=False)
    model.narrow = nn.Parameter(torch.zeros(4).to(torch.float8_e4m3fn), requires_grad=False)
    before = model[0].weight.clone()
    sharp = SharpBackward(model, ga_sam(0.1))

    def loss():
        assert torch.equal(model[0].weight, before)
        return cross_entropy(model[:3](x), y)

    sharp(loss)
    assert model[0].weight.grad is None
    assert sharp.last.groups.find_labels() == ["2.weight", "2.bias"]


def test_model_of_the_optimizer_must_be_one():
    with pytest.raises(TypeError, match=r"model must be an nn\.Module, got list"):
        SharpnessAware(torch.optim.SGD(network().parameters(), lr=0.1), model=[1])
    with pytest.raises(TypeError, match="frozen_batchnorm needs the model, got list"):
        frozen_batchnorm([1])
