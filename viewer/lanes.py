"""The lane of a request on the page."""

STATES = ("queued", "prefill", "decode", "preempted", "resumed")
"""What a request can be doing, as view `request_state` says; a lane's `state` is an index into this."""
