"""Readers of file formats that datasets are published in."""
