"""A subject and its twin without faults, and the comparison of both after a fault."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from benchmarks.faults.drawn_walks import Case, Subject
from benchmarks.faults.injection import AtLine, AtOperation

SAME_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
NOT_FINITE = "NaN or infinity"


class Fault(NamedTuple):
    """A fault that is ready to be injected into a call of a subject; `raised_in` tells whether it was."""

    kind: str
    call: Callable[[], None]
    raised_in: Callable[[], str | None]
    raises: bool = True


def bits(tensor: Tensor | None) -> Any:
    """A copy that can be compared bit by bit."""
    if tensor is None:
        return None
    values = tensor.detach()
    values = values.to_local() if isinstance(values, DTensor) else values
    values = values.to_dense() if values.is_sparse else values.clone()
    return values.contiguous().view(SAME_SIZE[values.itemsize])


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and repr(one) == repr(other)


def state_of(subject: Subject) -> dict[str, Any]:
    """What a failed call may not change."""
    state: dict[str, Any] = {
        "weights": [bits(parameter) for parameter in subject.parameters],
        "schedule": subject.sharp.strength.state_dict(),
    }
    if subject.base is None:
        state[".grad"] = [bits(parameter.grad) for parameter in subject.parameters]
    else:
        state["base optimizer"] = [bits(subject.base.state[p].get("momentum_buffer")) for p in subject.parameters]
    return state


def method_of(subject: Subject) -> dict[str, list[Any]]:
    """What the method keeps. Zeros are the same as nothing yet."""
    kept = subject.sharp.method_state.state_dict(subject.parameters)
    zeros = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in subject.parameters]
    return {
        name: [bits(zero if tensor is None else tensor) for tensor, zero in zip(tensors, zeros, strict=True)]
        for name, tensors in kept.items()
    }


def different(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    return [name for name in expected if not equal(found[name], expected[name])]


class Pair:
    """A subject and its twin, and the checks after a fault."""

    def __init__(self, case: Case, random: Random, make: Callable[[Case], Subject] = Subject) -> None:
        self.random = random
        self.subject, self.twin = make(case), make(case)
        self.operations: list[tuple[str, bool]] = []
        self.lines: list[tuple[str, str]] = []
        for _ in range(2):  # allocate the buffers
            self.next_step()
        self._record()

    def _record(self) -> None:
        """Run two steps that record where operations and lines of gasam are."""
        self._draw_batch()
        self._same_gradients()
        for _ in range(2):  # one of them walks
            with AtOperation() as operations:
                self.subject.call()
            self.twin.call()
            if len(operations.places) > len(self.operations):
                self.operations = operations.places
        for _ in range(2):
            lines = AtLine()
            with lines():
                self.subject.call()
            self.twin.call()
            if len(lines.places) > len(self.lines):
                self.lines = lines.places

    def _draw_batch(self) -> None:
        seed = self.random.randrange(10**6)
        self.subject.draw_batch(seed)
        self.twin.draw_batch(seed)

    def _same_gradients(self) -> None:
        """Start a call without gradients, or with those of earlier calls, as a loop that accumulates."""
        if self.random.random() < 0.6:
            for subject in (self.subject, self.twin):
                for parameter in subject.parameters:
                    parameter.grad = None

    def next_step(self) -> list[str]:
        """Both take a step; return what differs."""
        self._draw_batch()
        self._same_gradients()
        try:
            self.subject.call()
        except Exception as failure:
            return [f"the next step, which raises {failure!r}"]
        self.twin.call()
        wrong = different(state_of(self.subject), state_of(self.twin))
        if not equal(method_of(self.subject), method_of(self.twin)):
            wrong.append("the state of the method")
        one, other = self.subject.sharp.last, self.twin.sharp.last
        if [value.tolist() for value in (*one.losses, *one.norms)] != [
            v.tolist() for v in (*other.losses, *other.norms)
        ]:
            wrong.append("the trace")
        self._update()
        return [f"{name} in the next step" for name in wrong]

    @torch.no_grad()
    def _update(self) -> None:
        if self.subject.base is None:
            for subject in (self.subject, self.twin):
                for parameter in subject.parameters:
                    if parameter.grad is not None:
                        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                        parameter.sub_(0.05 * gradient.clamp(-1, 1))

    def judge(self, fault: Fault) -> tuple[str | None, list[str]]:
        """Inject the fault. Return where it was raised, None if it was not, and what was lost."""
        self._draw_batch()
        self._same_gradients()
        before, identities = state_of(self.subject), [id(p.grad) for p in self.subject.parameters]
        kept_before = copy.deepcopy(method_of(self.subject))
        raised = False
        try:
            fault.call()
        except (Exception, KeyboardInterrupt):
            raised = True
        place = fault.raised_in()
        if not fault.raises:
            return place, self._after_bad_numbers(before, kept_before, fault.kind == NOT_FINITE) + self.next_step()
        wrong = self._after_failure(raised, before, identities, kept_before)
        if raised:
            self.subject.recover()
        return place, wrong + self.next_step()

    def _after_failure(self, raised: bool, before: Any, identities: list[int], kept_before: Any) -> list[str]:
        wrong = different(state_of(self.subject), before)
        if raised and not wrong:
            if self.subject.base is None and identities != [id(p.grad) for p in self.subject.parameters]:
                return ["the tensors in .grad"]
            return self._method(kept_before)
        sharp = self.subject.sharp
        is_plain = self.subject.base is None and not sharp.walks() and not sharp._folds_this_step
        if raised and is_plain and wrong == [".grad"]:  # as after a plain backward that fails
            self._copy_gradients()
            return []
        with_fault = copy.deepcopy(state_of(self.subject))
        self.twin.call()
        if different(with_fault, state_of(self.twin)):
            return wrong or ["the result of a call that did not raise"]
        return self._sync_method()

    def _copy_gradients(self) -> None:
        for one, other in zip(self.subject.parameters, self.twin.parameters, strict=True):
            other.grad = None if one.grad is None else one.grad.detach().clone()

    def _method(self, before: Any) -> list[str]:
        """Each kept tensor is the old one, or already that of this step, as the docs say of Friendly-SAM."""
        now = method_of(self.subject)
        if equal(now, before) or not now:
            return []
        twin = self.twin
        gradients = [None if p.grad is None else p.grad.detach().clone() for p in twin.parameters]
        originals = [p.grad for p in twin.parameters]
        weights, state = [p.detach().clone() for p in twin.parameters], copy.deepcopy(twin.sharp.state_dict())
        twin.call()
        after = method_of(twin)
        with torch.no_grad():
            for parameter, weight, original, gradient in zip(
                twin.parameters, weights, originals, gradients, strict=True
            ):
                parameter.copy_(weight)
                if original is not None and not original.is_sparse:
                    original.copy_(gradient)
                parameter.grad = original
        with warnings.catch_warnings(action="ignore"):
            twin.sharp.load_state_dict(state)
        for name, tensors in now.items():
            old = before.get(name) or [torch.zeros_like(tensor) for tensor in tensors]
            if not all(equal(t, o) or equal(t, n) for t, o, n in zip(tensors, old, after[name], strict=True)):
                return ["the state of the method"]
        return self._sync_method()

    def _sync_method(self) -> list[str]:
        kept = self.subject.sharp.method_state.state_dict(self.subject.parameters)
        for tensors in kept.values():
            if not all(tensor is None or bool(tensor.isfinite().all()) for tensor in tensors):
                return ["the state of the method, which is not finite"]
        self.twin.sharp.method_state.load_state_dict(copy.deepcopy(kept), self.twin.parameters)
        return []

    def _after_bad_numbers(self, before: Any, kept_before: Any, not_finite: bool) -> list[str]:
        """The call must not raise. It counts as a step, and the bad numbers reach `.grad` alone."""
        wrong = []
        if not equal(state_of(self.subject)["weights"], before["weights"]):
            wrong.append("weights")
        if self.subject.base is not None:
            self.twin.base.skip = True
        self.twin.call()
        if self.subject.base is not None:
            self.twin.base.skip = False
        schedule, expected = self.subject.sharp.strength.state_dict(), self.twin.sharp.strength.state_dict()
        sums = [*schedule["step_sum"], *schedule["block_sum"]]
        if (schedule["step"], schedule["calls"]) != (expected["step"], expected["calls"]) or sums != sums:
            wrong.append("schedule")
        now, after = method_of(self.subject), method_of(self.twin)
        for name, tensors in now.items() if not_finite else ():
            old = kept_before.get(name) or [torch.zeros_like(tensor) for tensor in tensors]
            new = after.get(name) or old
            if not all(equal(t, o) or equal(t, n) for t, o, n in zip(tensors, old, new, strict=True)):
                wrong.append("the state of the method")
        wrong += self._sync_method()
        self.twin.sharp.strength.load_state_dict(schedule)
        for subject in (self.subject, self.twin):
            for parameter in subject.parameters:
                parameter.grad = None
        return wrong
