"""Online convex learning: the lemmas and the regret bound of Appendix C, one file per statement."""
