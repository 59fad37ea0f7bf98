"""The plots of the canned queries: `NAME.py` (dashes become underscores) has `plot(frame)` for the query NAME."""
