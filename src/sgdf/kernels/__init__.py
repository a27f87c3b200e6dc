"""Ways to run one step of a group: `step(work)` of `loop`, `foreach`, `cpu` and `cuda`."""
