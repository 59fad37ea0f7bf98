"""The files of a run directory: where they are, how they are laid out, and their reader."""
