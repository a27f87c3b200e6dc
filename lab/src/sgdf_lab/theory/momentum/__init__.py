"""Momentum m <- beta m + mu g: its moments, its diffusion, and the printed bounds on both.

Section 2 and Appendix A. EMA is mu = 1 - beta, CM is mu = 1. Time is counted in iterations and
kappa stands for 1 - beta throughout. One file per statement; diffusion.py is what they share.
"""
