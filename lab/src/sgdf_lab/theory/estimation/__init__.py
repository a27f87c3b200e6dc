"""Estimating a gradient from m^ and g: errors, the optimal gain, the correction factor, fusion.

Section 3 and Appendix B. One file per statement; averages.py is what they share. How well a moving
signal is tracked is measured by benchmarks/tracking.py and described in docs/filter.md.
"""
