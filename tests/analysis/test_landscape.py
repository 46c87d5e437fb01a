"""Portions of the loss: each point against a direct evaluation, and the model as before afterwards."""

import copy
import json

import torch
from curvature import OBJECTIVE, uneven
from torch import nn

from gasam.analysis.landscape import filter_normalised, line, plane, random_directions
from gasam.analysis.objective import CrossEntropy, Objective, mean_loss, plain_value
from problems import batch, network
from tolerances import EXACT, error

ALPHAS = (-0.5, 0.0, 0.3, 1.0, 2.0)


def normalised_network(seed: int) -> nn.Sequential:
    model = nn.Sequential(network(seed=seed), nn.BatchNorm1d(3).double())
    x, _ = batch(seed=seed)
    for _ in range(20):
        model(x)
    return model


def direct(model, change) -> float:
    """The loss of a copy whose tensors are changed one by one."""
    other = copy.deepcopy(model).eval()
    with torch.no_grad():
        for name, tensor in [*other.named_parameters(), *other.named_buffers()]:
            tensor.copy_(change(name, tensor))
    return mean_loss(other, OBJECTIVE, uneven())


def test_line_along_a_direction_is_direct_evaluation():
    model = network()
    direction = {name: torch.randn_like(weight) for name, weight in model.named_parameters()}
    found = line(model, OBJECTIVE, uneven(), ALPHAS, direction=direction)
    expected = [direct(model, lambda name, w, at=at: w + at * direction[name]) for at in ALPHAS]
    assert error(found, expected) < EXACT


def test_line_towards_another_model_takes_its_statistics_along():
    """Buffers too, but not beyond the ends."""
    model, other = normalised_network(0), normalised_network(5)
    ends = other.state_dict()
    found = line(model, OBJECTIVE, uneven(), ALPHAS, other=ends)

    def between(at):
        inside = min(max(at, 0.0), 1.0)

        def change(name, tensor):
            if not tensor.is_floating_point():
                return tensor
            return tensor + (inside if "running" in name else at) * (ends[name] - tensor)

        return change

    assert error(found, [direct(model, between(at)) for at in ALPHAS]) < EXACT
    assert found[ALPHAS.index(1.0)] == mean_loss(other.eval(), OBJECTIVE, uneven())
    assert found[ALPHAS.index(0.0)] == mean_loss(model.eval(), OBJECTIVE, uneven())


def test_tied_weights_move_once():
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(6, 3)).double()
    model[1].weight = model[0].weight
    objective = Objective(lambda m, b: m[0](b[0]) + m[1](b[0]), CrossEntropy())
    ends = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    [found] = line(model, objective, uneven(), [1.0], other=ends)
    model.load_state_dict(ends)
    assert found == mean_loss(model, objective, uneven())


def test_plane_is_direct_evaluation_and_its_centre_the_loss():
    model = network()
    first, second = random_directions(model, seed=3)
    found = plane(model, OBJECTIVE, uneven(), radius=0.5, points=5, seed=3)
    assert found.axis == (-0.5, -0.25, 0.0, 0.25, 0.5)
    assert found.losses[2][2] == mean_loss(model, OBJECTIVE, uneven())
    for i, j in [(0, 0), (0, 4), (3, 1), (2, 3)]:
        x, y = found.axis[i], found.axis[j]
        expected = direct(model, lambda name, w, x=x, y=y: w + x * first[name] + y * second[name])
        assert error(found.losses[i][j], expected) < EXACT
    assert plane(model, OBJECTIVE, uneven(), radius=0.5, points=5, seed=4) != found


def test_filter_normalised_has_the_norms_of_the_filters():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight[1] = 0
        model[1].weight.fill_(3.0)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    direction = {name: torch.randn_like(weight) for name, weight in weights.items()}
    found = filter_normalised(model, direction)
    for name in ("0.weight", "2.weight"):
        rows, own, drawn = (tensors[name].flatten(1) for tensors in (found, weights, direction))
        assert error(rows.norm(dim=1), own.norm(dim=1)) < 1e-6
        assert torch.allclose(nn.functional.normalize(rows[[0]]), nn.functional.normalize(drawn[[0]]))
    assert not found["0.weight"][1].any()
    assert not found["1.weight"].any()
    assert not found["0.bias"].any()


def test_watch_counts_points_and_results_are_json():
    seen = []
    found = plane(network(), OBJECTIVE, uneven(), points=3, watch=lambda *now: seen.append(now))
    assert seen == [(i, 9) for i in range(1, 10)]
    record = json.loads(json.dumps(plain_value(found), allow_nan=False))
    assert torch.equal(torch.tensor(record["losses"]), torch.tensor(found.losses))
