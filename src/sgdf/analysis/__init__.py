"""Instruments: the curvature and the surroundings of the loss where a training ended.

    hessian.spectrum     the largest eigenvalues, the trace and the density of all eigenvalues
    landscape.surface    the loss on a line or a plane of comparable random directions
    landscape.path       the way of a training, in the plane that shows most of it
    figures              pictures of these

They take any ``nn.Module``, loss and batches, and leave the model as it was. What they need beside
torch and numpy comes with ``pip install "sgdf[lab]"`` and is imported when they are called.
"""
