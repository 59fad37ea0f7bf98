/* What runs once a step around the model: forward passes, and the return of their results. */

#include "packer.h"
#include "cuda_events.h"
#include "state.h"
#include <stddef.h>
#include <structmember.h>

#define MODES 4

static PyObject *n_tokens, *n_scheduled, *n_graph_mode, *n_dummy, *n_output;
static PyObject *n_updating, *n_start, *n_finished, *n_step, *n_awaiting, *n_model_output, *n_sampled;

int passes_names(void)
{
    const Name names[] = {
        {&n_tokens, "total_num_scheduled_tokens"},
        {&n_scheduled, "num_scheduled_tokens"},
        {&n_dummy, "dummy_run"},
        {&n_graph_mode, "cudagraph_runtime_mode"},
        {&n_output, "scheduler_output"},
        {&n_updating, "updating"},
        {&n_start, "update_start"},
        {&n_finished, "finished"},
        {&n_step, "step"},
        {&n_awaiting, "awaiting_first_token"},
        {&n_model_output, "model_runner_output"},
        {&n_sampled, "sampled_token_ids"},
    };
    return INTERN(names);
}

/* Around passes that are marked, without Python; where there is more to do it is Python's. */
typedef struct {
    HOLDER;
    PyObject *ring, *attribute, *begin, *end, *enqueued;
    long long interval_ns, due_ns; /* between calls of `enqueued` */
} TimedPasses;

static PyObject *timed_passes_begin(TimedPasses *self, PyObject *const *given, Py_ssize_t count)
{
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "start_ns, dummy and scheduler_output are needed");
    State *state = ((EventRing *)self->ring)->state;
    long long pid, step = 0, tokens = 0;
    if (given[1] == Py_False && state->ready && !state->stale) {
        int found = mark_of(given[2], self->attribute, &pid, &step);
        if (found < 0 || (found && read_int(given[2], n_tokens, INT32_MIN, INT32_MAX, &tokens) < 0))
            return NULL;
    }
    if (step <= 0 || tokens <= 0)
        return PyObject_CallFunctionObjArgs(self->begin, given[0], given[1], given[2], NULL);
    state->step = (uint64_t)step;
    state->stale = 1;
    event_ring_open((EventRing *)self->ring);
    Py_RETURN_NONE;
}

static PyObject *timed_passes_end(TimedPasses *self, PyObject *tokens)
{
    State *state = ((EventRing *)self->ring)->state;
    int some = PyObject_IsTrue(tokens);
    if (some < 0)
        return NULL;
    if (!some || !state->ready || state->step == 0 || state->next == state->stop)
        return PyObject_CallFunctionObjArgs(self->end, tokens, NULL);
    event_ring_close((EventRing *)self->ring, (int64_t)state->step);
    state->stale = state->always_stale;
    long long now = now_ns();
    if (now < self->due_ns)
        Py_RETURN_NONE;
    self->due_ns = now + self->interval_ns;
    return PyObject_CallNoArgs(self->enqueued);
}

static int timed_passes_init(TimedPasses *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[5];
    if (!PyArg_ParseTuple(args, "O!OOOOL", event_ring_type, &given[0], &given[1], &given[2], &given[3], &given[4],
                          &self->interval_ns))
        return -1;
    HOLD(self, given);
    return 0;
}

static PyMethodDef timed_passes_methods[] = {
    {"begin", FAST(timed_passes_begin), NULL},
    {"end", (PyCFunction)timed_passes_end, METH_O, NULL},
    {NULL},
};

static PyType_Slot timed_passes_slots[] = {
    {Py_tp_doc, "TimedPasses(ring, mark, begin, end, enqueued, interval_ns)"},
    HOLDER_SLOTS,
    {Py_tp_init, timed_passes_init},
    {Py_tp_methods, timed_passes_methods},
    {0, NULL},
};

PyType_Spec timed_passes_spec = {"kvtrace.capture._native.TimedPasses", sizeof(TimedPasses), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, timed_passes_slots};

/* Forward passes: see kvtrace.probes.worker. */
typedef struct {
    HOLDER;
    Packer *packer;
    PyObject *mark, *begin, *end, *turn, *other, *name_mode, *missing;
    PyObject *modes[MODES]; /* members of vLLM's that were named, and what they are to us */
    unsigned char codes[MODES];
    int mode, in_pieces, known, without;
} Forwards;

static PyObject *forward_begins(Forwards *self, PyObject *const *given, Py_ssize_t count)
{
    if (!is_before(given, count))
        return NULL;
    self->mode = 0;
    PyObject *dummy = argument_of(given, 3, n_dummy);
    int is_dummy = dummy == NULL ? (PyErr_Occurred() ? -1 : 0) : PyObject_IsTrue(dummy);
    if (is_dummy < 0)
        return NULL;
    PyObject *start_ns = PyLong_FromLongLong(is_dummy ? 0 : now_ns());
    if (self->begin == Py_None || start_ns == NULL)
        return start_ns;
    PyObject *output = argument_of(given, 1, n_output);
    PyObject *done = output == NULL && PyErr_Occurred()
                         ? NULL
                         : PyObject_CallFunctionObjArgs(self->begin, start_ns, is_dummy ? Py_True : Py_False,
                                                        output ? output : Py_None, NULL);
    if (done == NULL)
        Py_CLEAR(start_ns);
    Py_XDECREF(done);
    return start_ns;
}

static int record_forward(Forwards *self, long long start_ns, PyObject *output)
{
    long long pid, step, tokens;
    int found = mark_of(output, self->mark, &pid, &step);
    if (found < 0)
        return -1;
    if (!found) {
        self->without += 1;
        PyObject *said = PyObject_CallFunction(self->missing, "Oi", output, self->without);
        Py_XDECREF(said);
        return said == NULL ? -1 : 0;
    }
    self->without = 0;
    if (read_int(output, n_tokens, INT32_MIN, INT32_MAX, &tokens) < 0)
        return -1;
    if (self->end != Py_None) {
        PyObject *done = PyObject_CallFunction(self->end, "L", tokens);
        Py_XDECREF(done);
        if (done == NULL)
            return -1;
    }
    long long requests = size_of(output, n_scheduled);
    ForwardRecord record = {.start_ns = start_ns, .end_ns = now_ns()};
    if (requests < 0 || !SET(record.engine_id, pid) || !SET(record.step, step) || !SET(record.tokens, tokens) ||
        !SET(record.requests, requests) || !SET(record.graph_mode, self->mode))
        return -1;
    return packer_store(self->packer, &record);
}

static PyObject *forward_ends(Forwards *self, PyObject *const *given, Py_ssize_t count)
{
    if (!is_after(given, count))
        return NULL;
    long long start_ns = PyLong_AsLongLong(given[0]);
    if (start_ns == 0)
        Py_RETURN_NONE;
    if (start_ns == -1 && PyErr_Occurred())
        return NULL;
    PyObject *output = needed_argument(given + 2, 1, n_output);
    return none_unless(output == NULL || record_forward(self, start_ns, output) < 0);
}

/* The code of a graph mode, remembered by its identity: reading its name takes a call. -1: an exception is set. */
static int mode_of(Forwards *self, PyObject *mode)
{
    for (int i = 0; i < self->known; i++)
        if (self->modes[i] == mode)
            return self->codes[i];
    PyObject *named = PyObject_CallFunctionObjArgs(self->name_mode, mode, NULL);
    long long code = named ? PyLong_AsLongLong(named) : -1;
    Py_XDECREF(named);
    if (code < 0 || code > UINT8_MAX)
        return PyErr_Occurred() ? -1 : 0;
    if (self->known < MODES) {
        self->codes[self->known] = (unsigned char)code;
        self->modes[self->known++] = Py_NewRef(mode);
    }
    return (int)code;
}

static PyObject *context(Forwards *self, PyObject *const *given, Py_ssize_t count)
{
    if (!is_before(given, count))
        return NULL;
    if (self->mode)
        return self->other == Py_None ? Py_NewRef(Py_None) : PyObject_CallNoArgs(self->other);
    PyObject *mode = PyDict_GetItemWithError(given[1], n_graph_mode);
    if (mode == NULL && PyErr_Occurred())
        return NULL;
    if (mode != NULL && mode != Py_None) {
        int code = mode_of(self, mode);
        if (code < 0)
            return NULL;
        self->mode = code;
        if (self->turn != Py_None && self->in_pieces != (code == GRAPH_MODE_PIECEWISE)) {
            self->in_pieces = !self->in_pieces;
            return PyObject_CallFunctionObjArgs(self->turn, self->in_pieces ? Py_True : Py_False, NULL);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *watch(Forwards *self, PyObject *const *given, Py_ssize_t count)
{
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "begin, end, turn and other are needed");
    replace(&self->begin, Py_NewRef(given[0]));
    replace(&self->end, Py_NewRef(given[1]));
    replace(&self->turn, Py_NewRef(given[2]));
    replace(&self->other, Py_NewRef(given[3]));
    Py_RETURN_NONE;
}

static int forwards_init(Forwards *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[8 + MODES] = {NULL, NULL, Py_None, Py_None, Py_None, Py_None}; /* the last: no mode was named yet */
    if (!PyArg_ParseTuple(args, "O!UOO", packer_type, &given[0], &given[1], &given[6], &given[7]))
        return -1;
    HOLD(self, given);
    return packer_accept(self->packer, FORWARD_LAYOUT);
}

static PyMemberDef forwards_members[] = {
    {"mode", T_INT, offsetof(Forwards, mode), 0, "The graph mode of the forward pass under way; 0 before it is known."},
    {NULL},
};

static PyMethodDef forwards_methods[] = {
    {"before", FAST(forward_begins), "Hook.before of execute_model."},
    {"after", FAST(forward_ends), "Hook.after of execute_model."},
    {"context", FAST(context), "Hook.before of set_forward_context."},
    {"watch", FAST(watch), "watch(begin, end, turn, other): what to call from now on."},
    {NULL},
};

static PyType_Slot forwards_slots[] = {
    {Py_tp_doc, "Forwards(packer, mark, name_mode, missing)"},
    HOLDER_SLOTS,
    {Py_tp_init, forwards_init},
    {Py_tp_members, forwards_members},
    {Py_tp_methods, forwards_methods},
    {0, NULL},
};

PyType_Spec forwards_spec = {
    "kvtrace.capture._native.Forwards", sizeof(Forwards), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, forwards_slots,
};

/* Returns of steps' results: see kvtrace.probes.step_results. */
typedef struct {
    HOLDER;
    Packer *packer;
    PyObject *schedulers; /* id of a Scheduler -> Engine */
    PyObject *mark, *missing, *first_tokens;
} Updates;

static PyObject *update_begins(Updates *self, PyObject *const *given, Py_ssize_t count)
{
    if (!is_before(given, count))
        return NULL;
    PyObject *engine = known_by_id(self->schedulers, given[0]), *output;
    int updating = engine == NULL ? 1 : is_true(engine, n_updating);
    if (updating)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    Py_INCREF(engine);
    long long pid, step = -1;
    int failed = PyObject_SetAttr(engine, n_updating, Py_True) < 0 || write_int(engine, n_start, now_ns()) < 0 ||
                 write_int(engine, n_finished, 0) < 0;
    if (!failed && (output = argument_of(given, 1, n_output)) != NULL) {
        int found = mark_of(output, self->mark, &pid, &step);
        failed = found < 0 || (!found && call_for_effect(self->missing, engine, output) < 0);
    }
    EngineState *state = failed || PyErr_Occurred() ? NULL : engine_state(engine);
    if (state == NULL)
        Py_CLEAR(engine);
    else
        state->acting_step = step;
    return engine;
}

/* Tokens in a model's output: as many as its lists have together. -1: an exception is set. */
static long long tokens_in(PyObject *model_output)
{
    PyObject *sampled = read_attribute(model_output, n_sampled);
    if (sampled == NULL || sampled == Py_None) {
        Py_XDECREF(sampled);
        return sampled == NULL ? -1 : 0;
    }
    long long tokens = 0;
    Py_ssize_t rows = PyObject_Size(sampled);
    for (Py_ssize_t row = 0; row < rows && tokens >= 0; row++) {
        PyObject *of_request = PySequence_GetItem(sampled, row);
        Py_ssize_t found = of_request ? PyObject_Size(of_request) : -1;
        Py_XDECREF(of_request);
        tokens = found < 0 ? -1 : tokens + found;
    }
    Py_DECREF(sampled);
    return rows < 0 ? -1 : tokens;
}

static int record_update(Updates *self, PyObject *engine, PyObject *model_output)
{
    long long start_ns, finished, now_at, tokens;
    EngineState *state = engine_state(engine);
    int awaits = state ? is_true(engine, n_awaiting) : -1;
    if (awaits < 0)
        return -1;
    long long step = state->acting_step;
    if ((awaits && call_for_effect(self->first_tokens, engine, NULL) < 0) || (tokens = tokens_in(model_output)) < 0 ||
        read_int(engine, n_start, INT64_MIN, INT64_MAX, &start_ns) < 0 ||
        read_int(engine, n_finished, INT32_MIN, INT32_MAX, &finished) < 0 ||
        read_int(engine, n_step, INT32_MIN, INT32_MAX, &now_at) < 0)
        return -1;
    StepUpdateRecord record = {.update_ns = start_ns, .end_ns = now_ns()};
    if (!SET(record.step, step) || !SET(record.output_tokens, tokens) || !SET(record.finished_requests, finished) ||
        packer_store(self->packer, &record) < 0)
        return -1;
    state->acting_step = now_at;
    return PyObject_SetAttr(engine, n_updating, Py_False);
}

static PyObject *update_ends(Updates *self, PyObject *const *given, Py_ssize_t count)
{
    if (!is_after(given, count))
        return NULL;
    if (given[0] == Py_None)
        Py_RETURN_NONE;
    PyObject *output = needed_argument(given + 2, 2, n_model_output);
    return none_unless(output == NULL || record_update(self, given[0], output) < 0);
}

static int updates_init(Updates *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[5];
    if (!PyArg_ParseTuple(args, "O!O!UOO", packer_type, &given[0], &PyDict_Type, &given[1], &given[2], &given[3],
                          &given[4]))
        return -1;
    HOLD(self, given);
    return packer_accept(self->packer, STEP_UPDATE_LAYOUT);
}

static PyMethodDef updates_methods[] = {
    {"before", FAST(update_begins), "Hook.before of update_from_output."},
    {"after", FAST(update_ends), "Hook.after of update_from_output."},
    {NULL},
};

static PyType_Slot updates_slots[] = {
    {Py_tp_doc, "Updates(packer, schedulers, mark, missing, first_tokens)"},
    HOLDER_SLOTS,
    {Py_tp_init, updates_init},
    {Py_tp_methods, updates_methods},
    {0, NULL},
};

PyType_Spec updates_spec = {
    "kvtrace.capture._native.Updates", sizeof(Updates), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, updates_slots,
};
