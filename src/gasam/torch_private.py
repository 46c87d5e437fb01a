"""All uses of torch's private interface, which may change in any release; tested with torch 2.13.0."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

# Descriptors, because a loop in C over a thousand parameters takes a third of the time. torch's stubs say tensors.
_tensor: Any = Tensor
get_gradient, set_gradient, set_data = _tensor.grad.__get__, _tensor.grad.__set__, _tensor.data.__set__

copy_all = torch._foreach_copy_  # from sources to targets with few kernels; a loop of `copy_` is much slower
hides_its_memory = is_traceable_wrapper_subclass  # as quantised weights do: exchanging their memory has no effect


def standard_gamma(shapes: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw from Gamma distributions. torch.distributions.Gamma does not accept a generator."""
    return torch._standard_gamma(shapes, generator=generator)


def storage_identity(tensor: Tensor) -> int:
    """A number that tensors with the same storage share. `data_ptr` would be 0 for every empty tensor."""
    return int(tensor.untyped_storage()._cdata)


def version(tensor: Tensor) -> int:
    """A counter that grows whenever torch detects a write to the tensor; 0 for inference tensors, which have none."""
    return 0 if tensor.is_inference() else tensor._version


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor in this process; any other tensor itself. Autograd would record `to_local`."""
    return getattr(tensor, "_local_tensor", tensor)


def fsdp_modules() -> list[Any]:
    """All modules on which `fully_shard` was called. They can't be found from a parameter."""
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp import FSDPModule

    return [module for module in list(_module_state_mapping) if isinstance(module, FSDPModule)]


def awaits_first_reduction(model: DistributedDataParallel) -> bool:
    """Whether a model with static_graph=True still needs its first synchronised backward pass."""
    return bool(model.static_graph and not model._static_graph_delay_allreduce_enqueued)


def rebuild_buckets(model: DistributedDataParallel) -> None:
    """What a forward pass does after the first backward pass, if that one was run inside of a forward pass."""
    model.reducer._rebuild_buckets()


def factors_of_product(node: Any) -> Sequence[Tensor]:
    """The tensors that the autograd node of a product has saved."""
    return [saved for saved in (node._saved_self, node._saved_other) if isinstance(saved, Tensor)]


def updates_running_statistics(node: Any) -> bool:
    """Whether an autograd node is a batch norm that updated its running statistics.

    Saved tensors are not unpacked, because activation checkpointing would then run the pass again.
    """
    mean = getattr(node, "_raw_saved_running_mean", None)
    if mean is None or "BatchNorm" not in node.name() or not getattr(node, "_saved_training", False):
        return False
    try:
        return mean.data is not None or node._saved_running_mean is not None
    except RuntimeError:  # the backward pass of a closure has freed the saved tensors
        return True


def never_reading_values() -> AbstractContextManager[Any]:
    """Tensors that are created in the block have no values, so that an operation that reads one raises."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)
