"""Instruments: curvature, loss landscape and gradients of any model.

    hessian.spectrum              largest eigenvalues, trace and density of the Hessian
    landscape.surface             loss along a line or in a plane of random directions
    landscape.path                the path of a run, in its principal plane
    probe.Probe                   raw and estimated gradients while an optimizer trains
    estimators.estimator_errors   bias, variance and error of gradient estimates
    figures                       a figure of each

They take any ``nn.Module``, loss and batches, and leave the model as it was. ``pip install
"sgdf-lab[instruments]"`` adds curvlinops, which the Hessian needs. Heavy packages are imported
on first use; only ``figures`` imports matplotlib at once.
"""
