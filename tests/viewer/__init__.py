"""Tests of the page `kvtrace view` writes."""
