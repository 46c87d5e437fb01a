"""The paper's figures and Table 4 at size tiny: files, a sentence with its numbers, resumed when stopped."""

import json

import numpy
import pytest

from gasam.lab import record
from gasam.lab.analyses import analysis
from gasam.lab.analyses.shift import Mixtures, drawn_mixture, straight
from gasam.lab.paper.figures import FIGURES, has_half, layers_of
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
        assert found["sentence"] in ended.out
        return ended, found

    return reproduce


def test_figure1_is_of_mnist_where_it_is_and_of_digits_elsewhere(reproduce, tmp_path):
    ended, found = reproduce("figure1")
    assert "instead of" not in ended.err
    assert [each["run"]["task"] for each in found["records"]] == ["mnist"]
    ended, found = reproduce("figure1", "--data-dir", tmp_path / "empty")
    assert "- digits instead of mnist, whose data is missing" in ended.err
    [made] = found["records"]
    assert made["run"]["task"] == "digits"
    for protocol in ("fine-tuned", "regularised"):
        line = made["found"][protocol]
        alphas = line["alphas"]
        assert (alphas[0], alphas[-1], len(alphas)) == (-1, 2, 7)
        home, there = alphas.index(0), alphas.index(1)
        assert line["constant"] == pytest.approx(line["test"][there] - line["train"][home], rel=EXACT)
        assert line["shifted"][there] == pytest.approx(line["test"][there], rel=EXACT)
        back = [value - line["constant"] for value in line["shifted"]]
        assert back[2:] == pytest.approx(line["train"][:-2], rel=EXACT)
        near = [i for i, alpha in enumerate(alphas) if 0.5 <= alpha <= 1.5]
        gap = numpy.sqrt(numpy.mean([(line["shifted"][i] - line["test"][i]) ** 2 for i in near]))
        assert line["gaps"]["shifted"] == pytest.approx(gap, rel=EXACT)
        assert f"{gap:.3g} shifted" in found["sentence"]
    solved = made["found"]["regularised"]
    assert solved["alphas"][min(range(7), key=solved["test"].__getitem__)] == 1.0
    assert solved["alphas"][min(range(7), key=solved["train"].__getitem__)] == 0.0


def test_figure2_fits_a_line_as_numpy_does_and_has_controls(reproduce, tmp_path, monkeypatch, own_trained):
    """Interrupted after a few trials, it continues where it was, and ends with what was kept."""
    write, kept = analysis.write_json, []

    def stopping(file, value):
        write(file, value)
        kept.append(value)
        if len(kept) == 4:
            raise KeyboardInterrupt

    options = ("--data-dir", tmp_path / "empty")
    with monkeypatch.context() as patched:
        patched.setattr(analysis, "write_json", stopping)
        ended, _ = reproduce("figure2", *options, code=130)
        assert "interrupted; run the same command to continue" in ended.err
    done = {name: len(kept[-1][name]) for name in ("controls", "fine_tuned", "regularised")}
    assert sum(done.values()) == 4
    tuned, mixed = [], drawn_mixture
    monkeypatch.setattr(
        "gasam.lab.analyses.shift.drawn_mixture",
        lambda subject, eta, seed: tuned.append((eta, seed)) or mixed(subject, eta, seed),
    )
    _, found = reproduce("figure2", *options)
    assert tuned == [(number / 5, number - 1) for number in range(done["fine_tuned"] + 1, 6)]
    [made] = found["records"]
    assert all(made["found"][name][:count] == kept[-1][name] for name, count in done.items())
    assert [point["eta"] for point in made["found"]["controls"]] == [0.0, 0.0]
    for name, fit in made["found"]["fits"].items():
        points = made["found"][name.replace("-", "_")]
        etas, norms = ([point[key] for point in points] for key in ("eta", "norm"))
        slope, intercept = numpy.polyfit(etas, norms, 1)
        assert etas == [0.2, 0.4, 0.6, 0.8, 1.0]
        assert (fit["slope"], fit["intercept"]) == pytest.approx((slope, intercept), rel=1e-8)
        assert fit["r_squared"] == pytest.approx(numpy.corrcoef(etas, norms)[0, 1] ** 2, rel=1e-8)
        assert fit["at_one"] == norms[-1]
        assert f"{fit['slope']:.3g} eta with R^2 {fit['r_squared']:.3f}" in found["sentence"]
    fits = made["found"]["fits"]
    assert fits["fine-tuned"]["control"] == pytest.approx(numpy.mean([p["norm"] for p in made["found"]["controls"]]))
    assert (fits["regularised"]["control"], fits["regularised"]["stationary"]) == (0, 5)
    assert all(p["stationary"] and p["gradient"] <= 1e-8 for p in made["found"]["regularised"])


def test_a_mixture_has_its_share_of_test_data_and_nothing_twice(trained):
    subject = load(trained["digits baseline"], Origin(), cpu=True)
    sets = {split: {bytes(row) for row in subject.family.data[split][0].numpy()} for split in ("train", "test")}
    for eta in (0.0, 0.25, 1.0):
        images, labels = drawn_mixture(subject, eta, seed=3)
        rows = [bytes(row) for row in images.numpy()]
        assert len(rows) == len(labels) == len(set(rows)) == 200
        assert sum(row in sets["test"] for row in rows) == 200 * eta
        assert all(row in sets["train"] or row in sets["test"] for row in rows)


def test_a_straight_line_is_fitted_exactly_and_every_run_is_shown(trained):
    points = [{"eta": x, "norm": 2 + 3 * x, "stationary": x > 0.5} for x in (0.25, 0.5, 0.75, 1.0)]
    fit = straight(points, 0.5)
    assert fit == pytest.approx(
        {"intercept": 2, "slope": 3, "r_squared": 1, "at_one": 5, "control": 0.5, "stationary": 2, "trials": 4}
    )
    found = {"fine_tuned": points, "regularised": points, "fits": {"fine-tuned": fit, "regularised": fit}}
    run = record.read(trained["digits baseline"]).model_dump(include=set(Summary.model_fields))
    runs = [Summary(**run | {"name": f"run {seed}", "seed": seed}) for seed in (1, 2)]
    made = [AnalysisRecord(kind="mixtures", options=Mixtures().options(), run=each, found=found) for each in runs]
    labels = {runs[0].key: "Baseline"}
    assert [chart.title for chart in Mixtures().charts(made, labels)] == [
        f"digits, seed {seed}: {name}" for seed in (1, 2) for name in ("fine-tuned", "regularised")
    ]
    assert Mixtures().sentence(made, labels).count("3 eta") == 4
    assert [row["run"] for row in Mixtures().table(made, labels).rows][::2] == ["Baseline, seed 1", "Baseline, seed 2"]


@pytest.mark.parametrize("name", ["figure1", "figure2"])
def test_shifts_of_other_tasks_are_refused_before_they_are_trained(name, reproduce, own_trained):
    before = set(own_trained.iterdir())
    ended, _ = reproduce(name, "--tasks", "docstrings", code=2)
    assert ended.err == "gasam: shifts can be measured only on mnist and digits, got a run of docstrings\n"
    assert set(own_trained.iterdir()) == before


def test_figure3_compares_eigenvalues(reproduce):
    ended, found = reproduce("figure3", "--tasks", "digits")
    assert [each["run"]["method"] for each in found["records"]] == ["baseline", "ga-sam"]
    base, ours = (each["found"]["values"] for each in found["records"])
    assert len(base) == len(ours) == 10
    assert base == sorted(base, reverse=True)
    matrix = "of the empirical Fisher matrix is"
    assert f"eigenvalue {matrix} {base[0]:.3g} for Baseline, and {ours[0]:.3g} for GA-SAM" in found["sentence"]
    assert f"eigenvalues {matrix} {sum(base):.3g} for Baseline, and {sum(ours):.3g} for GA-SAM" in found["sentence"]
    assert "Largest eigenvalues" in ended.out


def test_figures_4_and_5_come_from_the_norms_of_training(reproduce, own_trained):
    [file] = (own_trained / "gradient-norms").glob("en-vi-*.json")
    curve = json.loads(file.read_text())["curve"]
    ended, found = reproduce("figure4")
    assert "1 of 1 runs are already there, not run again" in ended.err
    assert found["norms"] == {"all weights": {"en-vi, seed 1": [row["gradient_norm"] for row in curve]}}
    first, last = curve[0]["gradient_norm"], curve[-1]["gradient_norm"]
    assert f"{first:.3g} in the first epoch and {last:.3g} in the last" in found["sentence"]
    _, found = reproduce("figure5")
    for side in ("encoder", "decoder"):
        norms = [row["layer_gradient_norms"][f"{side} 1"] for row in curve]
        assert found["norms"][f"en-vi, seed 1: {side}"] == {f"{side} 1": norms}
        assert f"{sum(norms) / len(norms):.3g} in {side} 1" in found["sentence"]


def test_layers_keep_the_order_of_the_model(trained):
    norms = {"embeddings": 1.0} | {f"encoder {i}": float(i) for i in range(1, 13)} | {"decoder 1": None}
    run = record.read(trained["en-vi baseline"]).model_copy(update={"curve": [{"layer_gradient_norms": norms}] * 2})
    assert list(layers_of(run, "encoder")) == [f"encoder {i}" for i in range(1, 13)]
    assert layers_of(run, "decoder") == {}
    assert layers_of(run, "")["encoder 12"] == [12.0, 12.0]


def test_table4_has_the_papers_radii_and_a_search_for_runs_that_know_something(reproduce):
    """Four digits are too few to be above chance: they have no half to lose, and are no reason to end."""
    ended, found = reproduce("table4", "--tasks", "digits,ptb")
    listed = [each for each in found["records"] if each["options"]["radii"]]
    searched = [each for each in found["records"] if not each["options"]["radii"]]
    assert [each["options"]["radii"] for each in listed] == [[0.05, 0.1, 0.2]] * 4 + [[1e-4, 2e-4, 5e-4]] * 4
    able = [each["run"]["name"] for each in listed[:4] if has_half(AnalysisRecord.model_validate(each))]
    assert [each["run"]["name"] for each in searched] == able
    assert sum(name.startswith("ptb") for name in able) == 2
    assert found["paper"]["L2, 0.2"] == ["6.46", "17.87"]
    halves = [each["found"]["half_radius"]["radius"] for each in searched if each["run"]["task"] == "ptb"]
    assert f"on ptb the L2 radius at which perplexity is doubled is {halves[0]:.3g} for" in found["sentence"]
    assert ended.out.count("Metric under corrupted weights") == 3


def test_json_for_other_programs(command, own_trained):
    ended = command("reproduce", "figure4", "--size", "tiny", "--cpu", "--out", own_trained, "--json")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert found.keys() == {"title", "sentence", "tables", "files"}
    assert [file.rpartition(".")[2] for file in found["files"]] == ["json", "png", "svg"]
