"""The device recorder: KV writes and attention timed on the GPU, under CUDA graphs.

`graph_timestamps` times calls in CUDA graphs, `cuda_events` calls outside them; `layers` puts both around each layer's
KV write and attention. `drain` brings the records to the capture log without the engine waiting for anything.
"""
