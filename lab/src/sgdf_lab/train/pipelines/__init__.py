"""Batches for the training loop: resident on the device, or decoded from files meanwhile."""
