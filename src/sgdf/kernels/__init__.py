"""Ways to run one step: `loop`, `foreach`, `cpu` and `cuda` update lists of tensors in place."""
