"""The core alone pulls nothing of the frameworks; an extra that is missing is named."""

import importlib
import importlib.util
import subprocess
import sys

import pytest

FRAMEWORKS = ["lightning", "pytorch_lightning", "transformers", "accelerate", "peft", "torchmetrics"]


def test_importing_gasam_imports_no_framework():
    script = f"import sys, gasam, gasam.integrations; print([name for name in {FRAMEWORKS} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(("module", "missing", "packages"), [
    ("lightning", ["lightning", "pytorch_lightning"], "lightning"),
    ("transformers", ["transformers", "accelerate"], "transformers and accelerate"),
    ("transformers", ["accelerate"], "accelerate"),
])  # fmt: skip
def test_missing_extra_is_named_in_one_sentence(module, missing, packages, monkeypatch):
    found = importlib.util.find_spec
    for place in ("importlib.util.find_spec", "gasam.integrations.find_spec"):
        monkeypatch.setattr(place, lambda name, *rest: None if name in missing else found(name, *rest))
    monkeypatch.delitem(sys.modules, f"gasam.integrations.{module}", raising=False)
    with pytest.raises(ImportError) as raised:
        importlib.import_module(f"gasam.integrations.{module}")
    assert str(raised.value) == f"this integration needs {packages}: run `pip install 'gasam[{module}]'`"
