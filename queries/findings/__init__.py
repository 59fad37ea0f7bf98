"""Findings: the few sentences that say what cost a run most, and what to try.

A rule is a module of `rules/`. It asks canned queries, so each number can be looked up there.
"""

from kvtrace.queries.findings.find import NOTHING, UNKNOWN, find_findings, without_findings
from kvtrace.queries.findings.rule import Basis, Finding, Rule, Thing

__all__ = ["NOTHING", "UNKNOWN", "Basis", "Finding", "Rule", "Thing", "find_findings", "without_findings"]
