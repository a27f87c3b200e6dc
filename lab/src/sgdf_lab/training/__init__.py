"""The training loop with its schedules and data pipelines, on one device or several."""
