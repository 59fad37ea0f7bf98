"""The values of the GPU tables' enum columns."""

from __future__ import annotations

import enum

from kvtrace.events import EnumType
from kvtrace.ingest.importers.registry import all_importers

SourceKind: EnumType = enum.IntEnum("SourceKind", list(all_importers()))  # type: ignore[misc]
SourceKind.__doc__ = "Which importer read a source."


class ActivityKind(enum.IntEnum):
    """Kind of GPU activity."""

    kernel = 1
    memcpy = 2
    memset = 3
    graph = 4  # a whole CUDA graph, where graphs were not traced by node


class CopyKind(enum.IntEnum):
    """Kinds of memory that a copy read and wrote."""

    host_to_device = 1
    device_to_host = 2
    host_to_array = 3
    array_to_host = 4
    array_to_array = 5
    array_to_device = 6
    device_to_array = 7
    device_to_device = 8
    host_to_host = 9
    peer_to_peer = 10
    unified_host_to_device = 11
    unified_device_to_host = 12
    unified_device_to_device = 13
    unknown = 14


class MemoryKind(enum.IntEnum):
    """Kind of memory that a copy reads or writes."""

    pageable = 1
    pinned = 2
    device = 3
    array = 4
    managed = 5
    device_static = 6
    managed_static = 7
    unknown = 8


class CallApi(enum.IntEnum):
    """CUDA API of a call."""

    runtime = 1
    driver = 2
    other = 3  # a record that repeats another call's correlation id; never joined


class NvtxKind(enum.IntEnum):
    """Kind of an NVTX record."""

    mark = 1
    push_pop = 2
    start_end = 3
    domain = 4
    category = 5
    thread_name = 6
    other = 7


class KernelCategory(enum.IntEnum):
    """Purpose of a kernel, by its name."""

    attention = 1
    gemm = 2
    kv_write = 3
    copy = 4
    norm_activation = 5
    communication = 6
    sampling = 7
    kvtrace = 8  # kvtrace's own stamps
    other = 9


class LayerRole(enum.IntEnum):
    """A kernel's part in a layer."""

    kv_write = 1
    attention = 2
    attention_combine = 3  # adds up the parts of a split attention


class Attribution(enum.IntEnum):
    """Source of an activity's step."""

    nvtx_forward = 1  # launched inside kvtrace's forward range, on its thread
    nvtx_step = 2  # launched inside kvtrace's step range, on its thread
    nvtx_sample = 3  # launched inside kvtrace's sample range, on its thread
    recorded_forward = 4  # launched during a recorded forward pass of the process
    after_range = 5  # launched after such a range and before the next one: sampling, for one
    other_thread = 6  # launched by another thread of the process in that time
    gpu_time = 7  # its launch is unknown: it ran after that step's forward pass began and before the next
    stream_order = 8  # its launch was lost: it ran between an activity of that step and the next forward pass


class LayerMethod(enum.IntEnum):
    """Source of a kernel's layer."""

    kv_window = 1  # it ran inside the window that kvtrace timed on the GPU
    step_order = 2  # it is the n-th of its kind in the step
    graph_order = 3  # it is the n-th of its kind in a CUDA graph launch


class AlignmentMethod(enum.IntEnum):
    """Means by which two clocks were compared."""

    clock_marks = 1  # kvtrace's clock marks: readings of the monotonic clock inside the profile
    forward_ranges = 2  # kvtrace's NVTX forward ranges and the recorded forward passes
    step_ranges = 3  # kvtrace's NVTX step ranges and the recorded steps
    utc_epoch = 4  # the profile's own idea of UNIX time
    none = 5  # the profile has none: times count from its start
    kv_windows = 6  # kernels and the windows that kvtrace timed around them, both on the GPU


class KvEventOp(enum.IntEnum):
    """Kind of event that vLLM published about a block."""

    stored = 1
    removed = 2
    cleared = 3


GPU_ENUMS: tuple[EnumType, ...] = (
    SourceKind,
    ActivityKind,
    CopyKind,
    MemoryKind,
    CallApi,
    NvtxKind,
    KernelCategory,
    LayerRole,
    Attribution,
    LayerMethod,
    AlignmentMethod,
    KvEventOp,
)
