"""Non-convex stochastic optimization: the statements of Appendix D, one file each."""
