"""Started by torchrun: the last process fails in its second pass and stays alive; what do the others do?"""

import datetime
import sys
import time

import torch.distributed as dist
from processes import run
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gasam import SharpBackward, ga_sam
from problems import batch, network
from tolerances import same_bits

PATIENCE = 5  # seconds until a process gives up on the others


def here(model) -> list:
    return [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]


def others_give_up(model) -> dict:
    """They leave the walk by an error, and home."""
    home = [weights.detach().clone() for weights in here(model)]
    fails = dist.get_rank() == dist.get_world_size() - 1
    (x, y), calls, said = batch(), [], ""

    def loss():
        calls.append(1)
        if len(calls) == 2 and fails:
            raise ValueError("a batch that can't be read")
        return cross_entropy(model(x), y)

    sharp = SharpBackward(list(model.parameters()), ga_sam(0.3, steps=2))
    try:
        sharp(loss)
    except (RuntimeError, ValueError) as failure:
        said = str(failure)
    if fails:
        time.sleep(2 * PATIENCE)
    if hasattr(model, "reset_iter_state"):
        model.reset_iter_state()  # FSDP asks for it after a failure
    return {"said": said, "passes": len(calls), "home": same_bits(here(model), home)}


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=PATIENCE))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = DistributedDataParallel(network()) if "ddp" in sys.argv else fully_shard(network(), mesh=mesh)
    run({"failure": lambda: others_give_up(model)}, sys.argv[1])
