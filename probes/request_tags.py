"""Tags of a request: what its client passes along beside the fields that vLLM knows."""

from __future__ import annotations

from typing import Any, Protocol

from kvtrace.probes.optional_attributes import OptionalAttributes


class Tagged(Protocol):
    """A request, in the API process or in the engine."""

    sampling_params: object | None
    pooling_params: object | None


def client_tags(request: Tagged, optional: OptionalAttributes, lost: str) -> dict[str, Any]:
    """Read `SamplingParams.extra_args`, which are `vllm_xargs` in an OpenAI request.

    Args:
        request: vLLM's request.
        optional: Reads attributes that a version may lack.
        lost: What a trace lacks without them, for the summary.
    """
    if request.sampling_params is not None:
        return optional.read(request.sampling_params, "extra_args", lost) or {}
    return optional.read(request.pooling_params, "extra_kwargs", lost) or {}
