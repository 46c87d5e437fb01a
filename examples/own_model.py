"""Compare methods on your own model from Python: the result is a pandas frame with a row for each run."""

import shutil
import tempfile
from pathlib import Path

from gasam.lab import compare

task = Path(__file__).parent / "tasks" / "regression.py"
folder = Path(tempfile.mkdtemp())  # or Path("runs"), where the command puts its runs
frame = compare(task, ["baseline", "ga-sam"], seeds=2, settings={"epochs": 2}, out=folder)

print(frame[["method", "seed", "valid", "test", "gradient_evaluations"]])
print(frame.groupby("method")["test"].mean())

assert list(frame["method"]) == ["baseline", "ga-sam", "baseline", "ga-sam"]
assert frame["test"].notna().all()
shutil.rmtree(folder)
