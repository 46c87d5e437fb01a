"""Check the files in dist/: `python -m tools.check_distribution dist`.

The wheel must hold every file of the package, and the source archive everything that the tests need. In an empty
environment the wheel must work with torch alone, and with the extra `lab` the command must train.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALONE = "import sys, gasam; print([name for name in ('numpy', 'scipy', 'pandas', 'accelerate') if name in sys.modules])"


def main(folder: Path) -> None:
    [wheel] = folder.glob("*.whl")
    [archive] = folder.glob("*.tar.gz")
    check_wheel(wheel)
    with tempfile.TemporaryDirectory() as place:
        check_archive(archive, Path(place))
        check_installed(wheel, Path(place))
    print(f"{wheel} and {archive} are fine")


def check_wheel(wheel: Path) -> None:
    """The wheel has every file of the package, also templates and TOML files, and nothing else."""
    with zipfile.ZipFile(wheel) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    files = {file for file in source.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    expected = {file.relative_to(source).as_posix() for file in files}
    assert held == expected, f"the wheel differs from src in {sorted(held ^ expected)}"


def check_archive(archive: Path, place: Path) -> None:
    """All tests can be collected in the unpacked source archive, so it has what they import and read."""
    with tarfile.open(archive) as opened:
        opened.extractall(place, filter="data")
    [unpacked] = [folder for folder in place.iterdir() if folder.is_dir()]
    environment = os.environ | {"PYTHONPATH": str(unpacked / "src")}
    run(sys.executable, "-m", "pytest", "--collect-only", "-qq", cwd=unpacked, env=environment)
    run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/test_project.py",
        cwd=unpacked, env=environment)  # fmt: skip


def check_installed(wheel: Path, place: Path) -> None:
    """The wheel works in an empty environment: first with torch alone, then with the extra `lab`."""
    venv.create(place / "empty", with_pip=True)
    binaries = place / "empty" / ("Scripts" if os.name == "nt" else "bin")
    python, work = str(binaries / "python"), place / "work"
    work.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "GASAM_CACHE": str(work / "cache")}

    def call(*command: str, code: int = 0) -> str:
        return run(*command, cwd=work, env=environment, code=code)

    install = (python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check")
    call(*install, str(wheel))
    assert call(python, "-c", ALONE).startswith("[]")  # then torch warns that there is no NumPy
    call(python, str(ROOT / "examples" / "loop.py"))
    refusal = call(str(binaries / "gasam"), "tasks", code=2)
    assert "pip install 'gasam[lab]'" in refusal, refusal
    call(*install, f"{wheel}[lab]")
    assert "docstrings" in call(str(binaries / "gasam"), "tasks")
    call(str(binaries / "gasam"), "compare", "digits", "--size", "tiny", "--methods", "baseline,ga-sam", "--cpu")
    assert "GA-SAM" in call(python, "-m", "gasam", "report", "runs")
    assert "table1" in call(str(binaries / "gasam"), "reproduce", "table9", code=2)  # the studies are TOML files


def run(*command: str, cwd: Path, env: dict[str, str], code: int = 0) -> str:
    """Run a command and return all it wrote; raise if it ends with another code.

    Args:
        command: The command and its arguments.
        cwd: The folder to run it in.
        env: The environment variables.
        code: The expected exit code.
    """
    print("$", " ".join(command), flush=True)
    ended = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == code, f"exit code {ended.returncode}:\n{ended.stdout}{ended.stderr}"
    return ended.stdout + ended.stderr


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
