"""Views of a trace: one per derived fact."""
