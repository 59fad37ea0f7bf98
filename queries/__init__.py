"""Canned SQL, one file a question, and the reader of a trace."""

if __name__ != "kvtrace.queries":
    raise ImportError("import kvtrace.queries, not queries: this folder is a part of the kvtrace package")
