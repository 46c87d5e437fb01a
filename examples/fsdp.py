"""FSDP2: `torchrun --nproc-per-node 2 examples/fsdp.py`. Without torchrun it runs in one process."""

import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, ga_sam

if "RANK" in os.environ:
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))  # raise an error if another process does not answer
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)

optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
sharp = SharpBackward(model, ga_sam(budget=0.1, cap=0.01))  # after fully_shard, which replaces the parameters

torch.manual_seed(dist.get_rank())
for _ in range(5):
    x, y = torch.randn(32, 20), torch.randint(3, (32,))  # the data of this worker
    optimizer.zero_grad()
    loss = sharp(lambda: cross_entropy(model(x), y))
    optimizer.step()

print(f"worker {dist.get_rank()}: {sharp.last}")

# A distributed checkpoint drops unknown keys, so the state of the schedule is saved in its own file.
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
weights, state = get_state_dict(model, optimizer)
checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
torch.save(sharp.state_dict(), f"{folder[0]}/sharp-{dist.get_rank()}.pt")
before = [p.detach().full_tensor().clone() for p in model.parameters()]
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
sharp.load_state_dict(torch.load(f"{folder[0]}/sharp-{dist.get_rank()}.pt"))

assert sharp.last.climbed
assert all(torch.equal(p.full_tensor(), saved) for p, saved in zip(model.parameters(), before, strict=True))
dist.barrier()  # nobody leaves while another worker may still read
dist.destroy_process_group()
