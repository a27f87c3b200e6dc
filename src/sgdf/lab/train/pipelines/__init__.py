"""Batches for the training loop, from memory or decoded from files."""
