"""The walk in NumPy on one flat float64 vector, the paper's and what this library adds: begin reading here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]


def groups_of(shapes: dict[str, tuple[int, ...]], granularity: str) -> np.ndarray:
    """The group number of each weight, for tensors with these names and shapes that are flattened in this order."""
    numbers: list[int] = []
    labels: dict[object, int] = {}
    for name, shape in shapes.items():
        for index in np.ndindex(*shape):
            label: object = {
                "element": (name, index),
                "filter": (name, index[0]) if len(shape) >= 2 else (name,),
                "layer": (name,),
                "module": name.rpartition(".")[0],
                "model": "all",
            }[granularity]
            numbers.append(labels.setdefault(label, len(labels)))
    return np.array(numbers)


def capped_groups_of(shapes: dict[str, tuple[int, ...]], granularity: str) -> np.ndarray:
    """The groups that the cap applies to: those of T, but the tensors if granularity is "element" or "model"."""
    return groups_of(shapes, "layer" if granularity in ("element", "model") else granularity)


def scales_of(scale: str, w: Vector, g: Vector, groups: np.ndarray, floor: float = 1e-8) -> Vector:
    """T of each weight, from the weights and the gradient of its group; n counts all weights, n_i those of a group."""
    T = np.zeros_like(w)
    n = w.size
    for i in np.unique(groups):
        here = groups == i
        n_i = here.sum()
        norm_w, norm_g = np.sqrt(np.sum(w[here] ** 2)), np.sqrt(np.sum(g[here] ** 2))
        over_g = 0.0 if norm_g == 0 else 1 / max(norm_g, floor * np.sqrt(n_i))
        T[here] = {
            "one": 1.0,
            "gradient_strength": np.sqrt(n_i) * over_g / np.sqrt(n),
            "weight_over_gradient": norm_w * over_g,
            "inverse_gradient": over_g,
            "weight_rms": norm_w / np.sqrt(n_i),
            "weight": norm_w,
        }[scale]
    return T


def p_norm(x: Vector, p: float) -> float:
    return float(np.abs(x).max()) if p == np.inf else float(np.sum(np.abs(x) ** p) ** (1 / p))


def update(g: Vector, T: Vector, p: float, eta: float) -> Vector:
    """u = eta T sgn(g) |T g|^(1/(p-1)) / || |T g|^(1/(p-1)) ||_p: the steepest ascent in the ball |T^-1 u|_p <= eta."""
    if p == np.inf:
        return np.asarray(eta * T * np.sign(g))
    powered = np.abs(T * g) ** (1 / (p - 1))
    size = p_norm(powered, p)
    return np.asarray(eta * T * np.sign(g) * powered / size if size > 0 else np.zeros_like(g))


def project(v: Vector, T: Vector, p: float, epsilon: float) -> Vector:
    """Project v onto the ball |T^-1 v|_p <= epsilon."""
    x = np.divide(v, T, out=np.zeros_like(v), where=T > 0)
    if p == np.inf:
        return np.asarray(T * np.clip(x, -epsilon, epsilon))
    size = p_norm(x, p)
    return np.asarray(v * min(size, epsilon) / size if size > 0 else v)


def radius(budget: float, T: Vector, g: Vector, p: float) -> float:
    """epsilon = budget / |T g|_q with 1/p + 1/q = 1, so that the linearised loss rises by the budget."""
    slope = p_norm(T * g, 1.0 if p == np.inf else p / (p - 1))
    return budget / slope if slope > 0 else 0.0


def capped(a: Vector, w: Vector, groups: np.ndarray, cap: float) -> Vector:
    """Shorten each group's offset to |a_i| <= cap max(|w_i|, 0.01 sqrt(n_i) rms(w))."""
    a = a.copy()
    rms = np.sqrt(np.mean(w**2))
    for i in np.unique(groups):
        here = groups == i
        limit = cap * max(p_norm(w[here], 2), 0.01 * np.sqrt(here.sum()) * rms)
        size = p_norm(a[here], 2)
        if size > limit:
            a[here] *= limit / size
    return a


def walk(
    w: Vector,
    loss_and_gradient: Callable[[Vector], tuple[float, Vector]],
    groups: np.ndarray,
    *,
    scale: str,
    p: float,
    K: int,
    risk: str,
    epsilon: float | None = None,
    budget: float | None = None,
    cap: float | None = None,
    capped_groups: np.ndarray | None = None,
    eta: float | None = None,
    floor: float = 1e-8,
    ascent: Callable[[Vector], tuple[float, Vector]] | None = None,
    direction: Vector | None = None,
) -> tuple[list[Vector], list[float], Vector, Vector]:
    """Return the offsets a_0..a_K, the losses at w + a_k, T, and the gradient for the optimizer.

    This follows section 3.3 of the paper and its appendix "Details of Multi-step Implementation". The tests compare the
    fast walk with it for all scales, granularities, norms, numbers of steps and risks. Unlike the fast walk, it
    computes with a instead of T^-1 a / epsilon, does nothing in place, and divides by T in the projection, as the paper
    does.

    Args:
        w: The weights.
        loss_and_gradient: Returns the loss and its gradient at given weights.
        groups: The group number of each weight, for T.
        scale: The name of the scale T, as in `scales_of`.
        p: p of the ball's norm.
        K: The number of ascent steps.
        risk: "mean" of the gradients of all passes of `loss_and_gradient`, or the "final" one.
        epsilon: Radius of the ball. Give either this or `budget`.
        budget: First-order rise of the loss, in units of the loss.
        cap: Largest |a_i| relative to |w_i|; None means no cap.
        capped_groups: The group number of each weight, for the cap; by default `groups`.
        eta: Step size, in the unit of `epsilon` or `budget`; None means 1.5 epsilon / K.
        floor: Smallest root-mean-square gradient that a scale divides by.
        ascent: Returns a cheaper loss and its gradient, for the passes that only find a direction.
        direction: What the first ascent step climbs instead of the gradient at w. Then there is no pass at w.
    """
    a = np.zeros_like(w)
    offsets, losses, counted = [a], [], []

    def run(k: int) -> Vector:
        """Pass k at w + a; what it computes and whether it counts follows from the risk."""
        counts = k == K or (risk == "mean" and (k > 0 or ascent is None))
        loss, g = loss_and_gradient(w + a) if counts or ascent is None else ascent(w + a)
        losses.append(loss)
        if counts:
            counted.append(g)
        return g

    g = run(0) if direction is None else direction
    T = scales_of(scale, w, g, groups, floor)
    if epsilon is None:
        assert budget is not None
        epsilon = radius(budget, T, g, p)
        eta = None if eta is None else eta * epsilon / budget
    eta = 1.5 * epsilon / K if eta is None else eta
    for k in range(1, K + 1):
        a = project(a + update(g, T, p, eta), T, p, epsilon)
        if cap is not None:
            a = capped(a, w, groups if capped_groups is None else capped_groups, cap)
        offsets.append(a)
        g = run(k)
    return offsets, losses, T, np.mean(counted, axis=0)
