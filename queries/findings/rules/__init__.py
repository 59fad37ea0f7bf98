"""The rules of findings, a module each, with a `RULE`."""
