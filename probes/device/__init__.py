"""The device recorder: KV writes and attention timed on the GPU, under CUDA graphs.

`stamps` holds the CUDA code and launches it, `layers` puts it around each layer's KV write and attention, `drain`
brings the records to the capture log without the engine waiting for anything.
"""
