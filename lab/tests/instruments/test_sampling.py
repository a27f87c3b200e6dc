"""Histograms count every value."""

import numpy as np

from sgdf_lab.instruments.sampling import Histogram


def test_values_outside_all_bins_are_counted():
    histogram = Histogram(1.0)
    histogram.add(np.array([0.0, 1e7, -1e7, -1e7, np.nan, np.inf, 0.5, -0.5]))
    outside = (histogram.zeros, histogram.above, histogram.below, histogram.not_finite)
    assert outside == (1, 1, 2, 2)
    assert sum(histogram.counts) == 2
    assert histogram.total == 6
