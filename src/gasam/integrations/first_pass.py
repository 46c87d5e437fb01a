"""`FirstPass`, a walk whose first pass is run by the framework, and checks that the integrations share."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from copy import copy, deepcopy
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.nn.parallel import DistributedDataParallel

from gasam.backward import LossPasses, SharpBackward
from gasam.contexts import together
from gasam.distributed import is_sharded, shared_walk
from gasam.optimizer import SharpnessAware
from gasam.passes import Backward, Pass, derivatives, loss_in, now, uninterrupted
from gasam.schedule import is_number
from gasam.torch_private import get_gradient, rebuild_buckets, set_gradient

Part = Callable[[Any], Any]
"""From a batch to the part on which the ascent is found."""

_IN_PLACE = (
    "ascent_fraction and walks without a clean pass can't displace the framework's own pass if weights are sharded, "
    "overlap, or are written in place: give recommended(passes=2), or use SharpBackward in your own training loop"
)


class FirstPass(LossPasses):
    """A step whose first pass of the loss function is the framework's: `forward` runs its forward, `fold` the rest.

    If that pass is at w + a, the step runs twice: `forward` ends it after the framework's forward, so the weights are
    home when callbacks run. `fold` runs it again with the gradients of passes that only find a direction, which were
    kept. The displaced weights get the same bits, and the framework's backward finds what its forward has read.
    """

    def __init__(self, sharp: SharpBackward, model: object) -> None:
        self.sharp, self.ascent = sharp, None
        self.loss: Tensor | None = None  # of the framework's forward
        self._around = sharp.around
        self._model = model if isinstance(model, DistributedDataParallel) else None
        if self._model is not None and not sharp.per_worker:
            # Frameworks accumulate under no_sync, where each worker would compute its own perturbation. A method's fold
            # needs the reduced gradient of the last pass as well.
            share = shared_walk(self._model, also_last=sharp.perturbation.own_fold is not None)
            self._around = together(share, sharp.around)
        self._stack = ExitStack()  # of the framework's pass, which `forward` opens and `fold` closes
        self._decided = {"enabled": sharp.enabled, "perturbation": sharp.perturbation}  # for both
        self._found: list[tuple[Pass, list[Tensor | None]]] = []  # passes that only found a direction, and gradients

    def close(self) -> None:
        self._stack.close()
        if self.sharp.weights.keeps_graph:  # there was no backward, and later it would be wrong
            self.sharp.weights.keeps_graph = False
            increment_version(self.sharp.weights.tensors)

    def forward(
        self, run: Callable[[], Any], again: Callable[[], Any], ascent: Callable[[], Any] | None, backward: Backward
    ) -> Any:
        """Run the framework's forward where the first pass of the loss function belongs; return its result.

        `again` computes the loss of later passes, `ascent` that of passes that only find a direction. Their backward is
        `backward`, with autocast off, as in the framework.
        """
        sharp, output = self.sharp, None
        self._again, self.ascent = again, ascent

        def function() -> None:
            nonlocal output
            displaced = sharp.weights.walking
            if displaced and sharp.weights.written_in_place:
                raise RuntimeError(_IN_PLACE)
            output = run()
            self.loss = loss_in(output)
            sharp.weights.keeps_graph = displaced and self.loss is not None
            raise _Forwarded

        def without_autocast(loss: Tensor) -> None:
            with torch.autocast(loss.device.type, enabled=False):
                backward(loss)

        with suppress(_Forwarded):
            if sharp.walks() and not self.has_clean_pass:
                with self._unchanged():
                    self._step(function, backward=without_autocast)
            self._pass(0, not sharp.walks())
            function()
        return output

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Afterwards restore gradients and what a direction has changed, because `fold` begins again."""
        kept, method, parameters = self.sharp.kept, self.sharp.perturbation.method, self.sharp.parameters
        state = None if method is None or method.learns else deepcopy(kept.state_dict(parameters))
        # Without the caller's gradients the step need not copy them, unless its passes write DDP's buckets.
        shares_memory = self._model is not None and self._model.gradient_as_bucket_view and self.ascent is not None
        here = [] if shares_memory else parameters
        gradients = list(map(get_gradient, here))
        deque(map(set_gradient, here, repeat(None)), maxlen=0)
        try:
            yield
        finally:
            deque(map(set_gradient, here, gradients), maxlen=0)
            if state is not None:
                kept.load_state_dict(state, parameters)

    def fold(self, made: Tensor, backward: Backward, *, items: Tensor | float = 1.0) -> Tensor:
        """Run the walk; return the factor by which the framework multiplied the loss, for example 1 / accumulation.

        The framework calls `backward` on `made`, which it computed from the loss of `forward`. Losses of later passes
        are multiplied by the same factor, d(made)/d(loss), which two hooks read in the first backward pass. `items` is
        the loss divided by the mean over its examples; it multiplies the user's `gradient_scale`.
        """
        loss, scale = self.loss, self.sharp.gradient_scale
        assert loss is not None
        factors: list[Tensor] = []

        def scaled_backward(multiple: Tensor) -> None:
            """Run backward on a multiple of the pass's loss, as the framework would."""
            if factors:
                backward(multiple * factors[0])
                return
            with derivatives(loss) as at_loss, derivatives(made) as at_made:
                backward(made if self.factor == 1 else made * self.factor)
            self.sharp.weights.keeps_graph = False
            if not at_loss:
                raise RuntimeError(
                    "the tensor given to backward does not depend on the loss of the first pass: do not detach it"
                )
            factors.append(at_loss[0] / at_made[0])

        replaced = {"backward": scaled_backward, "gradient_scale": lambda: now(scale) * items} | self._decided
        self._step(lambda: self._again() if factors else loss, **replaced)
        return factors[0]

    def _step(self, function: Callable[[], Any], **replaced: object) -> None:
        with shadowed(self.sharp, around=self._pass, **replaced), uninterrupted() as held:
            super().__init__(self.sharp, function, held, self.ascent)
            try:
                self.sharp.clock.state = self.sharp.step(self)
            finally:
                del self.function  # which knows this object, so that both would stay until the garbage is collected

    def __call__(self, factor: float, *, last: bool, for_direction: bool, walks: bool = True) -> Pass:
        if for_direction and self.loss is not None:
            seen, gradients = self._found.pop(0)
            deque(map(set_gradient, self.trained, gradients), maxlen=0)
            self.seen.append(seen)
            return seen
        seen = super().__call__(factor, last=last, for_direction=for_direction, walks=walks)
        if for_direction:
            gradients = list(map(get_gradient, self.trained))
            if self._model is not None:
                gradients = [None if each is None else each.clone() for each in gradients]  # of views of its buckets
                rebuild_buckets(self._model)
            self._found.append((seen, gradients))
        return seen

    def _pass(self, k: int, last: bool) -> AbstractContextManager[Any]:
        if k != 0:
            return self._around(k, last)
        if self.loss is None:
            self._stack.enter_context(self._around(0, last))
            return nullcontext()
        return self._stack


class _Forwarded(BaseException):
    """Ends the step in `forward`."""


def part_of(share: float | None, part: Part | None) -> Part | None:
    """The function that takes the part of a batch on which the ascent is found. None means the whole batch."""
    if part is not None or share is None:
        return part
    if not (is_number(share) and 0 < share <= 1):
        raise ValueError(f"ascent_fraction must be a share in (0, 1], such as 0.25, or None, got {share!r}")
    return partial(_first_examples, share)


def _first_examples(share: float, batch: Any) -> Any:
    """The first share of the examples, which are the first dimension of every tensor in the batch."""
    shapes: set[tuple[int, ...]] = set()
    _each_tensor(lambda tensor: shapes.add(tuple(tensor.shape[:1])), batch)
    if len(shapes) != 1 or () in shapes:
        raise ValueError(
            "it is not clear what the first examples of this batch are, because the first dimensions of its tensors "
            f"are {sorted(shapes)}: give part=, a function from the batch to the part that ascent_fraction would take"
        )
    count = math.ceil(share * shapes.pop()[0] - 1e-9)
    return _each_tensor(lambda tensor: tensor[:count], batch)


def _each_tensor(function: Callable[[Tensor], Any], batch: Any) -> Any:
    """The batch with each of its tensors replaced, in mappings, lists and tuples of any depth."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, MutableMapping):
        found = copy(batch)  # a BatchEncoding stays one
        for key, value in batch.items():
            found[key] = _each_tensor(function, value)
        return found
    if isinstance(batch, list | tuple):
        make = getattr(batch, "_make", type(batch))  # a namedtuple stays one
        return make([_each_tensor(function, each) for each in batch])
    return batch


@contextmanager
def shadowed(owner: object, **attributes: object) -> Iterator[None]:
    """Replace attributes of an object inside the block."""
    own = vars(owner)
    before = {name: own[name] for name in attributes.keys() & own.keys()}
    own.update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del own[name]
        own.update(before)


def check_order(cls: type, mixin: type, framework: str) -> None:
    """Raise if the mixin comes after the framework's class in the list of bases."""
    names = [base.__name__ for base in cls.__mro__]
    if framework in names and names.index(framework) < names.index(mixin.__name__):
        raise TypeError(
            f"{cls.__name__} has {mixin.__name__} after {framework} in its bases, where it has no effect: write class "
            f"{cls.__name__}({mixin.__name__}, ...)"
        )


def checked(sharp: object, builder: str) -> SharpBackward:
    """The result of the method `builder`. Raise unless it is a SharpBackward that runs the framework's backward."""
    if not isinstance(sharp, SharpBackward):
        raise TypeError(f"{builder} must return a SharpBackward, got {type(sharp).__name__}")
    if sharp.backward is not torch.Tensor.backward:
        raise ValueError(f"{builder} must not give SharpBackward a backward, because the framework has one")
    if not sharp.perturbation.clean_pass and (sharp.in_place or any(map(is_sharded, sharp.parameters))):
        raise RuntimeError(_IN_PLACE)  # now, and not when the schedule begins to walk
    return sharp


def check_optimizers(sharp: SharpBackward, optimizers: Iterable[Any], model: nn.Module, builder: str) -> None:
    """Raise unless `sharp` has all parameters that are trained now, and no optimizer walks as well.

    It runs in every step, because gradual unfreezing adds parameters, and does not search the whole model.
    """
    known = set(map(id, sharp.parameters))
    for optimizer in optimizers:
        if isinstance(getattr(optimizer, "optimizer", optimizer), SharpnessAware):
            raise RuntimeError(
                "the mixin and SharpnessAware are both used, so each would run a walk: give the plain optimizer, or "
                "remove the mixin"
            )
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        unknown = {id(parameter) for parameter in trained} - known
        if unknown:
            name = next((name for name, p in model.named_parameters() if id(p) in unknown), "of the optimizer")
            raise RuntimeError(
                f"parameter {name!r} is trained, but {builder} did not give it to SharpBackward: give all of "
                "named_parameters(), including frozen ones, and add no module later"
            )
