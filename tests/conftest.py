"""Settings that hold for every test; the environment is set before torch is imported."""

import os

# Some processors advertise matrix instructions for bfloat16 that their machine does not give.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray binds to the loopback address, as it does on these systems, so that a test opens no port to the network.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import pytest
import torch
from hypothesis import settings

settings.register_profile("gasam", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("gasam")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


LONG = (
    "tests/lab/test_ray",
    "tests/distributed/",
    "tests/lab/test_faults",
    "tests/lab/test_training",
    "tests/test_docs",
)
"""Where tests take several seconds each."""


def pytest_collection_modifyitems(items):
    """Long tests first, so that the workers end together."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
