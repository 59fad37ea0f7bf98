"""Pages for people, made of the canned queries: a report on one run, and several runs side by side."""
