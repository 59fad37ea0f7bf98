"""Steps a scheduler in virtual time: exactly as recorded, or as a time model and a way of arriving say."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kvtrace.lab.replay.clock import VirtualClock
from kvtrace.lab.replay.engine import STOP_TOKEN, TOKEN, Requests
from kvtrace.lab.replay.in_order import InOrder
from kvtrace.lab.replay.leap import Leap, can_leap, quicken
from kvtrace.lab.replay.loops import Group, Loop, batches_of, clients_of, predecessors
from kvtrace.lab.replay.recording import RecordedRequest, Recording
from kvtrace.lab.replay.tally import Tally
from kvtrace.lab.replay.timing import TimeModel, Work

_STUCK_STEPS = 1000
_IDLE_STEP_NS = 1_000_000
_NEVER = 1 << 62
_CLOCK_STEP_S = 1e-6
"""More than the difference of two moments next to each other, in s since 1970 as a float."""
_QUEUED, _ABORT, _RESET, _START, _RESULTS = range(5)


class HostTime(NamedTuple):
    """Host time that a KV connector takes of a step, ns.

    Attributes:
        before_ns: Before the step is launched.
        launched_ns: After it is launched and the step before it has ended: launches wait so long, and its results do.
        saved_ns: After its own work: its results and launches wait so long, and the results of the step before it.
        computed_ns: After its results: launches wait so long.
        saved: Takes in when a step with `saved_ns` was launched, and when it ended.
    """

    before_ns: int = 0
    launched_ns: int = 0
    saved_ns: int = 0
    computed_ns: int = 0
    saved: Callable[[int, int], None] = lambda launched_ns, end_ns: None


class Worker(Protocol):
    """The worker's side of a KV connector, emulated."""

    def begin(self, output: Any) -> HostTime:
        """Take up what a step that is launched brings. Return what it takes of the host."""
        ...

    def __call__(self, output: Any, step: int = 0) -> Any:
        """Return what the worker tells of finished copies with a step's results, or None."""
        ...


class Drive:
    """A scheduler, its requests and the clock.

    Args:
        scheduler: vLLM's, with kvtrace's hooks.
        requests: Makes its requests.
        recording: What is replayed.
        clock: What the scheduler and the hooks read.
        worker: Of the scheduler's KV connector; None without one.
        tally: Counts figures, where no trace is made.
    """

    def __init__(
        self,
        scheduler: Any,
        requests: Requests,
        recording: Recording,
        clock: VirtualClock,
        worker: Worker | None = None,
        tally: Tally | None = None,
    ) -> None:
        from vllm.v1.core.sched.output import SchedulerOutput
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
        from vllm.v1.request import RequestStatus

        self.scheduler, self.clock, self.recording = scheduler, clock, recording
        self.steps = 0
        self._requests, self._worker, self._tally = requests, worker, tally
        self._output_type, self._status, self._drafts_type = ModelRunnerOutput, RequestStatus, DraftTokenIds
        self._most_drafts = scheduler.num_spec_tokens
        # With asynchronous scheduling vLLM schedules as many drafts as there may be.
        self._tells_drafts = self._most_drafts > 0 and not scheduler.scheduler_config.async_scheduling
        self._empty_output = SchedulerOutput.make_empty
        self._recorded: dict[str, RecordedRequest] = {}
        self._leap: Leap | None = None

    def add(self, recorded: RecordedRequest, arrival_ns: int) -> None:
        """Queue a request."""
        self._recorded[recorded.internal_id] = recorded
        request = self._requests.make(recorded, recorded.internal_id, arrival_ns)
        if self._tally is not None:
            self._tally.arrived(recorded, request)
        self.scheduler.add_request(request)

    def abort(self, recorded: RecordedRequest) -> None:
        """End a request from outside, unless it has ended."""
        if recorded.internal_id in self.scheduler.requests:
            status = self._status.FINISHED_ABORTED
            if recorded.end in ("error", "other"):
                status = getattr(self._status, "FINISHED_ERROR", status)
            self.scheduler.finish_requests(recorded.internal_id, status)
            if self._tally is not None:
                self._tally.ended(recorded.internal_id, "abort", self.clock.now_ns)

    def ended(self, request_id: str) -> RecordedRequest:
        """Forget a request that has ended."""
        return self._recorded.pop(request_id)

    def schedule(self, step: int = 0) -> tuple[Any, list[str], HostTime]:
        """Schedule a step, by its recorded number if there is one.

        Returns:
            The scheduler's output, the requests that get a token of it, and what its copies take of the host.
        """
        scheduler = self.scheduler
        if scheduler.connector is not None and len(scheduler.finished_req_ids) > 1:
            scheduler.finished_req_ids = InOrder(scheduler.finished_req_ids, self.recording.ended.get(step, ()))
        output = scheduler.schedule()
        self.steps += 1
        requests = scheduler.requests
        tokens = [id_ for id_ in output.num_scheduled_tokens if not requests[id_].is_prefill_chunk]
        return output, tokens, self._worker.begin(output) if self._worker is not None else HostTime()

    def results(self, output: Any, tokens: list[str], step: int = 0) -> list[Any]:
        """Hand in the results of a step, by its recorded number if there is one; vLLM's outputs for the clients."""
        ids = list(output.num_scheduled_tokens)
        if self._leap is not None:
            ids = self._leap.plain(output)
            output.num_scheduled_tokens = {id_: output.num_scheduled_tokens[id_] for id_ in ids}
        sampled = set(tokens)
        answers = [self._tokens(id_, output) if id_ in sampled else [] for id_ in ids]
        result = self._output_type(ids, {id_: place for place, id_ in enumerate(ids)}, answers)
        if self._worker is not None:
            report = result.kv_connector_output = self._worker(output, step)
            if report is not None and report.finished_recving:
                report.finished_recving = InOrder(report.finished_recving, self.recording.loaded.get(step, ()))
        outputs = self.scheduler.update_from_output(output, result)
        if self._tells_drafts:
            self._draft(tokens)
        told = [each for engine in outputs.values() for each in engine.outputs]
        if self._tally is not None:
            for each in told:
                self._tally.told(each, self.clock.now_ns)
        return told

    def leap(self, ahead: int) -> Leap | None:
        """Return a way to take decode steps without the scheduler; None where every step is recorded."""
        if self._tally is None or not can_leap(self.scheduler):
            return None
        quicken(self.scheduler)
        self._leap = Leap(self.scheduler, self._recorded, ahead)
        return self._leap

    def decode_step(self, ids: list[str]) -> Any:
        """A scheduler's output with a token for each of these requests."""
        output = self._empty_output()
        output.num_scheduled_tokens = dict.fromkeys(ids, 1)
        output.total_num_scheduled_tokens = len(ids)
        return output

    def _tokens(self, request_id: str, output: Any) -> list[int]:
        """Return what the model says in a step: the drafts that it accepts, and a token of its own."""
        recorded = self._recorded.get(request_id)  # an ended one may have a step in flight
        request = self.scheduler.requests.get(request_id)
        if recorded is None or request is None:
            return [TOKEN]
        known, count = request.num_output_tokens, 1
        if self._most_drafts and (drafts := output.scheduled_spec_decode_tokens.get(request_id)):
            count += min(recorded.drafts.get(known, (0, 0))[1], len(drafts))
        if recorded.end != "stop" or known + count < recorded.output_tokens:
            return [TOKEN] * count
        return [*([TOKEN] * (recorded.output_tokens - known - 1)), STOP_TOKEN]

    def _draft(self, ids: list[str]) -> None:
        """Tell the scheduler of the drafts that follow a step's tokens."""
        drafts = []
        for id_ in ids:
            recorded, request = self._recorded.get(id_), self.scheduler.requests.get(id_)
            drafted = recorded.drafts.get(request.num_output_tokens, (0, 0))[0] if recorded and request else 0
            drafts.append([TOKEN] * min(drafted, self._most_drafts))
        self.scheduler.update_draft_token_ids(self._drafts_type(ids, drafts))

    def work(self, output: Any) -> Work:
        """Return the work of a step just scheduled."""
        decodes = prefill = decode_context = prefill_context = 0
        requests = self.scheduler.requests
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = requests[request_id]
            end = request.num_computed_tokens
            if tokens <= 1 + self._most_drafts and end - tokens >= request.num_prompt_tokens:
                decodes += tokens
                decode_context += end - tokens + 1
            else:
                prefill += tokens
                prefill_context += tokens * (end - tokens) + tokens * (tokens + 1) // 2
        return Work(decodes, prefill, decode_context, prefill_context)


def replay_recorded(drive: Drive) -> None:
    """Repeat the engine's own calls in their recorded order and at their recorded times."""
    recording = drive.recording
    numbers = itertools.count()
    events: list[tuple[int, int, int, Any]] = []
    for request in recording.requests:
        events.append((request.queued_ns, next(numbers), _QUEUED, request))
        if request.aborted and request.finished_ns is not None:
            events.append((request.finished_ns, next(numbers), _ABORT, request))
    for step in recording.steps:
        events.append((step.start_ns, next(numbers), _START, step))
        if step.update_ns is not None:
            events.append((step.update_ns, next(numbers), _RESULTS, step))
    events += [(moment, next(numbers), _RESET, None) for moment in recording.resets_ns]
    events.sort()
    running: dict[int, tuple[Any, list[str]]] = {}
    _pin_on_time(drive)
    for moment, _, kind, what in events:
        drive.clock.set(moment)
        if kind == _QUEUED:
            drive.add(what, what.arrival_ns)
        elif kind == _ABORT:
            drive.abort(what)
        elif kind == _RESET:
            drive.scheduler.reset_prefix_cache()
        elif kind == _START:
            output, tokens, host = drive.schedule(what.step)
            host.saved(moment, moment + host.saved_ns)
            running[what.step] = output, tokens
        elif what.step in running:
            drive.results(*running.pop(what.step), what.step)


def _pin_on_time(drive: Drive) -> None:
    """Have pins begin when they did, up to milliseconds after a step's results, and end in the step in which they did.

    A scheduler looks for those that end some microseconds after a step's start, which may be a step more.
    """
    scheduler = drive.scheduler
    pin, pins = getattr(scheduler, "pin_request", None), drive.recording.pins
    if pin is None or not pins:
        return

    def pin_on_time(request: Any, seconds: float) -> None:
        told = pins.get(request.request_id)
        if told is not None:
            drive.clock.set(told.begin_ns)
        pin(request, seconds)
        held = scheduler.pinned_requests.get(request.request_id)
        if held is not None and told is not None:
            end = held.end
            if told.after_ns is not None:
                end = max(end, told.after_ns / 1e9 + _CLOCK_STEP_S)
            if told.until_ns is not None:
                end = min(end, told.until_ns / 1e9)
            scheduler.pinned_requests[request.request_id] = held._replace(end=end)

    scheduler.pin_request = pin_on_time


def replay_timed(drive: Drive, model: TimeModel, loop: Loop, stream: Iterator[RecordedRequest] | None = None) -> None:
    """Run all requests to their ends, with predicted step times.

    Args:
        drive: With the recording's requests.
        model: Predicts step times.
        loop: How requests arrive.
        stream: Takes the place of the recording's requests: in the order of arrival, made when they arrive and dropped
            when they end, so that memory does not grow with their number. Needs an open loop.
    """
    _Timed(drive, model, loop, stream).run()


@dataclass
class _Barrier:
    """A moment that comes behind all requests that came before it.

    The beginning of a workload, or a reset of the prefix cache, which vLLM refuses while requests run.
    """

    recorded_ns: int
    due_ns: int
    earlier: int  # requests that arrived before it and have not ended
    empties: bool  # the prefix cache


class _Timed:
    def __init__(self, drive: Drive, model: TimeModel, loop: Loop, stream: Iterator[RecordedRequest] | None) -> None:
        self._drive, self._model, self._stream = drive, model, stream
        recording = drive.recording
        self._numbers = itertools.count()
        self._due: list[tuple[int, int, RecordedRequest]] = []
        self._aborts: list[tuple[int, int, RecordedRequest]] = []
        self._held: list[tuple[int, RecordedRequest]] = []  # that come after a barrier which is to come
        self._closed = loop.kind in ("closed", "concurrency")  # an end brings what follows
        self._followers: dict[int, list[tuple[int, RecordedRequest]]] = defaultdict(list)
        self._free_slots = dict(recording.slots)
        # Gaps and requests that wait for an end: of a pool, or of any request.
        self._without_slot: dict[str | None, deque[tuple[int, RecordedRequest]]] = defaultdict(deque)
        self._groups: deque[Group] = deque()
        self._open = self._prefills = 0
        # When the last step ends, when the host has launched it, and when the next one may be launched.
        self._done = self._launched = self._free = 0
        self._zero = self._frontend_ns = 0
        self._rate, self._factor = (1.0, loop.rate) if loop.kind == "concurrency" else (loop.rate, 1.0)
        self._barriers: deque[_Barrier] = deque()
        if stream is not None:
            self._zero = drive.clock.now_ns
            self._draw()
        else:
            self._plan(recording, loop)

    def _plan(self, recording: Recording, loop: Loop) -> None:
        self._zero = min(request.arrival_ns for request in recording.requests)
        # vLLM takes a request in between two steps; what it takes an idle engine to do so is the frontend's share.
        handover = sorted(request.queued_ns - request.arrival_ns for request in recording.requests)
        self._frontend_ns = max(0, handover[len(handover) // 10])
        moments = [(ns, True) for ns in recording.resets_ns] + [(ns, False) for ns in recording.phases_ns]
        for recorded_ns, empties in sorted(moments):
            due_ns = self._scaled(recorded_ns) if loop.kind != "batch" else self._zero
            earlier = sum(request.arrival_ns < recorded_ns for request in recording.requests)
            self._barriers.append(_Barrier(recorded_ns, due_ns, earlier, empties))
        if loop.kind in ("batch", "concurrency"):
            self._groups.extend((batches_of if loop.kind == "batch" else clients_of)(recording))
            self._next_group(self._zero)
            return
        late = predecessors(recording) if loop.kind == "closed" else {}
        for request in recording.requests:
            before = late.get(request.number)
            if before is not None and before.finished_ns is not None:
                self._followers[before.number].append((request.arrival_ns - before.finished_ns, request))
                continue
            if self._closed and request.pool is not None:
                if not self._free_slots[request.pool]:
                    self._without_slot[request.pool].append((0, request))
                    continue
                self._free_slots[request.pool] -= 1
            self._arrive(self._scaled(request.arrival_ns), request)

    def _scaled(self, recorded_ns: int) -> int:
        return self._zero + round((recorded_ns - self._zero) / self._rate)

    def _next_group(self, now: int) -> None:
        """The first ones come at their times, more at a time with the last of them, and all others behind an end."""
        while self._groups and not self._groups[0].requests:
            self._groups.popleft()
        if not self._groups:
            return
        requests, recorded, gaps, after_ns = self._groups.popleft()
        at_once = max(1, round(recorded * self._factor))
        usual_ns = sorted(gaps)[len(gaps) // 2] if gaps else 0
        first_ns = last_ns = requests[0].arrival_ns
        for place, request in enumerate(requests):
            if place < at_once:
                last_ns = request.arrival_ns if place < recorded else last_ns
                self._arrive(now + after_ns + last_ns - first_ns, request)
            else:
                known = recorded <= place < recorded + len(gaps)
                self._without_slot[None].append((gaps[place - recorded] if known else usual_ns, request))

    def _draw(self) -> None:
        """Take the stream's next request."""
        request = next(self._stream, None) if self._stream is not None else None
        if request is not None:
            self._arrive(self._scaled(request.arrival_ns), request)

    def _arrive(self, moment: int, request: RecordedRequest) -> None:
        if self._closed and self._barriers and request.arrival_ns >= self._barriers[0].recorded_ns:
            self._held.append((moment, request))
        else:
            heapq.heappush(self._due, (moment, next(self._numbers), request))

    def _pass_barriers(self, now: int) -> None:
        """Pass those that are due. In a closed loop what follows comes as much later as they do."""
        while self._barriers and self._barriers[0].due_ns <= now and not self._barriers[0].earlier:
            passed = self._barriers.popleft()
            late = now - passed.due_ns
            if passed.empties:
                self._drive.scheduler.reset_prefix_cache()
            if self._closed:
                for barrier in self._barriers:
                    barrier.due_ns += late
                held, self._held = self._held, []
                for moment, request in held:
                    self._arrive(moment + late, request)

    def _take_in(self, now: int) -> None:
        self._pass_barriers(now)
        while self._due and self._due[0][0] + self._frontend_ns <= now:
            moment, _, request = heapq.heappop(self._due)
            self._drive.add(request, moment)
            self._draw()
            self._open += 1
            if request.aborted and request.finished_ns is not None:
                after = request.finished_ns - request.arrival_ns
                heapq.heappush(self._aborts, (moment + after, next(self._numbers), request))
        self._abort(now)

    def _abort(self, now: int) -> None:
        while self._aborts and self._aborts[0][0] <= now:
            request = heapq.heappop(self._aborts)[2]
            if request.internal_id in self._drive.scheduler.requests:
                self._drive.abort(request)
                self._ended(self._drive.ended(request.internal_id), now)

    def _ended(self, request: RecordedRequest, now: int) -> None:
        for barrier in self._barriers:
            barrier.earlier -= request.arrival_ns < barrier.recorded_ns
        followers = self._followers.pop(request.number, ())
        for gap, follower in followers:
            self._arrive(now + gap, follower)
        waiting = self._without_slot[request.pool] or self._without_slot[None]
        if waiting and not followers:
            gap, follower = waiting.popleft()
            self._arrive(now + gap, follower)
        self._open -= 1
        if not self._open and not self._due and not self._held:
            self._next_group(now)

    def run(self) -> None:
        drive, scheduler, clock = self._drive, self._drive.scheduler, self._drive.clock
        ahead = 2 if scheduler.scheduler_config.async_scheduling else 1
        leap = drive.leap(ahead)
        running: deque[tuple[int, Any, list[str]]] = deque()
        now, stuck = self._zero, 0
        while self._due or self._held or running or scheduler.has_requests():
            clock.set(now)
            self._take_in(now)
            if leap is not None and len(running) == ahead - 1 and leap.begin(running[0][1] if running else None):
                now = self._leap(leap, running, now)
                clock.set(now)
                self._take_in(now)
            if scheduler.has_requests() and len(running) < ahead:
                output, tokens = self._launch(now)
                total = output.total_num_scheduled_tokens
                stuck = 0 if total else stuck + 1
                running.append((self._done, output, tokens))
                if len(running) < ahead and (total or scheduler.has_requests()):
                    now += self._model.overhead_ns if total else 0
                    continue
            elif not running:
                if not self._due:  # what was to end before the barrier never came
                    self._barriers[0].earlier = 0
                now = max(now, self._next_event())
                continue
            finished, output, tokens = running.popleft()
            now = max(now, finished, self._launched)
            clock.set(now)
            self._abort(now)
            for result in drive.results(output, tokens):
                if result.finish_reason is not None:
                    self._ended(drive.ended(result.request_id), now)
            now += self._model.overhead_ns
            if stuck:
                now += _IDLE_STEP_NS
            if stuck > _STUCK_STEPS and not self._due and not self._aborts:
                break  # what is left can never be scheduled, as with a pool smaller than a request

    def _launch(self, now: int) -> tuple[Any, list[str]]:
        """Schedule a step and launch it. Return the scheduler's output, and the requests that get a token of it."""
        output, tokens, host = self._drive.schedule()
        start, before = max(now + host.before_ns, self._free), max(self._done, now)
        computes = output.total_num_scheduled_tokens > 0
        if computes:
            work = self._drive.work(output)
            launch_ns = self._model.launch(self._prefills, work)
            self._prefills += work.prefill_tokens > 0
            self._launched = start + launch_ns
            self._done = self._model.end_ns(start, before, work, launch_ns)
        elif host.before_ns:
            self._done = self._launched = max(before, now + host.before_ns)
        else:
            self._done = before
        if host.launched_ns:
            self._free = max(self._launched, before) + host.launched_ns
            if computes:
                self._done = max(self._done, self._free)
        if host.saved_ns:
            launched = self._launched
            self._done = self._launched = self._free = max(self._done, launched) + host.saved_ns
            host.saved(launched, self._done)
        if host.computed_ns:
            self._free = max(self._free, self._done + host.computed_ns)
        return output, tokens

    def _leap(self, leap: Leap, running: deque[tuple[int, Any, list[str]]], now: int) -> int:
        """Take decode steps until something else happens. Return the time after them."""
        drive, model = self._drive, self._model
        pending = running[0][0] if running else None
        waiting = drive.scheduler.get_request_counts()[1]
        while leap.requests and now < self._next_event():
            ends = model.end_ns(now, max(self._done, now), Work(leap.requests, 0, leap.context, 0))
            results = max(now, ends if pending is None else pending)
            if (self._aborts and results >= self._aborts[0][0]) or not leap.step():
                break
            self._done, now = ends, results
            if pending is not None:
                pending = ends
            ended = leap.ended()
            if ended:
                drive.clock.set(now)
                for result in drive.results(drive.decode_step(ended), ended):
                    self._ended(drive.ended(result.request_id), now)
            now += model.overhead_ns
            if ended and waiting:
                break  # one that waits may follow
        ids = leap.end()
        if pending is not None:
            output = drive.decode_step(ids) if leap.steps else running[0][1]
            running[0] = (pending, output, list(output.num_scheduled_tokens))
        drive.steps += leap.steps
        return now

    def _next_event(self) -> int:
        """When the next request arrives or a barrier is due."""
        arrival = self._due[0][0] + self._frontend_ns if self._due else _NEVER
        return min(arrival, self._barriers[0].due_ns) if self._barriers and not self._barriers[0].earlier else arrival
