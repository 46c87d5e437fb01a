"""Analyses of finished runs, and the functions that run them and save their results.

All files of this folder are imported, and each kind of analysis registers itself. To add one, add a file.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from gasam.analysis.objective import plain_value
from gasam.lab import record as records
from gasam.lab.analyses.comparing import Measure
from gasam.lab.analyses.definition import KINDS, Analysis, Labels, Measurement
from gasam.lab.analyses.loading import load
from gasam.lab.errors import InputError
from gasam.lab.record import AnalysisRecord, Record, Summary
from gasam.lab.storage import replaced, write_json
from gasam.lab.tables import as_json, markdown
from gasam.lab.tasks import Origin
from gasam.lab.training.stored import find_run

__all__ = ["KINDS", "Analysis", "Measure", "name", "restored", "run", "save"]

for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")


def run(
    analysis: Analysis,
    run: Path,
    folder: Path,
    origin: Origin,
    *,
    cpu: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> AnalysisRecord:
    """Analyse a finished run and return the record of the analysis.

    An existing record is only read. An interrupted measurement is continued.

    Args:
        analysis: What to measure.
        run: The record of the finished run, NAME.json, or its folder, NAME.
        folder: The folder for records of analyses.
        origin: Where the run's data is. What it does not say is taken from the run's folder.
        cpu: Use the CPU even if there is a GPU.
        report: Called with a short text about the progress.
    """
    known = find_run(run)
    file = folder / f"{name(analysis, known.name, known.record)}.json"
    if file.exists():
        return records.read_analysis(file)
    code = records.code()
    loaded = load(run, origin, cpu=cpu)
    measurement = Measurement(folder / f".{file.name}", report)
    try:
        found = analysis.measure(loaded, measurement)
    except ValueError as error:  # invalid options, explained in one sentence
        raise InputError(str(error)) from None
    repeated = loaded.record.model_dump(include=set(Summary.model_fields))
    record = AnalysisRecord(
        schema=2,
        kind=analysis.kind,
        options=analysis.options(),
        run=Summary(**repeated | {"name": loaded.name}),
        examples=loaded.count(analysis.split, analysis.rows),
        found=plain_value(found),
        seconds=measurement.seconds,
        machine=records.machine(next(loaded.model.parameters()).device),
        versions=records.versions(),
        **code,
    )
    records.write(file, record)
    measurement.file.unlink(missing_ok=True)
    return records.read_analysis(file)


def name(analysis: Analysis, run: str, record: Record | Summary) -> str:
    """The name of an analysis record, which depends on the options and on the run.

    Args:
        analysis: The analysis.
        run: The name of the run.
        record: The record of the run.
    """
    text = json.dumps([analysis.options(), record.key, record.seed], sort_keys=True)
    return f"{analysis.kind}-{run}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def restored(record: AnalysisRecord) -> Analysis:
    """The analysis, with its options, that made a record."""
    if record.kind not in KINDS:
        raise InputError(f"the kind of an analysis must be one of {', '.join(KINDS)}, got {record.kind!r}")
    return TypeAdapter(KINDS[record.kind]).validate_python(record.options)


def save(analysis: Analysis, found: Sequence[AnalysisRecord], labels: Labels, folder: Path) -> list[str]:
    """Write the table as JSON and Markdown and the picture as PNG and SVG, and return the names of the files.

    Args:
        analysis: The analysis.
        found: Its records, one for each run.
        labels: The labels of the runs.
        folder: Where to write the files.
    """
    from gasam.analysis import pictures

    table = analysis.table(found, labels)
    tasks = dict.fromkeys(f"{each.run.task}-{each.run.size}" for each in found)
    measured = sorted(name(analysis, each.run.name, each.run) for each in found)
    own = hashlib.sha256("\n".join(measured).encode()).hexdigest()[:8]  # other runs or options are another table
    place = folder / "-".join((analysis.filed, *tasks, own))
    numbers, text = place.with_name(f"{place.name}.json"), place.with_name(f"{place.name}.md")
    write_json(numbers, as_json(table) | {"sentence": analysis.sentence(found, labels)})
    with replaced(text) as partial:
        partial.write_text(markdown(table), encoding="utf-8")
    return [str(file) for file in (numbers, text, *pictures.save_all(analysis.draw(found, labels), place))]
