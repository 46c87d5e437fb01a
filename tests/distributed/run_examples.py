"""Started by torchrun: the examples, one after the other."""

import runpy
from pathlib import Path

for name in ("ddp", "fsdp"):
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / f"{name}.py"), run_name="__main__")
