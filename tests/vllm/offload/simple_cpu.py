"""SimpleCPUOffloadConnector without a GPU: vLLM's own code, on stand-ins for CUDA's streams, events and batched copy.

It writes every copy, a JSON object a line, to the file named by KVTRACE_TEST_SPEC_LOG.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, NamedTuple

import torch
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector
from vllm.v1.simple_kv_offload import copy_backend, worker

try:
    from vllm.v1.simple_kv_offload import disk_backend
except ImportError:  # before vLLM 0.28
    disk_backend = None


class Event:
    """Done as soon as it is recorded: the copies before it are synchronous."""

    def record(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class Stream:
    cuda_stream = 0

    def __init__(self, priority: int = 0) -> None:
        self.priority = priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -1

    def wait_event(self, event: Event) -> None:
        pass


class Cuda:
    Stream = Stream

    @staticmethod
    def current_stream() -> Stream:
        return Stream()


class Torch:
    Event = Event
    cuda = Cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class Params(NamedTuple):
    source: list[Any]
    target: list[Any]


def build_params(source: dict[str, Any], target: dict[str, Any], stream: Any, **_: Any) -> Params:
    return Params(list(source.values()), list(target.values()))


lock = threading.Lock()


def copy_blocks(source_ids: list[int], target_ids: list[int], params: Params) -> None:
    for source, target in zip(params.source, params.target, strict=True):
        target[target_ids] = source[source_ids]
    size = sum(len(source_ids) * tensor.stride(0) * tensor.element_size() for tensor in params.source)
    line = {"source": source_ids, "target": target_ids, "bytes": size}
    with lock, open(os.environ["KVTRACE_TEST_SPEC_LOG"], "a") as log:  # noqa: PTH123
        log.write(json.dumps(line) + "\n")


for module in filter(None, (copy_backend, disk_backend, worker)):
    module.torch = Torch()
for module in filter(None, (copy_backend, disk_backend)):
    module.build_params, module.copy_blocks = build_params, copy_blocks
if disk_backend is not None:
    disk_backend.pin_tensor = lambda tensor: None


def waiting(launch: Any) -> Any:
    """Copies that are over when they have been launched, so that every run is the same."""

    def launch_and_wait(*args: Any, event_idx: int, events_list: list[Any], **kwargs: Any) -> None:
        launch(*args, event_idx=event_idx, events_list=events_list, **kwargs)
        while all(done != event_idx for done, _ in list(events_list)):
            time.sleep(1e-4)

    return launch_and_wait


if os.environ.get("KVTRACE_TEST_WAIT"):
    for backend in filter(None, (copy_backend.DmaCopyBackend, getattr(disk_backend, "DiskBackend", None))):
        backend.launch_copy = waiting(backend.launch_copy)


class SimpleCpuWithoutGpu(SimpleCPUOffloadConnector):
    pass


KVConnectorFactory.register_connector("SimpleCpuWithoutGpu", __name__, "SimpleCpuWithoutGpu")
