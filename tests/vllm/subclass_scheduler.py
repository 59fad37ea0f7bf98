"""A scheduler as users write them: overrides and calls its parent's."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class SubclassScheduler(Scheduler):
    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        return super().schedule(*args, **kwargs)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        return super().update_from_output(scheduler_output, model_runner_output)

    def _preempt_request(self, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(*args, **kwargs)

    def _free_request(self, *args: Any, **kwargs: Any) -> Any:
        return super()._free_request(*args, **kwargs)

    def add_request(self, request: Any) -> None:
        super().add_request(request)
