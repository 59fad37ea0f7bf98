"""Experiments: workloads, a client, sweeps and their reports, and subjects to measure, such as a scheduler."""
