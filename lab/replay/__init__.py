"""What-if replay: vLLM's own scheduler, driven in virtual time from a recording.

`recording` reads what a trace says of an engine and its requests, and `settings` changes it. `timing` predicts how long
steps take. `engine` builds vLLM's scheduler, `drive` steps it, and `run` does so in a process of its own. `check`
compares a replay with its recording. `session` puts them together for the command line; `advise` ranks what-ifs.
"""
