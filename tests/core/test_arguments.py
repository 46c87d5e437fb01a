"""Bad arguments: one clear sentence each, with the argument, the value and what is allowed."""

import math

import pytest
import torch
from torch import nn

from gasam import FreeLB, Perturbation, SharpBackward, SharpnessAware, asam, frozen_batchnorm, ga_sam, same_noise
from problems import batch, network

BAD_OPTIONS = {
    "epsilon": ([-0.1, math.nan, math.inf, "0.1", True], "epsilon must be a finite number >= 0, got"),
    "norm": ([1.0, 0.5, -2, math.nan, "2", None], "norm must be a number > 1 or math.inf, got"),
    "steps": ([0, -1, 1.5, True, "1", None], "steps must be a whole number >= 1, got"),
    "step_size": ([0.0, -1.0, math.nan, math.inf, "1"], "step_size must be a finite number > 0, or None"),
    "scale": (["fisher", "", None, ["one"]], "scale must be one of 'one', .* or a function of a Group, got"),
    "granularity": (["tensor", None], "granularity must be one of 'element', .* 'model', got"),
    "risk": (["max", None], "risk must be one of 'mean', 'final', got"),
    "floor": ([-1.0, math.nan], "floor must be a finite number >= 0, got"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (values, _) in BAD_OPTIONS.items() for value in values]
)
def test_bad_option_is_named_with_its_value(name, value):
    words = BAD_OPTIONS[name][1]
    with pytest.raises(ValueError, match=words) as caught:
        Perturbation(**{"epsilon": 0.1} | {name: value})
    assert repr(value) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_are_keywords_and_fixed():
    with pytest.raises(TypeError):
        Perturbation(0.1)
    with pytest.raises(AttributeError):
        ga_sam(0.1).epsilon = 0.2


def test_negative_constant_of_asam_is_told():
    with pytest.raises(ValueError, match="eta must be a finite number >= 0, got -1"):
        asam(0.1, eta=-1)


BAD_PARAMETERS = {
    "empty": (lambda: [], ValueError, "parameters is empty"),
    "a generator read twice": (lambda: iter(()), ValueError, "only once"),
    "a model without weights": (nn.Sequential, ValueError, "Sequential has no floating-point parameters"),
    "a tensor": (lambda: torch.zeros(3), TypeError, "got Tensor"),
    "nothing": (lambda: None, TypeError, "got NoneType"),
    "numbers": (lambda: [1.0], TypeError, "parameter 0 must be a tensor, got float"),
    "a group without params": (lambda: [{"lr": 0.1}], ValueError, "key 'params', got"),
    "complex": (lambda: [("fft", torch.zeros(2, dtype=torch.cfloat))], TypeError, "'fft' has type torch.complex64"),
    "integer": (lambda: [("table", torch.zeros(2, dtype=torch.int64))], TypeError, "'table' has type torch.int64"),
    "unnamed integer": (lambda: [torch.zeros(2), torch.zeros(2, dtype=torch.int8)], TypeError, "parameter 1 has type"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PARAMETERS)
def test_bad_parameters_are_told(name):
    make, kind, words = BAD_PARAMETERS[name]
    with pytest.raises(kind, match=words) as caught:
        SharpBackward(make(), ga_sam(0.1))
    assert "\n" not in str(caught.value)


def test_complex_and_integer_parameters_may_stand_still():
    model = network()
    other = [torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.cfloat)]
    groups = [{"params": model.parameters()}, {"params": other, "perturb": False}]
    assert len(SharpBackward(groups, ga_sam(0.1)).weights.tensors) == 4


def test_module_granularity_needs_names():
    perturbation = Perturbation(epsilon=0.1, granularity="module")
    with pytest.raises(ValueError, match=r"needs the parameters' names: give model\.named_parameters"):
        SharpBackward(network().parameters(), perturbation)
    SharpBackward(network().named_parameters(), perturbation)


def groups_of_two(*prefixes):
    return [{"params": list(network().named_parameters(prefix=prefix))} for prefix in prefixes]


@pytest.mark.parametrize("make", [SharpBackward, lambda g, p: SharpnessAware(torch.optim.SGD(g, lr=0.1), p)])
def test_module_granularity_needs_the_names_of_two_models_apart(make):
    """Else the modules that share a name would share a scale."""
    perturbation = Perturbation(epsilon=0.1, granularity="module")
    with pytest.raises(ValueError, match=r"name once, got '0\.weight' twice, .* prefix for each") as caught:
        make(groups_of_two("", ""), perturbation)
    assert "\n" not in str(caught.value)
    make(groups_of_two("first", "second"), perturbation)
    make(groups_of_two("", ""), ga_sam(0.1))


def test_step_without_closure_is_told():
    optimizer = SharpnessAware(torch.optim.SGD(network().parameters(), lr=0.1), ga_sam(0.1))
    with pytest.raises(RuntimeError, match=r"needs a closure .* use SharpBackward"):
        optimizer.step()


def test_base_must_be_an_optimizer():
    with pytest.raises(TypeError, match="base must be a torch optimizer, built as usual, got type"):
        SharpnessAware(torch.optim.SGD, ga_sam(0.1))


def optimizer_with(perturbation, **options):
    return SharpnessAware(torch.optim.SGD(network().parameters(), lr=0.1), perturbation, **options)


def backward_with(perturbation, **options):
    return SharpBackward(network().parameters(), perturbation, **options)


@pytest.mark.parametrize("make", [backward_with, optimizer_with])
@pytest.mark.parametrize("value", [0.05, ga_sam])
def test_perturbation_must_be_one(make, value):
    with pytest.raises(TypeError, match=r"perturbation must be a Perturbation such as ga_sam\(1e-4\), got"):
        make(value)


@pytest.mark.parametrize("make", [backward_with, optimizer_with])
@pytest.mark.parametrize("around", [same_noise, frozen_batchnorm, 1])
def test_around_must_be_a_function_of_the_pass(make, around):
    with pytest.raises(TypeError, match=r"around must be a function of \(k, last\), got"):
        make(ga_sam(0.1), around=around)


def test_loss_instead_of_a_function_is_told():
    model = network()
    with pytest.raises(TypeError, match="put `lambda:` before the loss"):
        SharpBackward(model.parameters(), ga_sam(0.1))(model(batch()[0]).mean())


def test_single_groups_and_dictionaries_of_names_are_read():
    model = network()
    assert len(SharpBackward({"params": model.parameters()}, ga_sam(0.1)).parameters) == 4
    named = SharpBackward(dict(model.named_parameters()), Perturbation(epsilon=0.1, granularity="module"))
    assert list(named.weights.names) == [name for name, _ in model.named_parameters()]


def test_objects_show_what_they_are():
    assert repr(backward_with(ga_sam(0.1))).startswith("SharpBackward(4 parameters, Perturbation(epsilon=0.1")
    assert repr(optimizer_with(ga_sam(0.1))).startswith("SharpnessAware(Perturbation(epsilon=0.1")


def test_base_that_needs_a_closure_is_told():
    with pytest.raises(TypeError, match="step without a closure, got LBFGS"):
        SharpnessAware(torch.optim.LBFGS(network().parameters()), ga_sam(0.1))


BAD_NOISE = {
    "a linear layer": ({"embeddings": nn.Linear(2, 2)}, TypeError, "nn.Embedding modules, got Linear"),
    "none": ({"embeddings": []}, TypeError, "got none"),
    "start": ({"start": "normal"}, ValueError, "start must be 'zero' or 'uniform', got 'normal'"),
    "epsilon": ({"epsilon": -1.0}, ValueError, "epsilon must be a finite number >= 0"),
    "norm": ({"norm": 1.0}, ValueError, "norm must be"),
    "steps": ({"steps": 0}, ValueError, "steps must be"),
}


@pytest.mark.parametrize("name", BAD_NOISE)
def test_bad_noise_options_are_told(name):
    options, kind, words = BAD_NOISE[name]
    with pytest.raises(kind, match=words):
        FreeLB(**{"embeddings": nn.Embedding(4, 2), "epsilon": 0.1} | options)
