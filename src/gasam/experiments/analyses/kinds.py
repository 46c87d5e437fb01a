"""Every kind of analysis by its name, and an analysis again from the record of one."""

from __future__ import annotations

from typing import Any

from gasam.experiments.analyses import Analysis
from gasam.experiments.analyses.landscape import Plane, Towards
from gasam.experiments.analyses.mixtures import Mixtures
from gasam.experiments.analyses.robustness import Robustness
from gasam.experiments.analyses.sharpness import Rises
from gasam.experiments.analyses.shifted_line import ShiftedLine
from gasam.experiments.analyses.spectrum import Spectrum
from gasam.experiments.analyses.substitutions import Substitutions
from gasam.experiments.errors import InputError
from gasam.experiments.records import Record

KINDS: dict[str, type[Analysis]] = {
    kind.kind: kind for kind in (Robustness, Rises, Spectrum, Plane, Towards, Mixtures, ShiftedLine, Substitutions)
}


def restored(record: Record) -> Analysis:
    """What was measured there, as its options say."""
    if record["kind"] not in KINDS:
        raise InputError(f"the kind of an analysis must be one of {', '.join(KINDS)}, got {record['kind']!r}")
    options: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in record["options"].items()}
    if isinstance(options.get("norm"), str):
        options["norm"] = float(options["norm"])
    return KINDS[record["kind"]](**options)
