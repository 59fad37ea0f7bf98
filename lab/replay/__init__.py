"""What-if replay: vLLM's own scheduler, driven in virtual time from a recording.

`recording` reads what a trace says of an engine and its requests, and `settings` changes it. `timing` predicts how long
steps take. `engine` builds vLLM's scheduler, and `drive` steps it. `run` has that done in a `process` of its own, which
is `kept` for the next replay. `check` compares a replay with its recording. `session` puts them together for the
command line; `advise` ranks what-ifs.

`workload` makes recordings of what was never recorded, which `unrecorded` replays; `resample` draws jobs
again, for intervals. `sweep` predicts the cells of a matrix, each in a fork of `cell`.
"""
