"""Canned SQL, one file a question, and the reader of a trace.

with kvtrace.open("trace.duckdb") as trace:
    print(trace.query("step-regression"))
"""

if __name__ != "kvtrace.queries":
    raise ImportError("import kvtrace.queries, not queries: this folder is a part of the kvtrace package")

from kvtrace.queries.catalogue import Param, Query, catalogue, find, grouped, search
from kvtrace.queries.trace import TRACE_VERSION, Trace
from kvtrace.sql_header import Column

__all__ = ["TRACE_VERSION", "Column", "Param", "Query", "Trace", "catalogue", "find", "grouped", "search"]
