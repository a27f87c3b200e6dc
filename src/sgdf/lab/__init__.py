"""Experiments: fair comparisons of optimizers (``pip install "sgdf[lab]"``)."""
