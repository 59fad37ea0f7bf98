"""The order of requests in a worker's batch: tiles name a request by its row."""

from __future__ import annotations

from kvtrace.capture.recorder import Recorder
from kvtrace.events import BATCH_ROW
from kvtrace.probes.engine import STEP_ATTRIBUTE
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.vllm_types import InputBatch, SchedulerOutput


class BatchOrder:
    """Records a batch's rows whenever they change."""

    def __init__(self, recorder: Recorder) -> None:
        self._intern, self._forget = recorder.intern, recorder.forget
        self._emit_rows = recorder.columns(BATCH_ROW)
        self._rows: list[str] = []

    def hooks(self) -> list[Hook]:
        """The hooks on both model runners, where they settle the order."""
        lost = "which request a GPU program worked for"
        return [
            Hook(
                "vllm.v1.worker.gpu.model_runner:GPUModelRunner.prepare_inputs",
                lost,
                after=self._after_v2,
                needs=(Need("vllm.v1.worker.gpu.input_batch:InputBatch", "req_ids"),),
            ),
            Hook(
                "vllm.v1.worker.gpu_model_runner:GPUModelRunner._prepare_inputs",
                lost,
                after=self._after_v1,
                needs=(
                    Need("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "input_batch"),
                    Need("vllm.v1.worker.gpu_input_batch:InputBatch", "req_ids"),
                ),
            ),
        ]

    def _after_v2(self, _: None, batch: InputBatch, args: Args, kwargs: Kwargs) -> None:
        self._record(batch.req_ids, argument(args, kwargs, 1, "scheduler_output"))

    def _after_v1(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        self._record(args[0].input_batch.req_ids, argument(args, kwargs, 1, "scheduler_output"))

    def _record(self, request_ids: list[str], scheduler_output: SchedulerOutput) -> None:
        step = getattr(scheduler_output, STEP_ATTRIBUTE, None)
        if step is None or request_ids == self._rows:
            return
        for request_id in set(self._rows).difference(request_ids):
            self._forget(request_id)
        self._rows = list(request_ids)
        rows, numbers = list(range(len(request_ids))), [self._intern(request_id) for request_id in request_ids]
        pid, number = step
        self._emit_rows(len(rows), engine_id=pid, step=number, row=rows, request=numbers)
