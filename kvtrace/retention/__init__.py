"""The flight recorder: keeps a recording within a size or an age, and freezes snapshots of it."""
