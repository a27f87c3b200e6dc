"""The training loop, its schedules and data pipelines, on one device or several."""
