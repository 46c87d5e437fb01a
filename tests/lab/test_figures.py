"""The paper's figures and Table 4 at size tiny: files, a sentence with its numbers, resumed when stopped."""

import json

import numpy
import pytest

from gasam.lab import record
from gasam.lab.analyses import analysis
from gasam.lab.analyses.shift import Mixtures, drawn_mixture, straight
from gasam.lab.paper.figures import FIGURES, layers_of
from gasam.lab.record import AnalysisRecord, Summary
from gasam.lab.tasks import Origin
from gasam.lab.training.finished import load
from tolerances import EXACT


@pytest.fixture
def reproduce(command, own_trained):
    """Run `gasam reproduce NAME` among the trained runs; give how it ended and the JSON of the figure."""

    def reproduce(name, *options, code=0):
        ended = command("reproduce", name, "--size", "tiny", "--cpu", "--jobs", 1, "--out", own_trained, *options)
        assert ended.code == code, ended.err
        assert "Traceback" not in ended.err
        place = own_trained / "figures" / f"{name}-tiny"
        if code:
            return ended, None
        assert place.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in place.with_suffix(".svg").read_text()
        found = json.loads(place.with_suffix(".json").read_text())
        assert found["title"] == FIGURES[name].title
        assert found["title"] in ended.out
        return ended, found

    return reproduce


def test_figure1_has_the_losses_of_both_minima_and_the_gap_between_the_curves(reproduce):
    ended, found = reproduce("figure1", "--tasks", "digits")
    [made] = found["records"]
    line = made["found"]
    alphas = line["alphas"]
    assert alphas == [-1, -0.5, 0, 0.5, 1, 1.5, 2]
    home, there = alphas.index(0), alphas.index(1)
    assert line["constant"] == pytest.approx(line["test"][there] - line["train"][home], rel=EXACT)
    assert line["shifted"][there] == pytest.approx(line["test"][there], rel=EXACT)
    back = [value - line["constant"] for value in line["shifted"]]
    assert back[2:] == pytest.approx(line["train"][:-2], rel=EXACT)
    near = [i for i, alpha in enumerate(alphas) if 0.5 <= alpha <= 1.5]
    gap = numpy.sqrt(numpy.mean([(line["shifted"][i] - line["test"][i]) ** 2 for i in near]))
    assert line["gaps"]["shifted"] == pytest.approx(gap, rel=EXACT)
    assert line["test"][there] < line["test"][home], "the test loss falls on the way"
    assert f"{gap:.3g}" in ended.out


def test_figure2_fits_a_line_as_numpy_does_and_continues_when_it_was_interrupted(reproduce, monkeypatch):
    write, kept = analysis.write_json, []

    def stopping(file, value):
        write(file, value)
        kept.append(value)
        if len(kept) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(analysis, "write_json", stopping)
        ended, _ = reproduce("figure2", "--tasks", "digits", code=130)
        assert "interrupted; run the same command to continue" in ended.err
    tuned, mixed = [], drawn_mixture
    monkeypatch.setattr(
        "gasam.lab.analyses.shift.drawn_mixture",
        lambda subject, eta, seed: tuned.append((eta, seed)) or mixed(subject, eta, seed),
    )
    ended, found = reproduce("figure2", "--tasks", "digits")
    assert tuned == [(0.6, 4), (0.8, 5), (1.0, 6)]
    [made] = (each["found"] for each in found["records"])
    etas, norms = made["etas"], made["norms"]
    assert etas == [0, 0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert norms[:4] == kept[-1]["norms"]
    slope, intercept = numpy.polyfit(etas[2:], norms[2:], 1)
    assert (made["slope"], made["intercept"]) == pytest.approx((slope, intercept), rel=1e-8)
    assert made["r_squared"] == pytest.approx(numpy.corrcoef(etas[2:], norms[2:])[0, 1] ** 2, rel=1e-8)
    assert made["control"] == pytest.approx(numpy.mean(norms[:2]))
    assert f"{intercept:.3g} + {slope:.3g} eta" in ended.out


def test_a_mixture_has_its_share_of_test_data_and_nothing_twice(trained):
    subject = load(trained["digits baseline"], Origin(), cpu=True)
    sets = {split: {bytes(row) for row in subject.family.data[split][0].numpy()} for split in ("train", "test")}
    for eta in (0.0, 0.25, 1.0):
        images, labels = drawn_mixture(subject, eta, seed=3)
        rows = [bytes(row) for row in images.numpy()]
        assert len(rows) == len(labels) == len(set(rows)) == 200
        assert sum(row in sets["test"] for row in rows) == 200 * eta
        assert all(row in sets["train"] or row in sets["test"] for row in rows)


def test_every_run_of_a_shift_has_a_chart_and_a_row(trained):
    found = {"etas": [0.0, 0.5, 1.0], "norms": [0.5, 3.5, 5.0], "control": 0.5} | straight([0.5, 1.0], [3.5, 5.0])
    assert (found["intercept"], found["slope"], found["r_squared"]) == pytest.approx((2, 3, 1))
    run = record.read(trained["digits baseline"]).model_dump(include=set(Summary.model_fields))
    runs = [Summary(**run | {"name": f"run {seed}", "seed": seed}) for seed in (1, 2)]
    made = [AnalysisRecord(kind="mixtures", options=Mixtures().options(), run=each, found=found) for each in runs]
    labels = {runs[0].key: "Baseline"}
    assert [chart.title for chart in Mixtures().charts(made, labels)] == ["digits, seed 1", "digits, seed 2"]
    assert [row["run"] for row in Mixtures().table(made, labels).rows] == ["Baseline, seed 1", "Baseline, seed 2"]


def test_shifts_of_other_tasks_are_refused_before_they_are_trained(reproduce, own_trained):
    before = set(own_trained.iterdir())
    ended, _ = reproduce("figure1", "--tasks", "docstrings", code=2)
    assert ended.err == "gasam: shifts can be measured only on mnist and digits, got a run of docstrings\n"
    assert set(own_trained.iterdir()) == before


def test_figure3_compares_eigenvalues(reproduce):
    ended, found = reproduce("figure3", "--tasks", "digits")
    assert [each["run"]["method"] for each in found["records"]] == ["baseline", "ga-sam"]
    base, ours = (each["found"]["values"] for each in found["records"])
    assert len(base) == len(ours) == 10
    assert base == sorted(base, reverse=True)
    assert all(f"{text:.4g}" in ended.out for text in (base[0], ours[0], sum(base), sum(ours)))
    assert "Largest eigenvalues" in ended.out


def test_figures_4_and_5_come_from_the_norms_of_training(reproduce, own_trained):
    [file] = (own_trained / "gradient-norms").glob("en-vi-*.json")
    curve = json.loads(file.read_text())["curve"]
    ended, found = reproduce("figure4")
    assert "1 of 1 runs are already there, not run again" in ended.err
    assert found["norms"] == {"all weights": {"en-vi, seed 1": [row["gradient_norm"] for row in curve]}}
    first, last = curve[0]["gradient_norm"], curve[-1]["gradient_norm"]
    assert f"{first:.3g}" in ended.out
    assert f"{last:.3g}" in ended.out
    told = json.loads(reproduce("figure4", "--json")[0].out)
    assert told.keys() == {"title", "tables", "files"}
    assert [file.rpartition(".")[2] for file in told["files"]] == ["json", "png", "svg"]
    ended, found = reproduce("figure5")
    for side in ("encoder", "decoder"):
        norms = [row["layer_gradient_norms"][f"{side} 1"] for row in curve]
        assert found["norms"][f"en-vi, seed 1: {side}"] == {f"{side} 1": norms}
        assert f"{sum(norms) / len(norms):.3g}" in ended.out


def test_layers_keep_the_order_of_the_model(trained):
    norms = {"embeddings": 1.0} | {f"encoder {i}": float(i) for i in range(1, 13)} | {"decoder 1": None}
    run = record.read(trained["en-vi baseline"]).model_copy(update={"curve": [{"layer_gradient_norms": norms}] * 2})
    assert list(layers_of(run, "encoder")) == [f"encoder {i}" for i in range(1, 13)]
    assert layers_of(run, "decoder") == {}
    assert layers_of(run, "")["encoder 12"] == [12.0, 12.0]


def test_table4_has_the_papers_radii_and_a_search(reproduce):
    """Four digits are too few to be above chance: such a run has no half to lose, and is no reason to end."""
    ended, found = reproduce("table4", "--tasks", "digits,ptb")
    listed = [each["options"]["radii"] for each in found["records"]]
    assert listed == [[0.05, 0.1, 0.2]] * 4 + [[1e-4, 2e-4, 5e-4]] * 4 + [[]] * 4
    assert found["paper"]["L2, 0.2"] == ["6.46", "17.87"]
    for each in found["records"][8:]:
        half = each["found"]["half_radius"]
        if half["radius"] is None:
            assert "which can't be halved" in half["reason"]
            assert not each["found"]["points"]
        assert (half["radius"] is not None) or each["run"]["task"] == "digits"
    assert ended.out.count("Metric under corrupted weights") == 3
