"""All tolerances, with their reasons. Errors are measured against the largest entry of what is compared."""

import numpy as np
import torch

# float64 against float64, the same mathematics in another order.
EXACT = 1e-11
# float32 against float64: 2^-24, times the few hundred roundings of a small network.
SINGLE = 2e-5
# pytorch_optimizer adds 1e-8 to the length of LookSAM's kept component, which is about 0.005 in its test.
PEER_LOOK_SAM = 1e-6


def error(found, expected) -> float:
    """The largest difference, relative to the largest expected entry."""
    found, expected = (_array(found), _array(expected))
    assert found.shape == expected.shape
    if expected.size == 0:
        return 0.0
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300))


def _array(values) -> np.ndarray:
    return np.asarray(values.detach().cpu().double() if isinstance(values, torch.Tensor) else values, dtype=np.float64)


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def same_bits(found, expected) -> bool:
    """Equal down to the sign of zero and the payload of NaN."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return all(
        a.dtype == b.dtype and torch.equal(a.detach().view(kinds[a.itemsize]), b.detach().view(kinds[b.itemsize]))
        for a, b in zip(found, expected, strict=True)
    )
