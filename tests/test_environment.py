"""What is installed: the core on torch alone, and nothing that breaks torch's companions here."""

import importlib.metadata
import re
import subprocess
import sys

FORBIDDEN = re.compile(r"^(torchvision|torchaudio|triton|pytorch-triton|nvidia-.*|cuda-.*)$")


def installed() -> set[str]:
    return {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower() for d in importlib.metadata.distributions()}


def test_no_cuda_packages_and_no_torchvision_slipped_in():
    assert "torch" in installed()
    assert not [name for name in installed() if FORBIDDEN.match(name)]


def test_core_requires_torch_alone():
    required = [r for r in importlib.metadata.requires("gasam") if "extra ==" not in r]
    assert [re.match(r"[\w-]+", r).group() for r in required] == ["torch"]


def test_core_imports_torch_alone():
    """In a process of its own: importing gasam brings in nothing that importing torch does not."""
    script = "import sys, torch; before = set(sys.modules); import gasam; print(*sorted(set(sys.modules) - before))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    others = {name.partition(".")[0] for name in output.split()} - {"gasam", "torch"}
    assert not {name for name in others if name not in sys.stdlib_module_names}
    assert "gasam.walk" in output
