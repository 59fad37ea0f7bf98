"""Pages for people, made of the canned queries: a report on one run, and several runs side by side."""

if __name__ != "kvtrace.reports":
    raise ImportError("import kvtrace.reports, not reports: this folder is a part of the kvtrace package")
