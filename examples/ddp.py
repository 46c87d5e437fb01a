"""DistributedDataParallel: `torchrun --nproc-per-node 2 examples/ddp.py`. Without torchrun it runs in one process."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gasam import SharpBackward, ga_sam, per_worker, shared_walk

if "RANK" in os.environ:
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))  # raise an error if another process does not answer
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3)))
torch.manual_seed(dist.get_rank())
batches = [(torch.randn(32, 20), torch.randint(3, (32,))) for _ in range(4)]  # the data of this worker

optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
walk = ga_sam(budget=0.1, cap=0.01)
sharp = SharpBackward(model, walk)  # one walk for the joint batch: K+1 all-reduces
own = SharpBackward(model, walk, around=per_worker(model))  # one walk per worker: one all-reduce

for x, y in batches:
    for sharp_backward in (sharp, own):  # choose one of them in your own code
        optimizer.zero_grad()
        loss = sharp_backward(lambda: cross_entropy(model(x), y))
        optimizer.step()

# Accumulation in no_sync: gradients are reduced at the end, but the walk is shared in every micro-batch.
accumulating = SharpBackward(
    model,
    walk,
    around=shared_walk(model),
    backward=lambda loss: (loss / len(batches)).backward(),
    accumulation=len(batches),
)
optimizer.zero_grad()
with model.no_sync():
    for x, y in batches[:-1]:
        accumulating(lambda: cross_entropy(model(x), y))
x, y = batches[-1]
accumulating(lambda: cross_entropy(model(x), y))
optimizer.step()

weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
of_all = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
dist.all_gather(of_all, weights)
print(f"worker {dist.get_rank()}: {sharp.last}")

assert all(torch.equal(other, weights) for other in of_all)
assert sharp.last.climbed
assert own.last.climbed
dist.barrier()  # nobody leaves while another worker may still read
dist.destroy_process_group()
