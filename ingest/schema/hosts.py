"""The tables of merged recordings: the recordings, their hosts' clocks, and requests handed from engine to engine."""

from __future__ import annotations

from kvtrace.ingest.schema.declare import BIGINT, INTEGER, TEXT, Table, column

RECORDING = Table(
    "recording",
    "The run directories that the trace was made of. Nothing here for a trace of other tools' files alone.",
    (
        column("recording", INTEGER, "Key (from 1, in the order they were given)."),
        column("name", TEXT, "The run directory's name."),
        column("command", TEXT, "What was launched, a JSON list; NULL without a manifest."),
        column("started_ns", BIGINT, "When it was launched, as its host's clock was corrected."),
        column("ended_ns", BIGINT, "When it ended, likewise."),
        column("exit_code", INTEGER, "Its exit code."),
        column("kvtrace_version", TEXT, "The kvtrace that recorded it."),
    ),
)

HOST_CLOCK = Table(
    "host_clock",
    "The clocks of the recorded hosts, and what was added to each to put all on one time base (derived). Processes of "
    "one boot of one host share a clock, whichever recording they are in, so times between them are exact.",
    (
        column("host_clock", INTEGER, "Key (from 1)."),
        column("host", TEXT, "Host name; NULL for a client that only left what it saw."),
        column("recording", INTEGER, "The first recording with this clock (`recording.recording`)."),
        column("correction_ns", BIGINT, "Added to the host's own UNIX time. The first host's is 0."),
        column("uncertainty_ns", BIGINT, "How far the true one may be from that, either way; NULL if unbounded."),
        column("earliest_ns", BIGINT, "With a smaller one a message would arrive before it was sent; NULL if none."),
        column("latest_ns", BIGINT, "With a larger one, likewise. Below earliest_ns: clocks drifted or were set."),
        column("messages", BIGINT, "Messages between it and others: hand-overs and clients' requests."),
        column("method", TEXT, "reference: the first host; given: --clock-offset; hand_overs: bounded from both sides; "
                               "one_direction: its own time, moved if a bound asked for it; own_clock: its own time."),
    ),
)  # fmt: skip

HOSTS: tuple[Table, ...] = (RECORDING, HOST_CLOCK)
