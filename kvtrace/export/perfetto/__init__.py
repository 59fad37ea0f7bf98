"""A trace as Perfetto's own track events: what is drawn (`sources`), where (`tracks`), and how it is encoded."""
