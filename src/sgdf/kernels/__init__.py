"""Ways to run the filter: each module updates lists of tensors in place, by the same rule."""
