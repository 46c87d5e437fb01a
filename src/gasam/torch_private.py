"""What gasam uses of torch beyond its public interface, all in this file. Tested with torch 2.13.0.

Names that begin with an underscore may change between two releases of torch. Where a public function does the same at
no cost, gasam uses the public one; a test makes sure that no other file uses a private name. Before the upper bound on
torch in pyproject.toml is raised, the whole test suite must pass with the new release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

copy_all = torch._foreach_copy_
"""copy_all(targets, sources): copy each source to its target by few kernels. A loop of `copy_` is much slower."""


def standard_gamma(shapes: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw from the Gamma distributions of these shapes. torch.distributions.Gamma does not take a generator."""
    return torch._standard_gamma(shapes, generator=generator)


def storage_identity(tensor: Tensor) -> int:
    """The same number for tensors that share their storage. `data_ptr` would be 0 for every empty one."""
    return int(tensor.untyped_storage()._cdata)


def version(tensor: Tensor) -> int:
    """Grows whenever torch notices that the tensor is written."""
    return tensor._version


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """The module's own buffers, to read and to change. `named_buffers` leaves out those that are None."""
    return module._buffers


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor (DTensor) that is in this process; any other tensor is returned as it is.

    `to_local` would return a new tensor each time, and be recorded by autograd.
    """
    part: Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def fsdp_modules() -> list[Any]:
    """All modules on which `fully_shard` was called. A parameter does not know its module."""
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp import FSDPModule

    return [module for module in list(_module_state_mapping) if isinstance(module, FSDPModule)]


def awaits_first_reduction(model: DistributedDataParallel) -> bool:
    """Whether a model with static_graph=True has not yet had a backward pass that was synchronised."""
    return bool(model.static_graph and not model._static_graph_delay_allreduce_enqueued)


def factors_of_product(node: Any) -> Sequence[Tensor]:
    """The tensors that a node of a product has saved."""
    return [saved for saved in (node._saved_self, node._saved_other) if isinstance(saved, Tensor)]


def updates_running_statistics(node: Any) -> bool:
    """Whether a node of the graph is batch norm that counts the batch in its running statistics.

    Saved tensors are not unpacked, because checkpointing would run the pass again. Other nodes are ignored.
    """
    try:
        if "BatchNorm" not in node.name() or not node._saved_training:
            return False
        kept = node._raw_saved_running_mean.data is not None
    except AttributeError:
        return False
    try:
        return kept or node._saved_running_mean is not None
    except RuntimeError:  # a closure's backward has freed what was there
        return True
