"""Many runs: planned as a grid, executed by worker processes, in a stack, or on a Ray cluster."""

ENGINES = ("local", "stack", "ray")
