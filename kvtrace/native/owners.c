/* Whose blocks change hands: once a request and step.
 *
 * probes/lookups.py is complete without this; what is not of the common kind is handed to it.
 */

#include "packer.h"

static PyObject *n_lookup, *n_requests, *n_request_id, *n_number, *n_owner;

typedef struct {
    HOLDER;
    PyObject *managers; /* id of a KVCacheManager -> Engine */
    PyObject *before, *after; /* the slow ways */
} Owner;

/* Is there an attribute that is not None? -1: there is none at all. */
static int is_set(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return -1;
    Py_DECREF(value);
    return value != Py_None;
}

/* The number of a request that the engine follows, as a new reference. NULL without an exception: it is not known. */
static PyObject *known_number(PyObject *engine, PyObject *request)
{
    PyObject *live = PyObject_GetAttr(engine, n_requests), *id = live ? PyObject_GetAttr(request, n_request_id) : NULL;
    PyObject *found = id && PyDict_Check(live) ? PyDict_GetItemWithError(live, id) : NULL;
    PyObject *number = found ? PyObject_GetAttr(found, n_number) : NULL;
    Py_XDECREF(live);
    Py_XDECREF(id);
    return number;
}

static PyObject *owner_before(Owner *self, PyObject *const *given, Py_ssize_t count)
{
    if (count != 2 || !PyTuple_Check(given[0]))
        return PyErr_Format(PyExc_TypeError, "args and kwargs are needed");
    PyObject *engine = known_by_id(self->managers, given[0]);
    if (engine == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    Py_INCREF(engine);
    int looks_up = is_set(engine, n_lookup);
    PyObject *number = NULL;
    if (looks_up == 0 && PyTuple_Size(given[0]) > 1)
        number = known_number(engine, PyTuple_GetItem(given[0], 1));
    if (number == NULL) {
        Py_DECREF(engine);
        return PyErr_Occurred() ? NULL : PyObject_CallFunctionObjArgs(self->before, given[0], given[1], NULL);
    }
    int failed = PyObject_SetAttr(engine, n_owner, number);
    Py_DECREF(number);
    if (failed)
        Py_CLEAR(engine);
    return engine;
}

static PyObject *owner_after(Owner *self, PyObject *const *given, Py_ssize_t count)
{
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "state, result, args and kwargs are needed");
    if (given[0] == Py_None)
        return Py_NewRef(Py_None);
    int looks_up = is_set(given[0], n_lookup);
    if (looks_up < 0)
        return NULL;
    if (given[1] == Py_None || looks_up)
        return PyObject_CallFunctionObjArgs(self->after, given[0], given[1], given[2], given[3], NULL);
    PyObject *nobody = PyLong_FromLong(0);
    int failed = nobody == NULL || PyObject_SetAttr(given[0], n_owner, nobody) < 0;
    Py_XDECREF(nobody);
    return failed ? NULL : Py_NewRef(Py_None);
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
    "kvtrace._native.Owner", sizeof(Owner), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, owner_slots,
};

int owners_names(void)
{
    const Name names[] = {
        {&n_lookup, "lookup"}, {&n_requests, "requests"}, {&n_request_id, "request_id"}, {&n_number, "number"},
        {&n_owner, "owner"},
    };
    return INTERN(names);
}
