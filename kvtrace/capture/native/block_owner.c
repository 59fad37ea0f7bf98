/* Whose blocks change hands: once a request and step.
 *
 * probes/lookups.py is complete without this; what is not of the common kind is handed to it.
 */

#include "packer.h"
#include "state.h"

static PyObject *n_request_id;

typedef struct {
    HOLDER;
    PyObject *managers;       /* id of a KVCacheManager -> Engine */
    PyObject *before, *after; /* the slow ways */
} Owner;

/* The number of a request that the engine follows; -1: it is not known, or an exception is set. */
static long long known_number(const EngineState *engine, PyObject *request)
{
    PyObject *id = PyObject_GetAttr(request, n_request_id);
    PyObject *found = id && engine->requests && PyDict_Check(engine->requests)
                          ? PyDict_GetItemWithError(engine->requests, id)
                          : NULL;
    const RequestState *live = found ? request_state(found) : NULL;
    Py_XDECREF(id);
    return live ? live->number : -1;
}

static PyObject *owner_before(Owner *self, PyObject *const *given, Py_ssize_t count)
{
    if (count != 2 || !PyTuple_Check(given[0]))
        return PyErr_Format(PyExc_TypeError, "args and kwargs are needed");
    PyObject *known = known_by_id(self->managers, given[0]);
    if (known == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    Py_INCREF(known);
    EngineState *engine = engine_state(known);
    long long number = -1;
    if (engine != NULL && is_none(engine->lookup) && PyTuple_Size(given[0]) > 1)
        number = known_number(engine, PyTuple_GetItem(given[0], 1));
    if (number < 0) {
        Py_DECREF(known);
        return PyErr_Occurred() ? NULL : PyObject_CallFunctionObjArgs(self->before, given[0], given[1], NULL);
    }
    engine->owner = number;
    return known;
}

static PyObject *owner_after(Owner *self, PyObject *const *given, Py_ssize_t count)
{
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "state, result, args and kwargs are needed");
    if (given[0] == Py_None)
        return Py_NewRef(Py_None);
    EngineState *engine = engine_state(given[0]);
    if (engine == NULL)
        return NULL;
    if (given[1] == Py_None || !is_none(engine->lookup))
        return PyObject_CallFunctionObjArgs(self->after, given[0], given[1], given[2], given[3], NULL);
    engine->owner = 0;
    return Py_NewRef(Py_None);
}

static int owner_init(Owner *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[3];
    if (!PyArg_ParseTuple(args, "O!OO", &PyDict_Type, &given[0], &given[1], &given[2]))
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
    {Py_tp_doc, "Owner(managers, before, after)"},
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
    const Name names[] = {{&n_request_id, "request_id"}};
    return INTERN(names);
}
