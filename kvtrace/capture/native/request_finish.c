/* Ends of requests, of which many may come in one step, whose results all of them wait for. */

#include "packer.h"
#include "state.h"

static PyObject *n_request, *n_request_id, *n_finished, *n_awaiting, *n_status, *n_name, *n_computed, *n_outputs,
    *n_table;

int ends_names(void)
{
    const Name names[] = {
        {&n_request, "request"},
        {&n_request_id, "request_id"},
        {&n_finished, "finished"},
        {&n_awaiting, "awaiting_first_token"},
        {&n_status, "status"},
        {&n_name, "name"},
        {&n_computed, "num_computed_tokens"},
        {&n_outputs, "num_output_tokens"},
        {&n_table, "table"},
    };
    return INTERN(names);
}

typedef struct {
    HOLDER;
    Packer *packer;       /* of request events */
    PyObject *schedulers; /* id of a scheduler -> Engine */
    PyObject *reasons;    /* by a status' name: why the request ended */
    PyObject
        *first_tokens; /* (engine, request): some requests have no token yet, and this one will get none any more */
} Ends;

/* Why a request ended; -1: an exception is set. */
static long long reason_of(Ends *self, PyObject *request)
{
    PyObject *status = read_attribute(request, n_status), *name = status ? read_attribute(status, n_name) : NULL;
    PyObject *known = name ? PyDict_GetItemWithError(self->reasons, name) : NULL;
    long long reason = known ? PyLong_AsLongLong(known) : PyErr_Occurred() ? -1 : FINISH_REASON_OTHER;
    Py_XDECREF(status);
    Py_XDECREF(name);
    return reason;
}

/* Blocks in a request's tables; -1: an exception is set. */
static long long blocks_of(PyObject *live)
{
    PyObject *ends = read_attribute(live, n_table);
    Py_ssize_t groups = ends ? PyList_Size(ends) : -1;
    long long blocks = groups < 0 ? -1 : 0;
    for (Py_ssize_t group = 0; group < groups && blocks >= 0; group++) {
        long long end = PyLong_AsLongLong(PyList_GetItem(ends, group));
        blocks = end == -1 && PyErr_Occurred() ? -1 : blocks + end;
    }
    Py_XDECREF(ends);
    return blocks;
}

static int record_end(Ends *self, PyObject *engine, PyObject *live, PyObject *request)
{
    const EngineState *at = engine_state(engine);
    const RequestState *of = at ? request_state(live) : NULL;
    long long computed, outputs, finished, reason, blocks;
    int awaits = of ? is_true(engine, n_awaiting) : -1;
    if (awaits < 0 || PyObject_SetAttr(live, n_finished, Py_True) < 0 ||
        (awaits && call_for_effect(self->first_tokens, engine, request) < 0) ||
        read_int(engine, n_finished, INT32_MIN, INT32_MAX, &finished) < 0 ||
        write_int(engine, n_finished, finished + 1) < 0 || (reason = reason_of(self, request)) < 0 ||
        (blocks = blocks_of(live)) < 0 || read_int(request, n_computed, INT32_MIN, INT32_MAX, &computed) < 0 ||
        read_int(request, n_outputs, INT32_MIN, INT32_MAX, &outputs) < 0)
        return -1;
    RequestEventRecord record = {
        .time_ns = now_ns(),
        .op = REQUEST_OP_FINISH,
        .computed_tokens = (int32_t)computed,
        .output_tokens = (int32_t)outputs,
        .local_cached_tokens = -1,
        .external_cached_tokens = -1,
    };
    if (!SET(record.step, at->acting_step) || !SET(record.request, of->number) || !SET(record.reason, reason) ||
        !SET(record.blocks, blocks))
        return -1;
    return packer_store(self->packer, &record);
}

/* What is known of a request that has not ended yet, borrowed. NULL: nothing is, or an exception is set. */
static PyObject *alive(PyObject *engine, PyObject *request)
{
    const EngineState *state = engine_state(engine);
    PyObject *id = state && state->requests ? read_attribute(request, n_request_id) : NULL;
    PyObject *live = id ? PyDict_GetItemWithError(state->requests, id) : NULL;
    Py_XDECREF(id);
    return live && is_true(live, n_finished) == 0 ? live : NULL;
}

static PyObject *before(Ends *self, PyObject *const *given, Py_ssize_t count)
{
    PyObject *engine = is_before(given, count) ? known_by_id(self->schedulers, given[0]) : NULL;
    PyObject *request = engine ? needed_argument(given, 1, n_request) : NULL,
             *live = request ? alive(engine, request) : NULL;
    if (live == NULL)
        return none_unless(PyErr_Occurred() != NULL);
    Py_INCREF(engine);
    Py_INCREF(live);
    int failed = record_end(self, engine, live, request) < 0;
    Py_DECREF(engine);
    Py_DECREF(live);
    return none_unless(failed);
}

static int init(Ends *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[4];
    if (!PyArg_ParseTuple(args, "O!O!O!O", packer_type, &given[0], &PyDict_Type, &given[1], &PyDict_Type, &given[2],
                          &given[3]))
        return -1;
    HOLD(self, given);
    return packer_accept(self->packer, REQUEST_EVENT_LAYOUT);
}

static PyMethodDef methods[] = {
    {"before", FAST(before), "Hook.before of _free_request."},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Ends(packer, schedulers, reasons, first_tokens)"},
    HOLDER_SLOTS,
    {Py_tp_init, init},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec ends_spec = {
    "kvtrace.capture._native.Ends", sizeof(Ends), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};
