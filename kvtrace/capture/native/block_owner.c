/* Whose blocks change hands: once a request and step. */

#include "state.h"

static PyObject *n_request, *n_request_id, *n_new_computed_blocks;

typedef struct {
    HOLDER;
    PyObject *managers; /* id of a KVCacheManager -> Engine */
    PyObject *admits;   /* (engine, manager): a request that waits is to get blocks */
    PyObject *unknown;  /* (engine, request): it is nobody that the engine follows yet */
    PyObject *settled;  /* Hook.after where such a request got them or was refused */
} Owner;

/* The number of a request that the engine follows; -1: it is not known, or an exception is set. */
static long long known_number(const EngineState *engine, PyObject *request)
{
    PyObject *id = read_attribute(request, n_request_id);
    PyObject *found = id && engine->requests && PyDict_Check(engine->requests)
                          ? PyDict_GetItemWithError(engine->requests, id)
                          : NULL;
    const RequestState *live = found ? request_state(found) : NULL;
    Py_XDECREF(id);
    return live ? live->number : -1;
}

/* Whether the request waits: vLLM then hands on what was found of its prefix, if only that nothing was looked up. */
static int is_admission(PyObject *const *given)
{
    PyObject *found = argument_of(given, 4, n_new_computed_blocks);
    return found ? found != Py_None : PyErr_Occurred() ? -1 : 0;
}

static int note_owner(Owner *self, PyObject *known, PyObject *const *given)
{
    EngineState *engine = engine_state(known);
    int admission = engine ? is_admission(given) : -1;
    if (admission < 0 || (admission && call_for_effect(self->admits, known, PyTuple_GetItem(given[0], 0)) < 0))
        return -1;
    PyObject *request = needed_argument(given, 1, n_request);
    long long number = request ? known_number(engine, request) : -1;
    if (number < 0) /* last: should this fail, nobody is left as the owner */
        return PyErr_Occurred() ? -1 : call_for_effect(self->unknown, known, request);
    engine->owner = number;
    return 0;
}

static PyObject *owner_before(Owner *self, PyObject *const *given, Py_ssize_t count)
{
    PyObject *known = is_before(given, count) ? known_by_id(self->managers, given[0]) : NULL;
    if (known == NULL)
        return none_unless(PyErr_Occurred() != NULL);
    Py_INCREF(known);
    if (note_owner(self, known, given) < 0)
        Py_CLEAR(known);
    return known;
}

static PyObject *owner_after(Owner *self, PyObject *const *given, Py_ssize_t count)
{
    if (!is_after(given, count))
        return NULL;
    if (given[0] == Py_None)
        Py_RETURN_NONE;
    EngineState *engine = engine_state(given[0]);
    if (engine == NULL)
        return NULL;
    engine->owner = 0;
    int admission = is_admission(given + 2);
    if (admission > 0)
        return PyObject_CallFunctionObjArgs(self->settled, given[0], given[1], given[2], given[3], NULL);
    return none_unless(admission < 0);
}

static int owner_init(Owner *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[4];
    if (!PyArg_ParseTuple(args, "O!OOO", &PyDict_Type, &given[0], &given[1], &given[2], &given[3]))
        return -1;
    HOLD(self, given);
    return 0;
}

static PyMethodDef owner_methods[] = {
    {"before", FAST(owner_before), "Hook.before of allocate_slots."},
    {"after", FAST(owner_after), "Hook.after of allocate_slots."},
    {NULL},
};

static PyType_Slot owner_slots[] = {
    {Py_tp_doc, "Owner(managers, admits, unknown, settled)"},
    HOLDER_SLOTS,
    {Py_tp_init, owner_init},
    {Py_tp_methods, owner_methods},
    {0, NULL},
};

PyType_Spec owner_spec = {
    "kvtrace.capture._native.Owner", sizeof(Owner), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, owner_slots,
};

int owners_names(void)
{
    const Name names[] = {
        {&n_request, "request"}, {&n_request_id, "request_id"}, {&n_new_computed_blocks, "new_computed_blocks"}};
    return INTERN(names);
}
