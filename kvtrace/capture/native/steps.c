/* Scheduler steps: their marks, and what each chose: blocks added to tables, each request's share, and the step itself.
 */

#include "packer.h"
#include "state.h"

typedef struct {
    HOLDER;
    Packer *steps, *shares, *tables;
    PyObject *schedulers;    /* id of a Scheduler -> Engine */
    PyObject *mark;          /* the attribute of its output that names a step */
    PyObject *begun, *ended; /* (engine, start_ns), (engine): who else wants to know; None: nobody */
    PyObject *settle;        /* (engine): a lookup that nothing came of */
    PyObject *share;         /* (engine, start_ns, request id, computed tokens) -> (number, phase) */
    PyObject *limit;         /* (engine, budget left, waiting) -> why the head of the queue waits */
} Steps;

enum { PHASES = PHASE_RESUMED + 1 };

/* What is known of a step on the way to its record. */
typedef struct {
    PyObject *engine, *output, *start_ns;
    PyObject *live;                                   /* the engine's requests by id */
    PyObject *added;                                  /* blocks added to tables by request id; NULL: none */
    long long step, requests[PHASES], tokens[PHASES]; /* by phase */
} Step;

static PyObject *n_step, *n_requests, *n_request, *n_table, *n_computed;
static PyObject *n_new, *n_cached, *n_req_id, *n_req_ids, *n_block_ids, *n_new_ids, *n_resumed, *n_scheduled;
static PyObject *n_scheduler, *n_block_pool, *n_budget, *n_total, *n_get_free, *n_blocks, *n_pool;
static PyObject *n_running, *n_queues, *n_preempted, *n_depth, *n_refused, *n_pid;

int steps_names(void)
{
    const Name names[] = {
        {&n_step, "step"},
        {&n_requests, "requests"},
        {&n_request, "request"},
        {&n_table, "table"},
        {&n_computed, "num_computed_tokens"},
        {&n_new, "scheduled_new_reqs"},
        {&n_cached, "scheduled_cached_reqs"},
        {&n_req_id, "req_id"},
        {&n_req_ids, "req_ids"},
        {&n_block_ids, "block_ids"},
        {&n_new_ids, "new_block_ids"},
        {&n_resumed, "resumed_req_ids"},
        {&n_scheduled, "num_scheduled_tokens"},
        {&n_scheduler, "scheduler"},
        {&n_block_pool, "block_pool"},
        {&n_budget, "max_num_scheduled_tokens"},
        {&n_total, "total_num_scheduled_tokens"},
        {&n_get_free, "get_num_free_blocks"},
        {&n_blocks, "num_gpu_blocks"},
        {&n_pool, "pool"},
        {&n_running, "running"},
        {&n_queues, "queues"},
        {&n_preempted, "preempted"},
        {&n_depth, "depth"},
        {&n_refused, "refused"},
        {&n_pid, "pid"},
    };
    return INTERN(names);
}

/* A number; 0: an exception is set. */
static int as_number(PyObject *value, long long *out)
{
    *out = PyLong_AsLongLong(value);
    return *out != -1 || !PyErr_Occurred();
}

/* Where a request's table ends in each group: its list, made anew where the request has another table now. */
static PyObject *ends_of_table(PyObject *live, Py_ssize_t groups, int op)
{
    PyObject *ends = read_attribute(live, n_table);
    if (ends == NULL || (op == TABLE_OP_APPEND && PyList_Check(ends) && PyList_Size(ends) == groups))
        return ends;
    Py_DECREF(ends);
    ends = PyList_New(groups);
    for (Py_ssize_t group = 0; ends != NULL && group < groups; group++) {
        PyObject *zero = PyLong_FromLong(0);
        if (zero == NULL || PyList_SetItem(ends, group, zero) < 0)
            Py_CLEAR(ends);
    }
    if (ends != NULL && PyObject_SetAttr(live, n_table, ends) < 0)
        Py_CLEAR(ends);
    return ends;
}

/* Record the blocks that a group's table gets from a list; where the table ends then, -1 on errors. */
static long long record_group(Steps *self, BlockTableRecord *entry, long long end, PyObject *blocks)
{
    PyObject *ids = PySequence_List(blocks);
    Py_ssize_t count = ids ? PyList_Size(ids) : -1;
    for (Py_ssize_t i = 0; i < count && end >= 0; i++) {
        long long block;
        if (!SET(entry->position, end) || !as_number(PyList_GetItem(ids, i), &block) || !SET(entry->block_id, block) ||
            packer_store(self->tables, entry) < 0)
            end = -1;
        else
            end++;
    }
    Py_XDECREF(ids);
    return count < 0 ? -1 : end;
}

static PyObject *live_request(const Step *step, PyObject *id)
{
    PyObject *live = PyDict_GetItemWithError(step->live, id);
    if (live != NULL)
        return Py_NewRef(live);
    return PyErr_Occurred() ? NULL : PyObject_CallMethodObjArgs(step->engine, n_request, id, NULL);
}

/* Record what is added to a request's table: a list of blocks for each group. */
static int record_table(Steps *self, Step *step, PyObject *id, PyObject *block_ids, int op)
{
    BlockTableRecord entry = {.op = (uint8_t)op};
    PyObject *live = live_request(step, id);
    Py_ssize_t groups = live ? PyObject_Size(block_ids) : -1;
    long long total = 0;
    const RequestState *state = live ? request_state(live) : NULL;
    PyObject *ends = groups < 0 || !state ? NULL : ends_of_table(live, groups, op);
    int failed = ends == NULL || !SET(entry.step, step->step) || !SET(entry.request, state->number);
    for (Py_ssize_t group = 0; group < groups && !failed; group++) {
        long long first = PyLong_AsLongLong(PyList_GetItem(ends, group));
        PyObject *blocks = PySequence_GetItem(block_ids, group);
        entry.kv_group = (uint8_t)group;
        long long end = blocks ? record_group(self, &entry, first, blocks) : -1;
        PyObject *ends_at = end < 0 ? NULL : PyLong_FromLongLong(end);
        failed = ends_at == NULL || PyList_SetItem(ends, group, ends_at) < 0;
        total += end - first;
        Py_XDECREF(blocks);
    }
    PyObject *count = failed ? NULL : PyLong_FromLongLong(total);
    if (count != NULL && step->added == NULL)
        step->added = PyDict_New();
    failed = count == NULL || step->added == NULL || PyDict_SetItem(step->added, id, count) < 0;
    Py_XDECREF(count);
    Py_XDECREF(ends);
    Py_XDECREF(live);
    return failed ? -1 : 0;
}

static int record_new_tables(Steps *self, Step *step)
{
    PyObject *requests = read_attribute(step->output, n_new);
    Py_ssize_t count = requests ? PyObject_Size(requests) : -1;
    int failed = count < 0;
    for (Py_ssize_t i = 0; i < count && !failed; i++) {
        PyObject *data = PySequence_GetItem(requests, i);
        PyObject *id = data ? read_attribute(data, n_req_id) : NULL,
                 *blocks = id ? read_attribute(data, n_block_ids) : NULL;
        failed = blocks == NULL || record_table(self, step, id, blocks, TABLE_OP_SET) < 0;
        Py_XDECREF(blocks);
        Py_XDECREF(id);
        Py_XDECREF(data);
    }
    Py_XDECREF(requests);
    return failed ? -1 : 0;
}

static int record_longer_tables(Steps *self, Step *step)
{
    PyObject *cached = read_attribute(step->output, n_cached);
    PyObject *ids = cached ? read_attribute(cached, n_req_ids) : NULL;
    PyObject *blocks = ids ? read_attribute(cached, n_new_ids) : NULL;
    PyObject *resumed = blocks ? read_attribute(cached, n_resumed) : NULL;
    Py_ssize_t count = resumed ? PyObject_Size(ids) : -1, lists = count < 0 ? -1 : PyObject_Size(blocks);
    int failed = lists < 0;
    if (!failed && lists != count) {
        PyErr_Format(PyExc_ValueError, "%zd requests have %zd lists of new blocks", count, lists);
        failed = 1;
    }
    for (Py_ssize_t i = 0; i < count && !failed; i++) {
        PyObject *added = PySequence_GetItem(blocks, i), *id = added ? PySequence_GetItem(ids, i) : NULL;
        int any = id == NULL ? -1 : added == Py_None ? 0 : PyObject_IsTrue(added);
        int again = any > 0 ? PySequence_Contains(resumed, id) : 0;
        failed = any < 0 || again < 0 ||
                 (any && record_table(self, step, id, added, again ? TABLE_OP_SET : TABLE_OP_APPEND) < 0);
        Py_XDECREF(id);
        Py_XDECREF(added);
    }
    Py_XDECREF(resumed);
    Py_XDECREF(blocks);
    Py_XDECREF(ids);
    Py_XDECREF(cached);
    return failed ? -1 : 0;
}

/* A request's number and phase: of one that decodes at once, of another as `share` says. */
static int describe(Steps *self, Step *step, PyObject *id, StepRequestRecord *share)
{
    long long number, phase;
    PyObject *known = PyDict_GetItemWithError(step->live, id);
    const RequestState *live = known ? request_state(known) : NULL;
    if (live == NULL && PyErr_Occurred())
        return -1;
    if (live != NULL && share->computed_tokens >= live->decode_from) {
        share->phase = PHASE_DECODE;
        return SET(share->request, live->number) ? 0 : -1;
    }
    PyObject *computed = PyLong_FromLong(share->computed_tokens);
    PyObject *said = computed
                         ? PyObject_CallFunctionObjArgs(self->share, step->engine, step->start_ns, id, computed, NULL)
                         : NULL;
    Py_XDECREF(computed);
    if (said == NULL)
        return -1;
    int failed = read_mark(said, &number, &phase) < 0;
    Py_DECREF(said);
    if (failed || !SET(share->request, number) || !SET(share->phase, phase))
        return -1;
    return share->phase < PHASES || overflows(phase, "phase") ? 0 : -1;
}

static int record_share(Steps *self, Step *step, PyObject *request, PyObject *id, PyObject *scheduled)
{
    StepRequestRecord share = {0};
    long long tokens, computed, added = 0;
    PyObject *blocks = step->added ? PyDict_GetItemWithError(step->added, id) : NULL;
    if ((blocks == NULL && PyErr_Occurred()) || (blocks != NULL && !as_number(blocks, &added)) ||
        !as_number(scheduled, &tokens) || read_int(request, n_computed, INT32_MIN, INT32_MAX, &computed) < 0 ||
        !SET(share.step, step->step) || !SET(share.scheduled_tokens, tokens) ||
        !SET(share.computed_tokens, computed - tokens) || !SET(share.new_blocks, added) ||
        describe(self, step, id, &share) < 0 || packer_store(self->shares, &share) < 0)
        return -1;
    step->requests[share.phase] += 1;
    step->tokens[share.phase] += tokens;
    return 0;
}

static int record_shares(Steps *self, Step *step, PyObject *scheduler)
{
    PyObject *scheduled = read_attribute(step->output, n_scheduled), *id, *tokens;
    PyObject *requests = scheduled ? read_attribute(scheduler, n_requests) : NULL;
    int failed = requests == NULL;
    if (!failed && !PyDict_Check(scheduled)) {
        PyErr_SetString(PyExc_TypeError, "scheduled tokens are not a dict");
        failed = 1;
    }
    for (Py_ssize_t at = 0; !failed && PyDict_Next(scheduled, &at, &id, &tokens);) {
        PyObject *request = PyObject_GetItem(requests, id);
        failed = request == NULL || record_share(self, step, request, id, tokens) < 0;
        Py_XDECREF(request);
    }
    Py_XDECREF(requests);
    Py_XDECREF(scheduled);
    return failed ? -1 : 0;
}

/* Requests in all waiting queues; -1 as a number if those are not known. */
static int count_waiting(PyObject *engine, PyObject *scheduler, long long *waiting)
{
    PyObject *queues = read_attribute(engine, n_queues);
    Py_ssize_t count = queues && PyList_Check(queues) ? PyList_Size(queues) : 0;
    int failed = queues == NULL;
    *waiting = count > 0 ? 0 : -1;
    for (Py_ssize_t i = 0; i < count && !failed; i++) {
        long long size = size_of(scheduler, PyList_GetItem(queues, i));
        failed = size < 0;
        *waiting += size;
    }
    Py_XDECREF(queues);
    return failed ? -1 : 0;
}

/* Why the head of the queue waits: what it is, whose, blocks needed and free. */
static int set_limit(Steps *self, PyObject *engine, long long waiting, StepScheduleRecord *record)
{
    long long limit = LIMIT_NONE, request = 0, need = -1, free = -1, kept = -1;
    if (waiting != 0) {
        long long left = record->budget_left_tokens;
        PyObject *said = PyObject_CallFunction(self->limit, "OLL", engine, left, waiting);
        int failed = said == NULL || !PyArg_ParseTuple(said, "LLLLL", &limit, &request, &need, &free, &kept);
        Py_XDECREF(said);
        if (failed)
            return -1;
    }
    return SET(record->admission_limit, limit) && SET(record->limit_request, request) &&
                   SET(record->limit_need_blocks, need) && SET(record->limit_free_blocks, free) &&
                   SET(record->limit_kept_blocks, kept)
               ? 0
               : -1;
}

/* What the pool has: free blocks, those in use but for the null block, and those that can be found. */
static int set_blocks(PyObject *engine, StepScheduleRecord *record)
{
    PyObject *block_pool = read_attribute(engine, n_block_pool),
             *pool = block_pool ? read_attribute(engine, n_pool) : NULL;
    PyObject *get_free = pool ? read_attribute(block_pool, n_get_free) : NULL;
    PyObject *counted = get_free ? PyObject_CallNoArgs(get_free) : NULL;
    const PoolState *state = NULL;
    long long free, all;
    int failed = counted == NULL || !as_number(counted, &free) ||
                 read_int(block_pool, n_blocks, 0, INT32_MAX, &all) < 0 || (state = pool_state(pool)) == NULL ||
                 !SET(record->free_blocks, free) || !SET(record->used_blocks, all - 1 - free) ||
                 !SET(record->cached_blocks, state->cached < -1 ? -1 : state->cached);
    Py_XDECREF(counted);
    Py_XDECREF(get_free);
    Py_XDECREF(pool);
    Py_XDECREF(block_pool);
    return failed ? -1 : 0;
}

static int set_shares(const Step *step, StepScheduleRecord *record)
{
    const long long *requests = step->requests, *tokens = step->tokens;
    return SET(record->prefill_requests, requests[PHASE_PREFILL]) &&
                   SET(record->prefill_tokens, tokens[PHASE_PREFILL]) &&
                   SET(record->chunked_prefill_requests, requests[PHASE_CHUNKED_PREFILL]) &&
                   SET(record->chunked_prefill_tokens, tokens[PHASE_CHUNKED_PREFILL]) &&
                   SET(record->decode_requests, requests[PHASE_DECODE]) &&
                   SET(record->decode_tokens, tokens[PHASE_DECODE]) &&
                   SET(record->resumed_requests, requests[PHASE_RESUMED]) &&
                   SET(record->resumed_tokens, tokens[PHASE_RESUMED])
               ? 0
               : -1;
}

static int record_step(Steps *self, Step *step, PyObject *scheduler, long long start_ns, long long end_ns)
{
    StepScheduleRecord record = {.start_ns = start_ns, .scheduled_ns = end_ns};
    long long budget, total, waiting, running, preempted;
    if (read_int(scheduler, n_budget, INT32_MIN, INT32_MAX, &budget) < 0 ||
        read_int(step->output, n_total, INT32_MIN, INT32_MAX, &total) < 0 || !SET(record.step, step->step) ||
        !SET(record.budget_tokens, budget) || !SET(record.budget_left_tokens, budget - total) ||
        set_blocks(step->engine, &record) < 0 || count_waiting(step->engine, scheduler, &waiting) < 0 ||
        !SET(record.waiting, waiting) || set_limit(self, step->engine, waiting, &record) < 0 ||
        (running = size_of(scheduler, n_running)) < 0 || !SET(record.running, running) ||
        read_int(step->engine, n_preempted, INT32_MIN, INT32_MAX, &preempted) < 0 ||
        !SET(record.preempted_requests, preempted) || set_shares(step, &record) < 0)
        return -1;
    return packer_store(self->steps, &record);
}

/* A step that was chosen: what the scheduler and its requests are must still be what it left. */
static int record(Steps *self, PyObject *engine, PyObject *start, PyObject *end, PyObject *output)
{
    Step step = {.engine = engine, .start_ns = start, .output = output};
    long long start_ns, end_ns;
    PyObject *scheduler = NULL;
    EngineState *state = engine_state(engine);
    int failed = state == NULL || !as_number(start, &start_ns) || !as_number(end, &end_ns);
    if (!failed && !is_none(state->lookup))
        failed = call_for_effect(self->settle, engine, NULL) < 0;
    failed = failed || read_int(engine, n_step, INT32_MIN, INT32_MAX, &step.step) < 0 ||
             (scheduler = read_attribute(engine, n_scheduler)) == NULL;
    if (!failed && !(state->requests && PyDict_Check(state->requests))) {
        PyErr_SetString(PyExc_TypeError, "an engine's requests are not a dict");
        failed = 1;
    }
    step.live = failed ? NULL : Py_NewRef(state->requests);
    failed = failed || record_new_tables(self, &step) < 0 || record_longer_tables(self, &step) < 0 ||
             record_shares(self, &step, scheduler) < 0 || record_step(self, &step, scheduler, start_ns, end_ns) < 0;
    Py_XDECREF(step.live);
    Py_XDECREF(step.added);
    Py_XDECREF(scheduler);
    return failed ? -1 : 0;
}

static int begin_step(Steps *self, PyObject *engine, PyObject *start, long long number)
{
    EngineState *state = engine_state(engine);
    if (state == NULL || write_int(engine, n_step, number) < 0 || write_int(engine, n_preempted, 0) < 0 ||
        PyObject_SetAttr(engine, n_refused, Py_None) < 0)
        return -1;
    state->acting_step = number;
    replace(&state->lookup, Py_NewRef(Py_None));
    return call_for_effect(self->begun, engine, start);
}

static PyObject *schedule_begins(Steps *self, PyObject *const *given, Py_ssize_t count)
{
    if (!is_before(given, count))
        return NULL;
    PyObject *engine = known_by_id(self->schedulers, given[0]), *start, *state = NULL;
    long long step, depth;
    if (engine == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    Py_INCREF(engine);
    if (read_int(engine, n_step, INT32_MIN, INT32_MAX - 1, &step) < 0 || step < 0) {
        Py_DECREF(engine);
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    start = PyLong_FromLongLong(now_ns());
    if (start != NULL && read_int(engine, n_depth, INT32_MIN, INT32_MAX - 1, &depth) == 0 &&
        write_int(engine, n_depth, depth + 1) == 0 && (depth != 0 || begin_step(self, engine, start, step + 1) == 0))
        state = PyTuple_Pack(2, engine, start);
    Py_XDECREF(start);
    Py_DECREF(engine);
    return state;
}

static PyObject *record_chosen(Steps *self, PyObject *const *given, Py_ssize_t count)
{
    PyObject *engine, *start, *end, *output;
    if (count != 1)
        return PyErr_Format(PyExc_TypeError, "what schedule's `after` returned is needed");
    if (!PyArg_ParseTuple(given[0], "OOOO", &engine, &start, &end, &output))
        return NULL;
    return none_unless(record(self, engine, start, end, output) < 0);
}

/* Mark a step for the workers. What it chose is recorded later; at once where no worker will be busy. */
static PyObject *end_step(Steps *self, PyObject *engine, PyObject *start, PyObject *output, long long step)
{
    PyObject *end = PyLong_FromLongLong(now_ns()), *pid = end ? read_attribute(engine, n_pid) : NULL;
    PyObject *number = pid ? PyLong_FromLongLong(step) : NULL, *mark = number ? PyTuple_Pack(2, pid, number) : NULL;
    long long tokens;
    int failed = mark == NULL || PyObject_SetAttr(output, self->mark, mark) < 0 ||
                 call_for_effect(self->ended, engine, NULL) < 0 ||
                 read_int(output, n_total, INT32_MIN, INT32_MAX, &tokens) < 0;
    PyObject *done = NULL;
    if (!failed)
        done = tokens ? PyTuple_Pack(4, engine, start, end, output)
                      : none_unless(record(self, engine, start, end, output) < 0);
    Py_XDECREF(mark);
    Py_XDECREF(number);
    Py_XDECREF(pid);
    Py_XDECREF(end);
    return done;
}

static PyObject *schedule_ends(Steps *self, PyObject *const *given, Py_ssize_t count)
{
    if (!is_after(given, count))
        return NULL;
    if (given[0] == Py_None)
        Py_RETURN_NONE;
    if (!PyTuple_Check(given[0]) || PyTuple_Size(given[0]) != 2)
        return PyErr_Format(PyExc_TypeError, "a state is an engine and when the step began");
    PyObject *engine = PyTuple_GetItem(given[0], 0);
    long long step, depth;
    if (read_int(engine, n_depth, INT32_MIN + 1, INT32_MAX, &depth) < 0 || write_int(engine, n_depth, depth - 1) < 0 ||
        read_int(engine, n_step, INT32_MIN, INT32_MAX, &step) < 0)
        return NULL;
    return depth == 1 && step > 0 ? end_step(self, engine, PyTuple_GetItem(given[0], 1), given[1], step)
                                  : none_unless(0);
}

static int init(Steps *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[10];
    if (!PyArg_ParseTuple(args, "O!O!O!O!UOOOOO", packer_type, &given[0], packer_type, &given[1], packer_type,
                          &given[2], &PyDict_Type, &given[3], &given[4], &given[5], &given[6], &given[7], &given[8],
                          &given[9]))
        return -1;
    HOLD(self, given);
    return packer_accept(self->steps, STEP_SCHEDULE_LAYOUT) < 0 || packer_accept(self->shares, STEP_REQUEST_LAYOUT) < 0
               ? -1
               : packer_accept(self->tables, BLOCK_TABLE_LAYOUT);
}

static PyMethodDef methods[] = {
    {"before", FAST(schedule_begins), "Hook.before of schedule."},
    {"after", FAST(schedule_ends), "Hook.after of schedule."},
    {"record", FAST(record_chosen), "Hook.later of schedule."},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Steps(steps, shares, tables, schedulers, mark, begun, ended, settle, share, limit)"},
    HOLDER_SLOTS,
    {Py_tp_init, init},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec steps_spec = {
    "kvtrace.capture._native.Steps", sizeof(Steps), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};
