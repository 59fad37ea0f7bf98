"""A frame of `kvtrace top` as lines of text, for a terminal of any size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from kvtrace.escape import inert
from kvtrace.events import Limit
from kvtrace.live.follow import Follower
from kvtrace.live.misses import Verdict
from kvtrace.live.view import DURATIONS, Row, Sums, Table, View, chosen, rows, sums
from kvtrace.live.window import WINDOW_S, percentile_ns

SMALLEST_WIDTH = 80
KEYS = "q quit  t table  s sort  / filter  e engine  p pause  h help"
HELP = (
    "q        quit",
    "t        next table: requests that wait or run, their sessions, requests that ended in the last minute",
    "s        sort by the next column: blocks, age, ttft, output, preemptions",
    "/        show only requests whose id or session contains a text; Enter ends it, Escape clears it",
    "e        next engine, or all of them",
    "p        pause or go on; what happens meanwhile is counted",
    "h        this help",
    "",
    f"Rates and percentiles are of the last {WINDOW_S} s. A block that requests share counts for each of them.",
    "The reason why the queue waits is inferred, and so is a verdict on a miss; other figures are counted.",
)
_LABEL = 9


def frame(follower: Follower, view: View, width: int, height: int, note: str = "") -> list[Text]:
    """A frame of at most `height` lines, none wider than `width` cells.

    Args:
        follower: The followed recording.
        view: What is chosen.
        width: Cells of a line.
        height: Lines.
        note: Text of the last line instead of the keys.
    """
    lines = [_title(follower, view)]
    if follower.problem:
        lines.append(Text(inert(follower.problem), style="red"))
    if follower.waiting_for:
        lines += [Text(""), Text(f"Waiting for {follower.waiting_for}", style="yellow")]
    else:
        found = sums(chosen(follower, view))
        lines += [*_sums(found, width), Text("")]
        lines += _table(rows(follower, view, max(height - len(lines) - 2, 0)), view, found, width)
    lines = lines[: height - 1]
    lines += [Text("")] * (height - 1 - len(lines))
    lines.append(Text(note or KEYS, style="reverse"))
    for line in lines:
        line.truncate(width, overflow="ellipsis", pad=line.style == "reverse")
    return lines


def help_frame(width: int, height: int) -> list[Text]:
    """The meaning of the keys."""
    from textwrap import wrap

    indents = [" " * _LABEL if line[1:2] == " " else "" for line in HELP]
    folded = [
        part
        for line, indent in zip(HELP, indents, strict=True)
        for part in wrap(line, width - 1, subsequent_indent=indent) or [""]
    ]
    return [Text(line) for line in folded[: height - 1]] + [Text("any key goes back", style="reverse")]


def _title(follower: Follower, view: View) -> Text:
    title = Text.assemble(("kvtrace top", "bold"), f"  {inert(follower.run_dir.name)}  ")
    if follower.ended:
        title.append(f"ended, exit code {follower.exit_code}", style="yellow")
    elif follower.engines and not any(engine.alive for engine in follower.engines):
        title.append("no engine lives", style="red")
    elif follower.engines:
        title.append("recording", style="green")
    for engine in chosen(follower, view)[:1]:
        title.append(f"  {inert(str(engine.state.facts.get('model', '')).rpartition('/')[2])}")
    if len(follower.engines) > 1:
        which = f"engine {view.engine} of" if view.engine is not None else "all"
        title.append(f"  {which} {len(follower.engines)} engines")
    return title


def _sums(found: Sums, width: int) -> Iterator[Text]:
    recent, seconds = found.recent, WINDOW_S
    yield _line(
        "requests", f"{found.running:,} running  {found.waiting:,} waiting   "
        f"{recent['steps'] / seconds:,.1f} steps/s   tokens/s: {recent['prompt_tokens'] / seconds:,.0f} in "
        f"{recent['output_tokens'] / seconds:,.0f} out"
    )  # fmt: skip
    yield _line("KV", _usage(found, width))
    yield _line(
        "prefix", f"{_hit_rate(recent)} of prompt tokens from the cache; {_hit_rate(found.totals)} since the start"
    )
    yield _line("misses", _shares(found.misses, Verdict, int(found.misses.sum()), "lookups"))
    yield _line("queue", _shares(found.limits, Limit, recent["steps"], "steps", "nobody had to wait"))
    yield _line(
        "KV lost", f"{recent['evicted_blocks']:,} blocks evicted, {recent['preemptions']:,} requests preempted, "
        f"{recent['resumed_tokens']:,} tokens recomputed"
    )  # fmt: skip
    yield _line("p50/p99", "  ".join(_latency(name, found) for name in DURATIONS))
    if found.dropped:
        yield Text(f"{found.dropped:,} records were dropped: figures are too low", style="red")


def _line(label: str, text: str | Text) -> Text:
    return Text.assemble((label.ljust(_LABEL), "bold"), text)


def _usage(found: Sums, width: int) -> Text:
    if not found.blocks:
        return Text("-")
    share = found.used_blocks / found.blocks
    cells = max(width - 60, 10)
    style = "red" if share > 0.95 else "yellow" if share > 0.8 else "green"
    full = round(share * cells)
    text = Text.assemble(("#" * full, style), ("." * (cells - full), "dim"))
    return text.append(f" {share:.1%} of {found.blocks:,} blocks; {found.findable_blocks:,} findable")


def _hit_rate(counts: dict[str, int]) -> str:
    queried = counts["queried_tokens"]
    return f"{(counts['hit_tokens'] + counts['external_hit_tokens']) / queried:.1%}" if queried else "-"


_SMALLEST_SHARE = 0.005


def _shares(counts: Any, members: Any, whole: int, unit: str, nothing: str = "-") -> str:
    """Shares of a whole by member, the largest first; those that would be 0% have no room."""
    found = sorted(((int(counts[each]), each.name) for each in members if counts[each]), reverse=True)
    if not found or not whole:
        return nothing
    found = [each for each in found if each[0] / whole >= _SMALLEST_SHARE] or found[:1]
    return f"of {whole:,} {unit}: " + "  ".join(f"{name} {count / whole:.0%}" for count, name in found)


def _latency(name: str, found: Sums) -> str:
    counts = found.durations.get(name)
    if counts is None or not counts.sum():
        return f"{name} -"
    middle, high = (percentile_ns(counts, share) for share in (0.5, 0.99))
    return f"{name} {duration(middle)}/{duration(high)}"


def duration(nanoseconds: float | None) -> str:
    """A duration in two or three digits, with its unit."""
    if nanoseconds is None:
        return "-"
    seconds = nanoseconds / 1e9
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f}ms" if seconds >= 0.00995 else f"{seconds * 1e3:.1f}ms"
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


_HEADS = ("state", "age", "ttft", "blocks", "KV", "prompt", "hit", "output", "preemptions")
_WIDTHS = (5, 6, 6, 6, 4, 6, 4, 5, 3)
_SHORTEST_ID = 9
"""Characters of an id that tell it from others."""

_SHORT = {"output": "out", "preemptions": "pre"}


def _table(found: Sequence[Row], view: View, summed: Sums, width: int) -> Iterator[Text]:
    left = width - sum(_WIDTHS) - len(_WIDTHS)
    title = {"requests": "request", "sessions": "session", "finished": "ended request"}[view.table.name]
    title += f" /{view.filter}" if view.filter else ""
    head = Text(style="bold")
    head.append(set_cell_size(inert(title), left))
    for name, cells in zip(_HEADS, _WIDTHS, strict=True):
        label = _SHORT.get(name, name)
        head.append(" " + label.rjust(cells), style="underline" if name == view.sort.value else "")
    yield head
    if not found:
        yield Text("none; t shows the next table", style="dim")
    for row in found:
        yield Text(_name(row, view, left) + "".join(f" {text:>{cells}}" for text, cells in _cells(row, summed)))


def _name(row: Row, view: View, width: int) -> str:
    """The id behind its session, if there is room for that; an id's end is what tells it from others."""
    session = f"{row.session} " if row.session and view.table is not Table.sessions else ""
    if cell_len(session) + min(_SHORTEST_ID, cell_len(row.name)) > width:
        session = ""
    left = width - cell_len(session)
    name = row.name if cell_len(row.name) <= left else "~" + row.name[1 - left :]
    return set_cell_size(session + name, width)


def _cells(row: Row, summed: Sums) -> Iterator[tuple[str, int]]:
    texts = (
        row.state,
        duration(row.age),
        duration(row.ttft),
        f"{row.blocks:,}",
        f"{row.blocks / summed.blocks:.0%}" if summed.blocks else "-",
        f"{row.prompt:,}",
        f"{row.cached / row.prompt:.0%}" if row.prompt else "-",
        f"{row.output:,}",
        f"{row.preemptions}",
    )
    yield from zip(texts, _WIDTHS, strict=True)
