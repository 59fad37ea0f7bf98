"""Everything that touches a live engine: the vLLM plugin, its hooks and what they record."""

if __name__ != "kvtrace.probes":
    raise ImportError("import kvtrace.probes, not probes: this folder is a part of the kvtrace package")
