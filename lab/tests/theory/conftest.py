import numpy as np
import pytest


@pytest.fixture
def weights():
    """The weights of g_1..g_t in m_t, by unrolling the iteration on unit vectors."""

    def unrolled(t, beta, mu):
        m = np.zeros(t)
        for i in range(t):
            m = beta * m
            m[i] += mu
        return m

    return unrolled
