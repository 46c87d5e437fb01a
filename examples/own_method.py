"""Your own method: what the walk climbs, and how the gradients of the passes become one."""

from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Method, SharpBackward, friendly_sam, gsam, look_sam, sam, sam_on, wsam
from gasam.family import add, norm, scaled

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.LayerNorm(50), nn.ReLU(), nn.Linear(50, 3))
x = torch.randn(256, 20)
y = x[:, :3].argmax(1)

family = {
    "GSAM": gsam(0.05, alpha=0.4),
    "WSAM": wsam(0.05, gamma=0.9),
    "Friendly-SAM": friendly_sam(0.05, sigma=1.0, decay=0.9),
    "LookSAM, a walk on every fifth step": look_sam(0.05, alpha=0.7),
    "SAM-ON": sam_on(0.5),
    "GSAM with the scale of GA-SAM": replace(gsam(1e-3), scale="gradient_strength", granularity="layer"),
}
for name, perturbation in family.items():
    sharp = SharpBackward(model, perturbation)
    sharp(lambda: cross_entropy(model(x), y))
    print(f"{name}: {sharp.last}")
    assert sharp.last.sharpness > 0


class Halfway(Method):
    def direction(self, g, kept):
        """Climb a running mean of the gradients instead of the newest one."""
        return kept.mix("mean", 0.9, g)

    def fold(self, gradients, kept, strength):
        """The direction between the clean and the displaced gradient, with the length of the displaced one."""
        clean, last = gradients
        length = norm(last)
        both = add(last, clean, 1.0)
        return scaled(both, length / norm(both))


sharp = SharpBackward(model, replace(sam(0.05), method=Halfway()))

optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for i in torch.arange(256).split(32) * 5:
    optimizer.zero_grad()
    losses.append(sharp(lambda i=i: cross_entropy(model(x[i]), y[i])))
    optimizer.step()

assert losses[-1] < losses[0]
assert [tensor.shape for tensor in sharp.state_dict()["method"]["mean"]] == [p.shape for p in model.parameters()]
