"""Tools that measure a trained model: sharpness, robustness, Hessian and Fisher spectra, and loss landscapes."""

from gasam.analysis.attack import Attack, attack, climb, plain
from gasam.analysis.corruption import applied, displaced, pruned, quantised, random_corruption, uniform_start
from gasam.analysis.gradients import GradientNorms, transformer_layers
from gasam.analysis.landscape import Plane, filter_normalised, line, plane
from gasam.analysis.objective import CrossEntropy, Objective, SquaredError, mean_loss
from gasam.analysis.robustness import TABLE4, Curve, HalfRadius, Point, half_radius, robustness
from gasam.analysis.sharpness import Sharpness, sharpness
from gasam.analysis.spectrum import Density, Eigenvalues, spectral_density, top_eigenvalues

__all__ = [
    "TABLE4",
    "Attack",
    "CrossEntropy",
    "Curve",
    "Density",
    "Eigenvalues",
    "GradientNorms",
    "HalfRadius",
    "Objective",
    "Plane",
    "Point",
    "Sharpness",
    "SquaredError",
    "applied",
    "attack",
    "climb",
    "displaced",
    "filter_normalised",
    "half_radius",
    "line",
    "mean_loss",
    "plain",
    "plane",
    "pruned",
    "quantised",
    "random_corruption",
    "robustness",
    "sharpness",
    "spectral_density",
    "top_eigenvalues",
    "transformer_layers",
    "uniform_start",
]
