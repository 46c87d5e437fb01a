"""The process group of the files `*_checks.py`, which torchrun starts in every process."""

import pytest
import torch.distributed as dist


@pytest.fixture(scope="session")
def process_group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()
