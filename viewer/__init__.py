"""The static page made from a trace."""

if __name__ != "kvtrace.viewer":
    raise ImportError("import kvtrace.viewer, not viewer: this folder is a part of the kvtrace package")
