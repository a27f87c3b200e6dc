"""Tables of what the lab knows by name: optimizers, search spaces, tasks, models, datasets.

Nothing here imports torch. A row names its builder, reader or trainer as ``module:object``, which
is imported when a run begins.
"""
