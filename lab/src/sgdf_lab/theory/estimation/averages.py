"""The average m^ and its combination with the gradient, (1-K) m^ + K g: variances and gains."""

from typing import Any

import numpy as np

from sgdf.filter import one_minus_power
from sgdf_lab.theory.filtering import BETA1
from sgdf_lab.theory.result import Array


def optimal_gain(var_m: Any, var_g: Any) -> Any:
    """The printed gain K = Var m^ / (Var m^ + Var g) (proof_method).

    It needs Cov(m^, g) = 0 and equal means, which the paper does not state.
    """
    return var_m / (var_m + var_g)


def optimal_gain_with_covariance(var_m: Any, var_g: Any, covariance: Any) -> Any:
    """The gain that minimises Var((1-K) m^ + K g) when m^ and g are correlated."""
    return (var_m - covariance) / (var_m + var_g - 2 * covariance)


def combined_variance(K: Any, var_m: Any, var_g: Any, covariance: Any = 0.0) -> Any:
    """Var((1-K) m^ + K g)."""
    return (1 - K) ** 2 * var_m + K**2 * var_g + 2 * K * (1 - K) * covariance


def correction_factor(t: Any, beta1: float) -> Any:
    """The printed factor (1-b1)(1-b1^2t)/(1+b1) from Var g to Var m_t (proof_correction)."""
    return (1 - beta1) * (1 - beta1 ** (2 * t)) / (1 + beta1)


def corrected_mean_factor(t: Any, beta1: float) -> Any:
    """Var m^_t / Var g: that of m_t over (1-b1^t)^2; 1 at t = 1, where m^ = g."""
    return correction_factor(t, beta1) / (1 - beta1**t) ** 2


def average_and_gradient(t: int, samples: int, rng: np.random.Generator) -> tuple[Array, ...]:
    """(m^_{t-1}, m^_t, g_t) of independent runs over gradients of mean 0 and variance 1."""
    m = np.zeros(samples)
    before = m
    for _ in range(t):
        before = m
        g = rng.normal(size=samples)
        m = BETA1 * m + (1 - BETA1) * g
    return before / one_minus_power(BETA1, t - 1), m / one_minus_power(BETA1, t), g
