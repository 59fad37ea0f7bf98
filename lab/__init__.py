"""Experiments: workloads, a client, sweeps and their reports, and subjects to measure, such as a scheduler."""

if __name__ != "kvtrace.lab":
    raise ImportError("import kvtrace.lab, not lab: this folder is a part of the kvtrace package")
