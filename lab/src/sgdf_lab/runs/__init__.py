"""A run: its settings, its folder on disk, and the session that trains it."""
