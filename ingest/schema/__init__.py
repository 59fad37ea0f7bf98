"""The tables of a trace, declared with their comments."""
