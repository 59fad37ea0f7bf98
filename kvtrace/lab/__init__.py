"""Subjects of experiments: things to record, which nothing else of kvtrace imports."""
