"""The importer of PyTorch profiler traces."""
