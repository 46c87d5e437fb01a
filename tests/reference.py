"""The paper's algorithm on one flat float64 vector, written from the paper; it imports nothing of gasam.

Section 3.3 and the appendix "Details of Multi-step Implementation". Everything is out of place, the walk is in a (not
in T^-1 a), and the projection divides by T as the paper writes it.
"""

import numpy as np


def groups_of(shapes: dict[str, tuple[int, ...]], granularity: str) -> np.ndarray:
    """The group number of every weight."""
    numbers, labels = [], {}
    for name, shape in shapes.items():
        for index in np.ndindex(*shape):
            label = {
                "element": (name, index),
                "filter": (name, index[0]) if len(shape) >= 2 else (name,),
                "layer": (name,),
                "module": name.rpartition(".")[0],
                "model": "all",
            }[granularity]
            numbers.append(labels.setdefault(label, len(labels)))
    return np.array(numbers)


def scales_of(scale: str, w: np.ndarray, g: np.ndarray, groups: np.ndarray, floor: float = 1e-8) -> np.ndarray:
    """T for every weight."""
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


def p_norm(x: np.ndarray, p: float) -> float:
    return float(np.abs(x).max()) if p == np.inf else float(np.sum(np.abs(x) ** p) ** (1 / p))


def update(g: np.ndarray, T: np.ndarray, p: float, eta: float) -> np.ndarray:
    """u = eta T sgn(g) |T g|^(1/(p-1)) / || |T g|^(1/(p-1)) ||_p."""
    if p == np.inf:
        return eta * T * np.sign(g)
    powered = np.abs(T * g) ** (1 / (p - 1))
    size = p_norm(powered, p)
    return eta * T * np.sign(g) * powered / size if size > 0 else np.zeros_like(g)


def project(v: np.ndarray, T: np.ndarray, p: float, epsilon: float) -> np.ndarray:
    x = np.divide(v, T, out=np.zeros_like(v), where=T > 0)
    if p == np.inf:
        return T * np.clip(x, -epsilon, epsilon)
    size = p_norm(x, p)
    return v * min(size, epsilon) / size if size > 0 else v


def walk(w, loss_and_gradient, groups, *, scale, epsilon, p, K, risk, eta=None, floor=1e-8):
    """Returns (offsets a_0..a_K, losses, T, the folded gradient)."""
    eta = 1.5 * epsilon / K if eta is None else eta
    a = np.zeros_like(w)
    loss, g = loss_and_gradient(w)
    T = scales_of(scale, w, g, groups, floor)
    offsets, losses, gradients = [a], [loss], [g]
    for _ in range(K):
        a = project(a + update(g, T, p, eta), T, p, epsilon)
        loss, g = loss_and_gradient(w + a)
        offsets.append(a)
        losses.append(loss)
        gradients.append(g)
    folded = np.mean(gradients, axis=0) if risk == "mean" else gradients[-1]
    return offsets, losses, T, folded
