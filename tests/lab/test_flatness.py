"""Whether minima are flatter: ratios of measures by seed against numpy and scipy, and a verdict for each."""

import csv
import math
import re
from dataclasses import replace

import numpy
import pytest
from scipy import stats
from synthetic import record

from gasam.lab.analyses.robustness import COMPRESSIONS, Robustness
from gasam.lab.analyses.sharpness import Rises
from gasam.lab.analyses.spectrum import Spectrum
from gasam.lab.records import AnalysedRun, AnalysisRecord, as_json
from gasam.lab.report import pages
from gasam.lab.report.flatness import flatness_tables
from gasam.lab.report.labels import run_labels
from gasam.lab.storage import write_json

MATRIX = "of the empirical Fisher matrix"
BASE, OURS = [30.0, 28.0, 33.0], [15.0, 13.0, 17.0]


def analysed(kind, found, method="baseline", seed=1, **options):
    run = record("imdb", method, 85.0, seed=seed, **options)
    values = as_json(run) | {"name": f"{method} {seed} {options}", "epsilon_source": None}
    named = AnalysedRun.model_validate({key: values[key] for key in AnalysedRun.model_fields if key in values})
    return AnalysisRecord(
        schema=1, kind=kind.kind, options=kind.options(), run=named, found=found, examples=512, commit="0" * 40
    )


def spectra(baseline, ours, **options):
    kind = Spectrum(k=2)
    sides = (("baseline", baseline), ("ga-sam", ours))
    return kind, [
        analysed(kind, {"values": [top, top / 2], "converged": [True] * 2}, method, seed, **options)
        for method, values in sides
        for seed, top in enumerate(values, 1)
    ]


def one_table(analyses):
    [table] = flatness_tables(analyses).values()
    return table


def test_ratios_are_geometric_means_with_students_interval():
    table = one_table([spectra(BASE, OURS)])
    row = dict(zip(table.columns, table.rows[0], strict=True))
    logs = numpy.log(OURS) - numpy.log(BASE)
    low, high = numpy.exp(stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs)))
    assert row["ratio"] == f"{numpy.exp(logs.mean()):.2f} [{low:.2f}, {high:.2f}] (3 seeds)"
    assert row["Baseline"] == f"{stats.gmean(BASE):.3g}"
    assert row["GA-SAM"] == f"{stats.gmean(OURS):.3g}"
    assert (row["measure"], row["flatter is"]) == (f"largest eigenvalue {MATRIX}", "lower")
    assert row["ratio, equal gradient evaluations"] == "not measured"
    assert [line[0] for line in table.rows] == [
        f"largest eigenvalue {MATRIX}",
        f"sum of the top 2 eigenvalues {MATRIX}",
    ]


@pytest.mark.parametrize(
    ("baseline", "ours", "verdict"),
    [
        (BASE, OURS, ("reproduced", "flatter")),
        (OURS, BASE, ("contradicted", "sharper")),
        ([30.0, 20.0, 25.0], [29.0, 21.0, 25.5], ("undecided", "interval too wide")),
        ([30.0, 20.0], [15.0, 10.1], ("undecided", "two seeds, flatter")),
        ([30.0], [15.0], ("undecided", "one seed, flatter")),
        ([15.0], [30.0], ("undecided", "one seed, sharper")),
    ],
)
def test_every_verdict(baseline, ours, verdict):
    table = one_table([spectra(baseline, ours)])
    assert {row[-2:] for row in table.rows} == {verdict}


def half(radius, low=None):
    return {
        "half_radius": {"radius": radius, "low": low, "high": None, "reason": ""},
        "higher_is_better": True,
        "floor": 50.0,
    }


def test_a_larger_radius_is_flatter_and_one_beyond_all_that_was_tried_is_no_number():
    kind = Robustness(norm=math.inf)
    found = [
        *(analysed(kind, half(radius), "baseline", seed) for seed, radius in ((1, 0.1), (2, 0.2), (3, 0.15))),
        *(analysed(kind, half(radius), "ga-sam", seed) for seed, radius in ((1, 0.2), (2, 0.41), (3, 0.3))),
    ]
    [row] = one_table([(kind, found)]).rows
    assert row[0].startswith("L-inf radius at which half of the accuracy")
    assert (row[1], row[-2]) == ("higher", "reproduced")
    assert kind.sentence(found[:2], run_labels(found[:2])).endswith(
        "is lost is 0.1 for Baseline, seed 1, 0.2 for Baseline, seed 2"
    )
    found[-2] = analysed(kind, half(None, low=0.4), "ga-sam", 2)
    [row] = one_table([(kind, found)]).rows
    assert row[-2:] == ("undecided", "two seeds, flatter")
    assert "is > 0.4 for GA-SAM, seed 2, 0.2 for Baseline, seed 2" in kind.sentence(found, run_labels(found))


def test_the_baseline_that_spent_as_much_has_a_column_of_its_own():
    kind = Rises(epsilons=(0.1,))

    def rise(worst, method="baseline", **options):
        return analysed(kind, {"balls": [{"epsilon": 0.1, "worst": {"mean": worst}}]}, method, **options)

    found = [rise(4.0), rise(8.0, settings={"epochs": 16}), rise(2.0, "ga-sam")]
    [row] = one_table([(kind, found)]).rows
    assert row[:4] == ("worst rise of the loss (L2, T = one, K = 10) at epsilon 0.1", "lower", "4", "2")
    assert row[4:6] == ("0.50 (1 seed)", "0.25 (1 seed)")
    assert row[6:] == ("not in the paper", "one seed, flatter"), "the paper has no rises of the loss"
    found[1] = rise(4.0, settings={"epochs": 16})
    assert one_table([(kind, found)]).rows[0][5] == "same weights"
    other = replace(kind, norm=math.inf, scale="gradient_strength", granularity="layer", steps=1)
    assert other.manner == "L-inf, T = gradient_strength of each layer, K = 1"
    assert other.filed != kind.filed, "two kinds of balls have two pictures"
    assert flatness_tables([(kind, found[:2])]) == {}
    assert flatness_tables([(kind, found[1:])]) == {}


def test_the_page_has_all_seeds_in_one_table_and_the_first_in_detail(tmp_path):
    (tmp_path / "README.md").write_text("<!-- results --><!-- /results -->")
    _, found = spectra(BASE, OURS)
    for number, each in enumerate(found):
        write_json(tmp_path / f"results/analysis/{number}.json", as_json(each))
    (tmp_path / "results/remarks.toml").write_text('flatness.imdb = "In other balls it may differ."')
    pages.write(tmp_path)
    text = (tmp_path / "docs/results/flatness.md").read_text()
    assert f"| largest eigenvalue {MATRIX} | lower | 30.3 | 14.9 |" in text
    assert "Measures: 2 reproduced." in text.split("##")[0]
    assert "| L2, 0.2 | 6.46 | 17.87 |" in text
    assert "\n## Flatness, imdb, size small\n" in text
    assert "\n\nIn other balls it may differ.\n\n" in text
    assert "\n| Baseline | 30 | 15 | " in text
    assert "\n| GA-SAM | 15 | 7.5 | " in text
    assert "\n| GA-SAM | 13 | " not in text
    assert "Table: seed 1 of 3 seeds. Picture: mean and standard deviation over seeds." in text
    assert "6 records of commits 0000000" in text


def test_radii_of_a_search_are_a_file_that_the_page_links_to(tmp_path):
    """All seeds are in the file; radii that were given are rows of the page."""
    (tmp_path / "README.md").write_text("<!-- results --><!-- /results -->")
    none = {"random_loss": None, "random_metric": None}
    points = [{"radius": radius, "loss": 1.5, "metric": 80.25, **none} for radius in (0.1, 0.2)]
    found = half(0.15) | {"points": points, "compressed": dict.fromkeys(COMPRESSIONS, 83.0)}
    analyses = [
        analysed(kind, found | {"clean_metric": clean}, method, seed)
        for kind in (Robustness(), Robustness(radii=(0.1, 0.2)))
        for method, clean in (("baseline", 84.0), ("ga-sam", 85.0))
        for seed in (1, 2)
    ]
    for number, each in enumerate(analyses):
        write_json(tmp_path / f"results/analysis/{number}.json", as_json(each))
    written = pages.write(tmp_path)
    text = (tmp_path / "docs/results/flatness.md").read_text()
    [link] = re.findall(r"\]\((\.\./data/[^)]+\.csv)\)", text)
    file = (tmp_path / "docs/results" / link).resolve()
    assert file in written
    title, *rows = csv.reader(file.read_text().splitlines())
    assert title == ["run", "seed", "radius", "loss", "metric", "random_loss", "random_metric"]
    assert len(rows) == 2 * 2 * 2
    assert rows[0] == ["Baseline, seed 1", "1", "0.1", "1.5", "80.25", "", ""]
    assert text.count("| L2, 0.1, attack |") == 1
    assert text.count("| 8-bit weights |") == 1
    file.unlink()
    assert pages.stale(tmp_path) == [str(file.relative_to(tmp_path))]


def test_only_the_tuned_radius_with_usual_settings_speaks_for_ga_sam(tmp_path):
    (tmp_path / "README.md").write_text("<!-- results --><!-- /results -->")
    kind = Spectrum(k=1)
    walks = {
        "tuned": {"walk": {"epsilon": 1e-3}},
        "a rung": {"walk": {"epsilon": 1e-5}},
        "more steps": {"walk": {"epsilon": 1e-3, "steps": 3}},
        "longer": {"walk": {"epsilon": 1e-3}, "settings": {"epochs": 24}},
        "same noise": {"walk": {"epsilon": 1e-3, "same_noise": True}},
    }
    tops = dict(zip(walks, (10.0, 90.0, 91.0, 92.0, 93.0), strict=True))
    found = [analysed(kind, {"values": [20.0], "converged": [True]})]
    for name, options in walks.items():
        each = analysed(kind, {"values": [tops[name]], "converged": [True]}, "ga-sam", **options)
        found.append(each)
    for number, each in enumerate(found):
        write_json(tmp_path / f"results/analysis/{number}.json", as_json(each))
    sources = {"tuned": "tuned on validation, 4 tries", "a rung": "tuned on validation, 0.01 x"}
    for name, options in walks.items():
        source = {"epsilon_source": sources[name]} if name in sources else {}
        write_json(tmp_path / f"results/{name}.json", as_json(record("imdb", "ga-sam", **options, **source)))
    pages.write(tmp_path)
    text = (tmp_path / "docs/results/flatness.md").read_text()
    assert f"largest eigenvalue {MATRIX} | lower | 20 | 10 | 0.50 (1 seed) |" in text
    assert "\n| GA-SAM (tuned: L-inf 0.001) | 10 |" in text
    assert flatness_tables([(kind, [found[0], *found[3:]])]) == {}


def test_seeds_that_a_longer_baseline_lacks_are_told():
    kind, found = spectra(BASE, OURS)
    longer = [analysed(kind, {"values": [40.0, 1.0]}, seed=seed, settings={"epochs": 16}) for seed in (1, 2)]
    for row in one_table([(kind, [*found, *longer])]).rows:
        assert row[-3].endswith(" (2 seeds)")
        assert "[" not in row[-3], "two seeds have no interval"


def test_twins_are_no_evidence():
    kind, found = spectra(BASE, OURS)
    for each in found:
        each.run.task = "docstrings"
    assert flatness_tables([(kind, found)]) == {}
