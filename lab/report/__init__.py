"""`kvtrace lab report`: what a sweep's cells found, in tables, plots and comparisons. A file a kind of part."""
