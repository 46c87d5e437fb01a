"""Parts of the documentation that are generated from results."""

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def generated_part(page: str, name: str) -> str:
    """What stands between the markers <!-- name --> and <!-- /name -->."""
    _, begin, rest = (DOCS / page).read_text(encoding="utf-8").partition(f"<!-- {name} -->\n\n")
    shown, end, _ = rest.partition(f"\n<!-- /{name} -->")
    assert begin, f"{page} has no marker {name}"
    assert end, f"{page} has no end of {name}"
    return shown
