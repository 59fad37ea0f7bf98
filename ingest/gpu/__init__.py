"""GPU activity of any profiler: its tables, clock alignment, and the steps and layers it belongs to."""
