"""The canned queries and what their headers say about them.

A query is a file `NAME.sql` in this folder: a header of comments, then one SELECT.

    -- A question, in one sentence?
    --
    -- A few lines on what is computed, from what, and what is left out.
    --
    -- group: One of `GROUPS`; a query without one stands under the last of them.
    -- figure: A study's figure or table that the answer draws again.
    -- needs: TABLE, TABLE
    -- words: Further words by which a search finds it.
    -- param: NAME TYPE = DEFAULT | Meaning. Without `= DEFAULT` the parameter must be given; VARCHAR(A B) takes A or B.
    -- key: COLUMN, COLUMN: what a narrow terminal shows, the most important first.
    -- worst: COLUMN: a report that has no room for all rows shows those in which it is greatest.
    -- column: NAME [UNIT] SOURCE | Meaning. A continued line is
    --     indented by four more spaces.
    -- setting: RATE: the last columns are the run's policy, this rate of view `run_setting`, its blocks and cache.

Parameters are `$NAME` in the SQL; each use becomes the value, cast to its type. SOURCE says how a value came about:
`recorded` (copied from the trace), `derived` (computed from recorded values) or `inferred` (a guess by a rule).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from kvtrace import sql_header
from kvtrace.errors import KvtraceError
from kvtrace.queries.text import quoted
from kvtrace.sql_header import Column

PARAM_TYPES = ("BIGINT", "BOOLEAN", "DOUBLE", "INTEGER", "VARCHAR")
GROUPS = (
    "Run",
    "Scheduling",
    "Requests and jobs",
    "Prefix caching",
    "Reuse",
    "KV memory",
    "Preemption and eviction",
    "KV access",
    "Offload",
    "GPU",
    "Other",
)
"""Topics of queries, in the order in which they are listed."""

_PARAM = re.compile(
    r"(?P<name>[a-z]\w*) (?P<type>[A-Z]+)(?:\((?P<choices>[^)]+)\))?(?: = (?P<default>[^|]+?))? \| (?P<meaning>.+)"
)
_KINDS = ("group", "figure", "needs", "words", "param", "key", "worst", "column", "setting")
_SETTING = (
    "policy recorded | The run's scheduling policy (this and what follows: table `run_setting`).",
    "{rate} [{of}/s] derived | Measured arrival rate of the run's {of}.",
    "blocks [blocks] recorded | GPU blocks of the run.",
    "block_size_tokens [tokens] recorded | Tokens a block.",
    "cache_mode derived | off, prefix, or either with `+` and the KV connector.",
)


@dataclass(frozen=True)
class Param:
    """A query's parameter. `default` is text that DuckDB casts to `type`; None means NULL. `choices`: all values."""

    name: str
    type: str
    meaning: str
    default: str | None = None
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Query:
    """A canned query: a question, its documentation and its SQL. `needs` are the tables it cannot answer without.

    `figures` are the figures and tables of published studies that the answer draws again. `words` are further words by
    which a search finds it, `key` the columns that a narrow terminal shows, the most important first. `worst` is the
    column by whose greatest values rows are chosen where not all have room; empty: the first rows are shown.
    """

    name: str
    title: str
    description: str
    group: str
    needs: tuple[str, ...]
    figures: tuple[str, ...]
    params: tuple[Param, ...]
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    worst: str
    words: tuple[str, ...]
    body: str = field(repr=False)

    def sql(self, values: Mapping[str, str | None]) -> str:
        """The SELECT with every `$name` replaced by its value, as text, cast to the declared type.

        They are literals and not prepared parameters because DuckDB 1.5 converts the whole result of a relation with
        parameters row by row.
        """
        types = {param.name: param.type for param in self.params}

        def literal(use: re.Match[str]) -> str:
            value = values[use[1]]
            text = "NULL" if value is None else quoted(value)
            return f"CAST({text} AS {types[use[1]]})"

        return re.sub(r"\$([a-z]\w*)", literal, self.body)


def grouped(queries: Iterable[Query]) -> dict[str, list[Query]]:
    """Queries by group, in the order of `GROUPS`; groups without one are left out."""
    found: dict[str, list[Query]] = {group: [] for group in GROUPS}
    for query in queries:
        found[query.group].append(query)
    return {group: members for group, members in found.items() if members}


@cache
def catalogue() -> dict[str, Query]:
    """All canned queries by name, in alphabetical order."""
    files = (file for file in resources.files("kvtrace.queries").iterdir() if file.name.endswith(".sql"))
    queries = (parse(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8")) for file in files)
    return {query.name: query for query in sorted(queries, key=lambda query: query.name)}


def find(name: str) -> Query:
    """The query of that name; underscores stand for dashes.

    Raises:
        KvtraceError: there is none; the message offers the nearest names.
    """
    queries = catalogue()
    wanted = name.lower().replace("_", "-")
    if wanted in queries:
        return queries[wanted]
    near = difflib.get_close_matches(wanted, queries, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(near)}?" if near else "`kvtrace query` lists them"
    raise KvtraceError(f"no query is named {name!r}; {advice}")


def is_name(word: str) -> bool:
    """Return whether a query has that name, underscores standing for dashes."""
    return word.lower().replace("_", "-") in catalogue()


def search(words: Iterable[str]) -> list[Query]:
    """The queries that speak of all these words, or else those that speak of most of them; the closest first."""
    wanted = [word.lower() for word in words]
    scores = {query.name: [_closeness(query, word) for word in wanted] for query in catalogue().values()}
    matched = {name: sum(score > 0 for score in each) for name, each in scores.items()}
    most = max(matched.values(), default=0)
    found = [name for name, number in matched.items() if number == most and most]
    return [catalogue()[name] for name in sorted(found, key=lambda name: (-sum(scores[name]), name))]


def _closeness(query: Query, word: str) -> int:
    """4 for a word of the name or of `words`, 2 for one of the question, 1 for one of the rest; 0 without it."""
    if word in re.split(r"\W+", query.name) or word in query.words:
        return 4
    if re.search(rf"\b{re.escape(word)}", query.title.lower()):
        return 2
    rest = " ".join((query.description, *(column.meaning for column in query.columns))).lower()
    return int(re.search(rf"\b{re.escape(word)}", rest) is not None)


def parse(name: str, text: str) -> Query:
    """Read a query file.

    Raises:
        KvtraceError: the header does not follow the format in this module's docstring.
    """
    file = f"{name}.sql"
    header, body = sql_header.read(file, text, _KINDS)
    setting = [
        entry.format(rate=rate, of=rate.removesuffix("_per_s")) for rate in header.all("setting") for entry in _SETTING
    ]
    return Query(
        name=name,
        title=header.prose[0],
        description="\n\n".join(header.prose[1:]),
        group=_group(name, header.all("group")),
        needs=header.names("needs"),
        figures=tuple(header.all("figure")),
        params=tuple(_param(name, entry) for entry in header.all("param")),
        columns=tuple(sql_header.column(file, entry) for entry in [*header.all("column"), *setting]),
        key=header.names("key"),
        worst="".join(header.names("worst")),
        words=header.names("words"),
        body=body,
    )


def _group(name: str, entries: list[str]) -> str:
    if not entries:
        return GROUPS[-1]
    if len(entries) > 1 or entries[0] not in GROUPS:
        raise KvtraceError(f"{name}.sql: `group: {', '.join(entries)}` is not one of {', '.join(GROUPS)}")
    return entries[0]


def _param(name: str, entry: str) -> Param:
    match = _PARAM.fullmatch(entry)
    if match is None or match["type"] not in PARAM_TYPES:
        raise KvtraceError(
            f"{name}.sql: `param: {entry}` is not NAME TYPE = DEFAULT | MEANING with a type of {', '.join(PARAM_TYPES)}"
        )
    default = match["default"]
    value = None if default in (None, "NULL") else default.strip("'")
    return Param(
        match["name"], match["type"], match["meaning"], value, default is None, tuple((match["choices"] or "").split())
    )
