"""Tasks that a user defines in a Python file: their functions, their identity, and the commands that use them."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from killed_processes import InThisProcess
from own_tasks import LINE
from refusals import refusal
from torch.utils.data import Dataset

from gasam.lab import load
from gasam.lab.api import comparison_plans
from gasam.lab.data.corpus import SPLITS
from gasam.lab.errors import InputError
from gasam.lab.methods import Walk
from gasam.lab.search import Search, tune
from gasam.lab.storage import Checkpoints
from gasam.lab.tasks.own_model import Examples, OwnCorpus
from gasam.lab.training.loop import Training
from gasam.lab.training.plan import make
from gasam.lab.training.run import run

TASKS = Path(__file__).parents[2] / "examples" / "tasks"


def family_of(reference, **settings):
    plan = make(reference, settings=settings)
    return plan.family(plan.data())


@pytest.mark.parametrize(("name", "epochs"), [("image", 2), ("regression", 10), ("text", 2)])
def test_examples_learn(name, epochs, tmp_path):
    record = run(make(str(TASKS / f"{name}.py"), "ga-sam", settings={"epochs": epochs}), tmp_path, cpu=True)
    assert record.task == name
    assert record.valid > record.worthless if record.metric.higher_is_better else record.valid < record.worthless


def test_a_search_chooses_a_walk_that_compare_takes(line, tmp_path):
    file = line()
    found = tune(Search(task=file, trials=1), tmp_path, InThisProcess(), cpu=True)
    [plan] = comparison_plans(file, ["ga-sam"], seeds=1, tuned=tmp_path)
    assert (plan.walk.source, plan.walk.budget) == ("tuned", found.walk["budget"])


def test_identity_is_of_the_text_not_of_the_place(line, tmp_path):
    here = make(line())
    (tmp_path / "elsewhere").mkdir()
    there = make(str(shutil.copy(here.task, tmp_path / "elsewhere" / "line.py")))
    assert here.key("data") == there.key("data")
    changed = make(line("\n# another version\n"))
    assert changed.key("data") != here.key("data")
    wider = make(changed.task, settings={"width": 2})
    assert wider.key("data") != changed.key("data")
    assert wider.config()["settings"]["width"] == 2


def test_an_interrupted_run_ends_with_the_same_bits(line, tmp_path):
    """Also with random changes of the examples, an optimizer with momentum, and a schedule that needs the length."""
    file = line(
        """
import random
import numpy

class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        noise = torch.rand(1) + random.random() + numpy.random.rand()
        x = torch.tensor([i / 12], dtype=torch.float32)
        return x + noise.float(), 2 * x

def data():
    return Noisy(), Noisy(), Noisy()

def optimizer(model, learning_rate):
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)

settings = {"epochs": 3, "batch": 5, "learning_rate": 0.1, "schedule": "cosine", "warmup": 2}
"""
    )
    plan = make(file, "ga-sam")
    whole = run(plan, tmp_path / "whole", cpu=True)

    def stop(update):
        if update.epoch == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(plan, tmp_path / "parts", on_update=stop, cpu=True)
    resumed = run(plan, tmp_path / "parts", cpu=True)
    assert [row["loss"] for row in resumed.curve] == [row["loss"] for row in whole.curve]
    assert resumed.test == whole.test


def test_the_ascent_on_a_part_of_each_batch_costs_its_share(line, tmp_path):
    record = run(make(line(), "sam", walk={"epsilon": 0.1, "ascent_fraction": 0.25}), tmp_path, cpu=True)
    assert [row["gradient_evaluations"] for row in record.curve] == [1.25 * 2, 1.25 * 4]
    assert str(Walk(**record.walk)).endswith("ascent fraction 0.25")
    x, y = torch.arange(12.0).view(6, 2), torch.arange(6)
    family = family_of(line())
    part, share = family.part({"a": [x, None], "b": (y,)}, 6, 0.25)
    assert (part["a"][0].tolist(), part["b"][0].tolist(), share) == ([[0, 1], [2, 3]], [0, 1], 1 / 3)
    for unclear in ((x, "text"), (x, y[:5]), (x, torch.tensor(1)), (x.t(),)):
        with pytest.raises(InputError, match="needs batches of tensors with 6 examples in dimension 0, got"):
            family.part(unclear, 6, 0.25)


SUMMARY = "\ndef summary(values):\n    return values.square().mean().sqrt()\n"


def test_score_is_the_mean_or_the_summary_with_its_standard_error(line):
    family = family_of(line())
    model = family.model()
    inputs, targets = family.data["valid"].given
    errors = (model(inputs) - targets).abs().double().detach().flatten()
    value, error = family.measure(model, "valid")
    assert (value, error) == pytest.approx((float(errors.mean()), float(errors.std()) / math.sqrt(8)), rel=1e-6)
    torch.manual_seed(0)
    assert family.worthless("valid") == family.measure(family.model(), "valid").value  # the score before training
    value, error = family_of(line(SUMMARY)).measure(model, "valid")
    assert value == pytest.approx(float(errors.square().mean().sqrt()))
    # A bootstrap; the delta method for the root of a mean of squares.
    assert error == pytest.approx(float(errors.square().std()) / math.sqrt(8) / (2 * value), rel=0.35)


LOSSES = "\ndef losses(model, batch):\n    return (model(batch[0]) - batch[1]).square().flatten()\n"


@pytest.mark.parametrize("more", ["", LOSSES])
def test_losses_of_examples_average_to_the_loss(line, more):
    family = family_of(line(more))
    model, batch = family.model(), family.batch(torch.arange(5))
    found = family.objective()(model, batch)
    assert found.shape == (5,)
    torch.testing.assert_close(found.mean(), family.loss(model, batch, None)[0])


def test_own_optimizer_keeps_the_rates_of_its_groups(line, tmp_path):
    file = line(
        """
def optimizer(model, learning_rate):
    return torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], lr=learning_rate)
"""
    )
    plan = make(file, settings={"schedule": "halving", "halve_after": 0})
    training = Training(plan, plan.data(), Checkpoints(tmp_path), Accelerator(cpu=True))
    training.train_step(torch.arange(4))
    assert [group["lr"] for group in training.optimizer.param_groups] == [0.05, 0.25]


WRONG = {
    "def model(:": "line.py: line 1: SyntaxError",
    "x = 1": "line.py: model must be given",
    LINE.replace("width=1", "width"): "'width' of model() must have a default value",
    LINE.replace("width=1", "batch=1"): "'batch' is a name of the settings",
    LINE.replace('"batch": 4', '"bach": 4'): "there is no setting 'bach'",
    LINE + "\nmetric_decimals = 2.5\n": "metric_decimals must be a whole number",
    LINE + "\ndef data():\n    return 1, 2\n": "must return three sets",
    LINE + "\ndef data():\n    return [], [], []\n": "at least one example for train",
    LINE + "\ndef data():\n    return [(torch.ones(3), torch.ones(2))] * 3\n": "same number of rows, got 2, 3",
    LINE + "\ndef data():\n    return iter([]), [], []\n": "numbered examples",
    LINE + "\ndef model():\n    return 3\n": "model() must return a torch.nn.Module, got int",
    LINE + "\ndef loss(model, batch):\n    return model(batch[0])\n": "got a tensor of shape (4, 1)",
    LINE + "\ndef metric(model, batch):\n    return 1.0\n": "one value for each of the 4 examples, got float",
}


@pytest.mark.parametrize("text", WRONG, ids=WRONG.values())
def test_a_wrong_file_gets_one_sentence(text, tmp_path):
    file = tmp_path / "line.py"
    file.write_text(text)
    assert WRONG[text] in refusal(lambda: run(make(str(file)), tmp_path, cpu=True))


def test_a_missing_file_is_told(tmp_path, command):
    assert "absent.py cannot be read" in command("train", tmp_path / "absent.py").refused()
    assert "or a Python file such as task.py, got 'imbd'" in refusal(make, "imbd")


class Squares(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, i):
        return {"x": torch.tensor([float(i)]), "y": i**2, "noise": torch.rand(1)}


def test_examples_of_every_form_give_the_same_batches():
    x, y = torch.arange(6.0)[:, None], torch.arange(6)
    chosen = torch.tensor([4, 1])
    forms = [(x, y), {"x": x, "y": y}, [(x[i], y[i]) for i in range(6)]]
    for form in forms:
        batch = Examples(form, "train").batch(chosen)
        inputs, labels = batch.values() if isinstance(batch, dict) else batch
        assert inputs.tolist() == [[4.0], [1.0]]
        assert labels.tolist() == [4, 1]
    part = Examples(forms[0], "train").only(torch.tensor([5, 3]))
    assert part.batch(torch.tensor([1]))[1].tolist() == [3]


def test_hash_is_of_the_content_and_leaves_the_generators_alone():
    def hashed(given):
        return OwnCorpus(*(Examples(given, split) for split in SPLITS)).digest()

    x = torch.arange(6.0)
    assert hashed((x, x)) == hashed((x.clone(), x.clone()))
    changed = x.clone()
    changed[5] = 7
    assert hashed((x, changed)) != hashed((x, x))
    assert hashed((x.double(),)) != hashed((x,))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert hashed(Squares()) == hashed(Squares())
    assert torch.rand(1) == expected


PREDICT = """
def predict(model, inputs):
    return [{"y": round(float(model(torch.tensor([[float(x)]]))), 4)} for x in inputs]
"""


def test_a_trained_model_predicts_from_its_folder_alone(line, tmp_path, command):
    file = line(PREDICT)
    plan = make(file)
    run(plan, tmp_path / "runs", cpu=True)
    folder = Path(shutil.move(tmp_path / "runs" / plan.name(plan.data().hash), tmp_path / "moved"))
    Path(file).unlink()
    shutil.rmtree(tmp_path / "runs")
    inputs = tmp_path / "inputs.txt"
    inputs.write_text("0.5\n\n-1\n")
    found = [json.loads(text) for text in command("predict", folder, inputs, "--json", "--cpu").done().out.splitlines()]
    trained = load(folder, cpu=True)
    expected = [round(float(trained.model(torch.tensor([[x]])).detach()), 4) for x in (0.5, -1.0)]
    assert [each["y"] for each in found] == expected
    assert [each["y"] for each in trained.predict(["0.5", -1])] == expected
    assert re.search(r"predict.* failed \(ValueError: could not convert string", refusal(trained.predict, ["text"]))
    trained.family.file = trained.family.file.model_copy(update={"predict": None})
    assert "define predict(model, inputs)" in refusal(trained.predict, [1])


def test_analyses_use_the_copy_if_the_file_has_changed(line, tmp_path, command):
    plan = make(line())
    record = run(plan, tmp_path / "runs", cpu=True)
    line("\nraise ImportError('changed')\n")
    name = plan.name(record.data.hash)
    options = ("--out", tmp_path / "analysis", "--rows", 8, "--cpu", "--json")
    given = ("sharpness", tmp_path / f"runs/{name}.json", *options)
    command(*given).done()
    (tmp_path / "runs" / name / "task.py").unlink()
    assert "copy the whole folder of the run" in command(*given[:-1], "--seed", 1).refused()


def test_a_file_that_changes_while_its_runs_wait_is_not_run(line, tmp_path, monkeypatch):
    plan = make(line())
    line("\nx = 1\n")
    assert run(plan, tmp_path / "same process", cpu=True).test is not None
    monkeypatch.setattr("gasam.lab.tasks.own_model._LOADED", {})  # as in the process of a run that starts now
    assert "has changed since this command was started" in refusal(run, plan, tmp_path / "runs", cpu=True)


def test_methods_that_need_certain_layers_are_refused_without_them(line):
    for method, layers in (("sam-on", "normalisation layers"), ("freelb", "word embeddings")):
        with pytest.raises(InputError, match=f"moves {layers}, but the model"):
            make(line(), method)
    normalised = line("\ndef model():\n    return nn.Sequential(nn.LayerNorm(1), nn.Linear(1, 1))\n")
    assert make(normalised, "sam-on").walk.method == "sam-on"
