"""The training loop: equal to a loop written out, repeatable, resumable after every kill, followed by a tracker."""

import signal
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from statistics import fmean

import pytest
import torch
from accelerate import Accelerator
from killed_processes import exit_code, killed_at
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, ga_sam
from gasam.lab.errors import InputError
from gasam.lab.record import as_json, read
from gasam.lab.storage import Checkpoints
from gasam.lab.tasks import TASKS
from gasam.lab.training.loop import WalkMeans
from gasam.lab.training.plan import make
from gasam.lab.training.run import run
from gasam.trace import Trace

PAPER_AND_TWINS = [name for name, task in TASKS.items() if task.kind != "yours"]
TWICE = ("digits", "pydoc", "ptb", "numerals")
"""One task of each family; they are trained again."""
TIMES = ("seconds", "evaluation_seconds", "commit", "dirty")
FOLDER = [".lock", "encoding.json", "model.safetensors", "run.json"]
SCHEDULE = {"budget": 0.1, "cap": 0.01, "walk_progress": 0.05, "walk_warmup": 0.5}


def timeless(record, *without):
    """A record without what may differ between two runs of the same."""
    record = as_json(record)
    kept = {key: value for key, value in record.items() if key not in TIMES}
    curve = [{key: value for key, value in row.items() if key not in ("seconds", *without)} for row in record["curve"]]
    return kept | {"curve": curve}


@pytest.mark.parametrize("task", PAPER_AND_TWINS)
def test_every_task_trains_and_the_same_seed_gives_the_same_record(task, tmp_path):
    """A trial of a search gives the same validation score, and has no test score and no model."""
    plan = make(task, "ga-sam", "tiny")
    first = run(plan, tmp_path / "first", cpu=True)
    assert [row["epoch"] for row in first.curve] == [1, 2]
    assert first.test is not None
    assert sorted(file.name for file in (tmp_path / "first" / first.name).iterdir()) == FOLDER
    if task in TWICE:
        trial = run(plan, tmp_path / "trial", cpu=True, test=False)
        assert (trial.valid, trial.test) == (first.valid, None)
        assert not list((tmp_path / "trial").glob("*/model.safetensors"))
        assert timeless(run(plan, tmp_path / "again", cpu=True)) == timeless(first)
        other = run(replace(plan, seed=2), tmp_path / "other", cpu=True)
        assert [row["loss"] for row in other.curve] != [row["loss"] for row in first.curve]


def test_loop_equals_one_written_out(tmp_path):
    """The whole of a run by hand: order, clipping after the fold, carried state, halved rate, best epoch."""
    plan = make("ptb", "ga-sam", "tiny", settings={"dropout": 0.0}, walk={"epsilon": 1e-3})
    record = run(plan, tmp_path, cpu=True)

    data, settings = plan.data(), plan.settings
    torch.manual_seed(int.from_bytes(sha256(b"1 model").digest()[:8], "big") >> 1)
    model = plan.family(data).model()
    optimizer = torch.optim.SGD(model.parameters(), 50.0)
    sharp = SharpBackward(model.parameters(), ga_sam(1e-3))
    stream = data["train"].long()
    rows = len(stream) // settings.batch
    columns = stream[: rows * settings.batch].view(settings.batch, rows).t()
    losses, weights, norms = [], [], []
    for epoch in range(2):
        state, total, count = None, 0.0, 0
        optimizer.param_groups[0]["lr"] = 50.0 * 0.5**epoch
        for start in range(0, rows - 1, settings.length):
            stop = min(start + settings.length, rows - 1)
            x, y = columns[start:stop], columns[start + 1 : stop + 1]

            def loss(x=x, y=y, state=state):
                scores, new = model(x, state)
                return cross_entropy(scores.flatten(0, 1), y.flatten()), tuple(part.detach() for part in new)

            optimizer.zero_grad()
            value, state = sharp(loss)
            norms.append((epoch, [float(p.grad.double().norm()) for p in model.parameters()]))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            total, count = total + float(value), count + 1
        losses.append(total / count)
        weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    assert [row["loss"] for row in record.curve] == pytest.approx(losses, rel=1e-12)
    best, tied = load_file(tmp_path / record.name / "model.safetensors"), {"output.weight"}
    assert best.keys() == weights[record.best_epoch - 1].keys() - tied
    assert all(torch.equal(tensor, weights[record.best_epoch - 1][name]) for name, tensor in best.items())

    watched = run(plan, tmp_path / "norms", cpu=True, gradient_norms=True)
    for epoch, row in enumerate(watched.curve):
        means = [fmean(column) for column in zip(*(found for e, found in norms if e == epoch), strict=True)]
        assert list(row["gradient_norms"].values()) == pytest.approx(means, rel=1e-5), "folded, before clipping"
    assert timeless(watched, "gradient_norm", "layer_gradient_norms", "gradient_norms") == timeless(record)


@pytest.mark.parametrize(
    ("task", "moment", "number", "walk"),
    [
        ("pydoc", "SIGKILL-step", 130, SCHEDULE | {"ascent_fraction": 0.3}),
        ("numerals", "SIGKILL-move", 9, None),  # the weights are stored, the description is not
        ("numerals", "SIGKILL-record", 1, None),
        ("numerals", "SIGINT-step", 4, None),
    ],
)
def test_a_killed_run_continues_and_ends_bit_equal(task, moment, number, walk, tmp_path, tmp_path_factory):
    """Best weights and averaged ones, a schedule, a part of the batch, gradient norms in mid-epoch."""
    whole, killed = tmp_path_factory.getbasetemp() / f"whole-{task}", tmp_path / "killed"
    plan = make(task, "ga-sam", "tiny", settings={"epochs": 3}, walk=walk)
    expected = run(plan, whole, cpu=True, gradient_norms=True)
    stopped = (-signal.SIGKILL,) if "KILL" in moment else (1, 130, -signal.SIGINT)
    assert exit_code(killed_at, killed, task, "ga-sam", moment, number, walk) in stopped
    assert not list(killed.glob("*.json"))
    record = run(plan, killed, cpu=True, gradient_norms=True)

    assert timeless(record) == timeless(expected)
    weights = [(folder / record.name / "model.safetensors").read_bytes() for folder in (whole, killed)]
    assert weights[0] == weights[1]
    assert sorted(file.name for file in (killed / record.name).iterdir()) == FOLDER


@pytest.mark.parametrize("value", [7, {"model": {}}, {"model": torch.ones(2), "optimizer": {}, "progress": {}}])
def test_a_checkpoint_of_something_else_is_refused(value, tmp_path):
    plan = make("digits", "baseline", "tiny")
    checkpoints = Checkpoints(tmp_path / plan.name(plan.data().hash))
    checkpoints.save(checkpoints.last, value)
    with pytest.raises(InputError, match=r"last\.pt is not a checkpoint of this program: delete .* to start again"):
        run(plan, tmp_path, cpu=True)


def test_two_processes_share_a_run_and_learn_what_one_does(tmp_path):
    plan = make("digits", "ga-sam", "tiny")
    alone = run(plan, tmp_path / "alone", cpu=True)
    words = ["train", "digits", "--method", "ga-sam", "--size", "tiny", "--cpu", "--out", str(tmp_path / "shared")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, "-m", "gasam", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("accuracy valid") == 1
    [file] = (tmp_path / "shared").glob("*.json")
    shared = read(file)
    assert shared.machine["processes"] == 2
    losses = [[row["loss"] for row in record.curve] for record in (alone, shared)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    weights = [load_file(tmp_path / where / file.stem / "model.safetensors") for where in ("alone", "shared")]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-4, atol=1e-6)


MEANS = (("strength", "strength", 1e-5), ("rise", "sharpness", 1e-5), ("ratio", "perturbation_ratio", 0.2))
"""The entry of a row, the number of a trace, and how far they may differ: weights change within an epoch."""


@pytest.mark.parametrize("walk", [SCHEDULE | {"every": 2}, {"epsilon": 1e-3, "steps": 2}])
def test_the_row_of_an_epoch_has_the_means_of_its_walks(tmp_path, monkeypatch, walk):
    seen, add = [], WalkMeans.add

    def noting(self, trace):
        seen.append((len(trace.losses), trace.metrics()))
        add(self, trace)

    monkeypatch.setattr(WalkMeans, "add", noting)
    record = run(make("digits", "ga-sam", "tiny", walk=walk), tmp_path, cpu=True)
    steps = record.updates // len(record.curve)
    for number, row in enumerate(record.curve):
        walks = [metrics for passes, metrics in seen[number * steps : (number + 1) * steps] if passes > 1]
        assert row.get("walk", {"walks": 0})["walks"] == len(walks)
        for name, metric, error in MEANS if walks else ():
            assert row["walk"][name] == pytest.approx(fmean(each[metric] for each in walks), rel=error)


def test_plain_training_has_no_walks_and_walks_that_are_not_finite_are_only_counted(tmp_path):
    settings = {"epochs": 1, "rows": 60}
    plain = run(make("pydoc", "baseline", "tiny", settings=settings), tmp_path, cpu=True)
    assert plain.curve[0].keys() == {"epoch", "loss", "valid", "gradient_evaluations", "seconds"}
    assert plain.gradient_evaluations == plain.updates
    noisy = run(make("pydoc", "freelb", "tiny", settings=settings), tmp_path, cpu=True)
    assert noisy.curve[0]["walk"].keys() == {"walks", "strength", "rise"}, "|a| of embeddings' outputs has no ratio"

    walks, accelerator = WalkMeans(torch.device("cpu")), Accelerator(cpu=True)
    for last, outcome in ((1.25, True), (float("nan"), False)):
        losses, norms = (torch.tensor(1.0), torch.tensor(last)), (torch.tensor(0.0), torch.tensor(0.5))
        walks.add(Trace(losses, offsets=norms, finite=torch.tensor(outcome)))
    row = {"walks": 2, "strength": 1.0, "ratio": 0.25, "rise": 0.25}
    assert walks.row(accelerator, 2.0) == {"walk": row}


def test_a_tracker_gets_every_number_of_the_record_once(tmp_path):
    """Also of a run that was interrupted after the second epoch."""
    plan, calls = make("digits", "ga-sam", "tiny", settings={"epochs": 3}, walk={"epsilon": 1e-3}), []

    def stopping(update):
        calls.append(update)
        if update.epoch == 3 and len(calls) < 100:
            calls.extend([update] * 100)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, cpu=True, track="tensorboard", on_update=stopping)
    record = run(plan, tmp_path, cpu=True, track="tensorboard")
    folder = tmp_path / "tensorboard" / plan.name(plan.data().hash)
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    for name, read_row in {"loss": lambda row: row["loss"], "walk/rise": lambda row: row["walk"]["rise"]}.items():
        assert [(event.step, event.value) for event in found.Scalars(name)] == [
            (row["epoch"], pytest.approx(read_row(row), rel=1e-6)) for row in record.curve
        ]
    assert found.Scalars("final/test")[0].value == pytest.approx(record.test, rel=1e-6)
    assert list(folder.glob("*/hparams.yml")), "the configuration"


def test_a_tracker_that_fails_gives_one_note_and_training_continues(command, tmp_path):
    """The tracker cannot write: a file is where its folder should be."""
    (tmp_path / "tensorboard").write_text("")
    common = ("digits", "--size", "tiny", "--cpu", "--out", tmp_path, "--json", "--track")
    trained = command("train", *common, "tensorboard").done()
    [note] = [line for line in trained.err.splitlines() if "tensorboard" in line]
    assert note.startswith("- tensorboard failed (")
    assert note.endswith("training continues without it")
    for name, told in (("paper", "--track must be one of aim"), ("comet_ml", "comet_ml is not installed: run `pip")):
        assert told in command("train", *common, name).refused()
