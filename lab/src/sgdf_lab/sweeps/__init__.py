"""Many runs: planned as a grid, executed by worker processes or on a Ray cluster."""

ENGINES = ("local", "ray")
