"""Skips what decode steps repeat: a step in which no block fills and no request ends changes only counters.

A replay without a trace uses it. vLLM's scheduler takes every step that could admit or preempt a request and ends every
request, and its KV cache manager allocates and caches every block, in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kvtrace.lab.replay.engine import TOKEN
from kvtrace.lab.replay.recording import RecordedRequest


def can_leap(scheduler: Any) -> bool:
    """Tell vLLM's own schedulers with one group of full attention and no connector: they keep no further state."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    return (
        type(scheduler) in (Scheduler, AsyncScheduler)
        and scheduler.connector is None
        and not scheduler.num_spec_tokens
        and len(managers) == 1
        and type(managers[0]) is FullAttentionManager
    )


def quicken(scheduler: Any) -> None:
    """Answer at once where a decoding request's next token fits into its last block and does not fill it.

    What is only made for workers and for statistics is left out.
    """
    from vllm.v1.core.sched.output import CachedRequestData

    manager = scheduler.kv_cache_manager
    allocate, cache, nothing = manager.allocate_slots, manager.cache_blocks, manager.empty_kv_cache_blocks
    size = scheduler.block_size

    def allocate_slots(request: Any, num_new_tokens: int, *arguments: Any, **options: Any) -> Any:
        if num_new_tokens == 1 and options == {"num_lookahead_tokens": 0}:
            filled = request.num_computed_tokens % size
            if 0 < filled < size - 1:
                return nothing
        return allocate(request, num_new_tokens, *arguments, **options)

    def cache_blocks(request: Any, num_computed_tokens: int) -> None:
        if num_computed_tokens % size == 0 or request.num_output_tokens < 2:
            cache(request, num_computed_tokens)

    manager.allocate_slots, manager.cache_blocks = allocate_slots, cache_blocks
    manager.estimate_cached_tokens = lambda request: 0  # only a statistic of vLLM's front end
    for_workers = CachedRequestData.make_empty()
    scheduler._make_cached_request_data = lambda *arguments: for_workers


class _Decode:
    """A decoding request: where a leap found it, and how many steps it still takes.

    Attributes:
        computed: Its computed tokens, those of a step in flight included.
        known: Its tokens.
        scheduled: Steps that will schedule it.
        told: Steps whose results it gets, from the one in flight on. The last one ends it.
    """

    __slots__ = ("computed", "known", "request", "scheduled", "told")

    def __init__(self, request: Any, scheduled: int, told: int) -> None:
        self.request, self.scheduled, self.told = request, scheduled, told
        self.computed, self.known = request.num_computed_tokens, request.num_tokens


class Leap:
    """Takes decode steps of a scheduler one by one without calling it.

    Args:
        scheduler: A scheduler that `can_leap`.
        recorded: The requests that are open, by id.
        ahead: Steps that may be in flight at once.

    Attributes:
        steps: Steps taken since `begin`.
        requests: Requests that the next step schedules.
    """

    def __init__(self, scheduler: Any, recorded: dict[str, RecordedRequest], ahead: int) -> None:
        from vllm.v1.request import RequestStatus

        self._scheduler, self._recorded, self._in_flight = scheduler, recorded, ahead - 1
        self._manager, self._size = scheduler.kv_cache_manager, scheduler.block_size
        self._running_status = RequestStatus.RUNNING
        # With results outstanding a block is allocated and the one before it cached in one call; else in two.
        self._phases = (0,) if self._in_flight else (0, self._size - 1)
        self._ends_of: dict[str, int] = {}
        self.steps = self.requests = self._computed = 0

    def begin(self, output: Any) -> bool:
        """Look ahead from between two steps.

        Args:
            output: The step in flight; None without one.

        Returns:
            All running requests decode, and nothing waits that a step could admit.
        """
        scheduler, running = self._scheduler, self._scheduler.running
        if not running or len(running) > scheduler.max_num_scheduled_tokens:
            return False
        if scheduler.get_request_counts()[1] and len(running) < scheduler.max_num_running_reqs:
            return False
        if self._in_flight and (output.scheduled_new_reqs or len(output.num_scheduled_tokens) != len(running)):
            return False
        decodes = []
        for request in running:
            decode = self._decode(request)
            if decode is None:
                return False
            decodes.append(decode)
        self._decodes = decodes
        self._due: dict[int, list[_Decode]] = defaultdict(list)
        self._dropped: dict[int, list[_Decode]] = defaultdict(list)
        self._ends: dict[int, list[_Decode]] = defaultdict(list)
        for decode in decodes:
            for phase in self._phases:
                self._due[(phase - decode.computed) % self._size].append(decode)
            self._dropped[decode.scheduled].append(decode)
            self._ends[decode.told].append(decode)
        self.steps, self.requests = 0, len(running)
        self._computed = sum(decode.computed for decode in decodes)
        self._drop()
        return True

    def _decode(self, request: Any) -> _Decode | None:
        """The request, if it is in the middle of its output."""
        known, in_flight = request.num_tokens, self._in_flight
        if (
            request.num_output_placeholders != in_flight
            or request.num_in_flight_tokens != in_flight
            or request.num_computed_tokens != known - 1 + in_flight
            or request.num_output_tokens < 1
            or request.num_stale_output_tokens
        ):
            return None
        end = self._end(request)
        told = end - known
        if told < 1 or end >= self._scheduler.max_model_len:
            return None
        # vLLM knows a length limit ahead of results; a stop it does not.
        stops = end < request.num_prompt_tokens + request.max_tokens
        return _Decode(request, told if stops else told - in_flight, told)

    def _end(self, request: Any) -> int:
        """Tokens with which a request ends."""
        recorded = self._recorded[request.request_id]
        longest: int = request.max_tokens
        if recorded.end == "stop":
            longest = min(longest, recorded.output_tokens)
        return int(min(request.num_prompt_tokens + longest, self._scheduler.max_model_len))

    @property
    def context(self) -> int:
        """Context of the next step's tokens."""
        return self._computed + self.requests * (self.steps + 1)

    def step(self) -> bool:
        """Schedule a step, unless a block is needed and none is free."""
        due = [each for each in self._due.get(self.steps % self._size, ()) if each.scheduled > self.steps]
        if due:
            new = sum((each.computed + self.steps) % self._size == 0 for each in due)
            if new > self._manager.block_pool.get_num_free_blocks():
                return False
            self._manager.new_step_starts()
            for each in due:
                self._bring(each)
                self._manager.allocate_slots(each.request, 1, num_lookahead_tokens=0)
        self.steps += 1
        self._drop()
        return True

    def _drop(self) -> None:
        """Leave out requests whose last step has been scheduled."""
        for each in self._dropped.pop(self.steps, ()):
            self.requests -= 1
            self._computed -= each.computed

    def ended(self) -> list[str]:
        """Requests that end with the results that follow the last step."""
        ends = self._ends.pop(self.steps, ())
        for each in ends:
            request = each.request
            more = min(self.steps, each.scheduled)
            request.append_output_token_ids([TOKEN] * (each.known + self.steps - 1 - request.num_tokens))
            request.num_computed_tokens = each.computed + more
            outstanding = more + self._in_flight - (self.steps - 1)
            request.num_in_flight_tokens = outstanding
            request.num_output_placeholders = outstanding if self._in_flight else 0
        return [each.request.request_id for each in ends]

    def _bring(self, each: _Decode) -> None:
        """Set a request's counters to where the next step finds them."""
        request = each.request
        request.num_computed_tokens = each.computed + self.steps
        missing = each.known + self.steps - request.num_tokens
        if missing:
            request.append_output_token_ids([TOKEN] * missing)

    def end(self) -> list[str]:
        """Leave the scheduler as if it had taken the steps; the requests that the last one scheduled."""
        left = [each for each in self._decodes if each.told > self.steps]
        for each in left:
            self._bring(each)
        self._scheduler.current_step += self.steps
        return [each.request.request_id for each in left]

    def plain(self, output: Any) -> list[str]:
        """Hand in the next token of decoding requests that neither end nor fill a block with it.

        Returns:
            The step's other requests, whose results the scheduler must take in.
        """
        requests, size, in_flight, ends = self._scheduler.requests, self._size, self._in_flight, self._ends_of
        running = self._running_status
        rest = []
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = requests.get(request_id)
            if request is not None and tokens == 1 and request.status == running:
                after = request.num_tokens + 1
                made = after - request.num_prompt_tokens
                if made > 2 and after % size > 1 and not request.num_stale_output_tokens:
                    end = ends.get(request_id)
                    if end is None:
                        end = ends[request_id] = self._end(request)
                    if after < end:
                        request.num_in_flight_tokens -= 1
                        request.num_output_placeholders -= in_flight
                        # no block is full, so there is nothing to hash
                        request._output_token_ids.append(TOKEN)
                        request._all_token_ids.append(TOKEN)
                        continue
            ends.pop(request_id, None)
            rest.append(request_id)
        return rest
