"""Two workers forked from the test, so that nothing is imported again."""

import faulthandler
import gc
import os

import torch
from torch import distributed as dist


def run_two(worker, path, monkeypatch):
    """`worker(rank, path)` in each; a worker that waits for more than a minute ends, and the test with it."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    # Below the range that the system gives to others on the same machine between our asking and our using.
    monkeypatch.setenv("MASTER_PORT", str(20000 + os.getpid() % 10000))
    torch.multiprocessing.start_processes(_start, (worker, str(path)), nprocs=2, start_method="fork")


def _start(rank, worker, path):
    faulthandler.dump_traceback_later(60, exit=True)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "TORCHELASTIC_RUN_ID": "1"}
    worker(rank, path)
    gc.collect()
    dist.destroy_process_group()  # once all that the worker held is gone: in the other order torch was seen to hang
    faulthandler.cancel_dump_traceback_later()
