"""Tiers behind the GPU's prefix cache in replays.

`connector` is a model of a tier: a scheduler-side connector of its own. `simple_cpu` emulates the worker of vLLM's
SimpleCPUOffloadConnector. `prefetch` moves KV ahead of a session's return, as a policy says. `worker` makes what a
replay needs of them.
"""
