/* A connector's calls in its worker, of which a step has a dozen; in most of them nothing happens. */

#include "packer.h"

static PyObject *n_step, *n_intern, *n_sent, *n_received;

int calls_names(void)
{
    const Name names[] = {
        {&n_step, "step"},
        {&n_intern, "intern"},
        {&n_sent, "finished_sending"},
        {&n_received, "finished_recving"},
    };
    return INTERN(names);
}

enum { CALLS = CONNECTOR_CALL_POLL + 1 };

typedef struct {
    HOLDER;
    Packer *packer;
    PyObject *part, *recorder, *name, *mark, *attach, *missing;
    PyObject *before_save, *then[CALLS]; /* what an adapter does before and after a call, or None; by call */
    long long pid, step;                 /* what `part.step` is */
    long long number;                    /* the interned name's, as of `followed` */
    unsigned int followed;
    int attached;
    unsigned char index;
} Calls;

static int set_step(Calls *self, PyObject *step)
{
    if (read_mark(step, &self->pid, &self->step) < 0)
        return -1;
    return PyObject_SetAttr(self->part, n_step, step);
}

static PyObject *without_step(Calls *self, PyObject *none)
{
    PyObject *unknown = Py_BuildValue("(ii)", 0, -1);
    int failed = unknown == NULL || set_step(self, unknown) < 0;
    Py_XDECREF(unknown);
    return failed ? NULL : Py_NewRef(Py_None);
}

static int attach(Calls *self)
{
    PyObject *done = PyObject_CallNoArgs(self->attach);
    self->attached = done == NULL ? -1 : PyObject_IsTrue(done);
    Py_XDECREF(done);
    return self->attached < 0 ? -1 : 0;
}

static PyObject *metadata(Calls *self, PyObject *const *given, Py_ssize_t count)
{
    if (!is_before(given, count))
        return NULL;
    if (self->attached <= 0 && attach(self) < 0)
        return NULL;
    PyObject *name, *of = NULL;
    Py_ssize_t at = 0;
    if (PyTuple_Size(given[0]) > 0)
        of = PyTuple_GetItem(given[0], 0);
    else if (!PyDict_Next(given[1], &at, &name, &of))
        return PyErr_Format(PyExc_TypeError, "there is no metadata");
    PyObject *step = attribute_or_none(of, self->mark);
    if (step == NULL)
        return NULL;
    if (step == Py_None) {
        Py_DECREF(step);
        return call_for_effect(self->missing, of, NULL) < 0 ? NULL : without_step(self, NULL);
    }
    int failed = set_step(self, step) < 0;
    Py_DECREF(step);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *begin(Calls *self, PyObject *const *given, Py_ssize_t count)
{
    return PyLong_FromLongLong(now_ns());
}

static PyObject *begin_save(Calls *self, PyObject *const *given, Py_ssize_t count)
{
    return call_for_effect(self->before_save, NULL, NULL) < 0 ? NULL : begin(self, given, count);
}

static int intern_name(Calls *self)
{
    PyObject *number = PyObject_CallMethodObjArgs(self->recorder, n_intern, self->name, NULL);
    self->number = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    self->followed = self->packer->followed;
    return self->number < 0 ? -1 : 0;
}

/* How many requests one of the two halves of a poll's result names, -1 with an exception set on errors. */
static Py_ssize_t requests_in(PyObject *result, int half)
{
    PyObject *found = PyTuple_Check(result) ? PySequence_GetItem(result, half)
                                            : read_attribute(result, half ? n_received : n_sent);
    if (found == NULL)
        return -1;
    Py_ssize_t size = found == Py_None ? 0 : PyObject_Size(found);
    Py_DECREF(found);
    return size;
}

static PyObject *record(Calls *self, int call, PyObject *const *given, Py_ssize_t count)
{
    if (!is_after(given, count))
        return NULL;
    long long start_ns = PyLong_AsLongLong(given[0]);
    Py_ssize_t sent = -1, received = -1;
    ConnectorCallRecord record = {.start_ns = start_ns, .end_ns = now_ns(), .part = self->index, .call = (uint8_t)call};
    if (start_ns == -1 && PyErr_Occurred())
        return NULL;
    if (call == CONNECTOR_CALL_POLL &&
        ((sent = requests_in(given[1], 0)) < 0 || (received = requests_in(given[1], 1)) < 0))
        return NULL;
    if (self->followed != self->packer->followed && intern_name(self) < 0)
        return NULL;
    if (!SET(record.engine_id, self->pid) || !SET(record.step, self->step) || !SET(record.connector, self->number) ||
        !SET(record.sent_requests, sent) || !SET(record.received_requests, received) ||
        packer_store(self->packer, &record) < 0)
        return NULL;
    if (self->then[call] == Py_None)
        Py_RETURN_NONE;
    return PyObject_CallFunctionObjArgs(self->then[call], given[0], given[2], given[3], NULL);
}

static PyObject *load(Calls *self, PyObject *const *given, Py_ssize_t count)
{
    return record(self, CONNECTOR_CALL_LOAD, given, count);
}

static PyObject *save(Calls *self, PyObject *const *given, Py_ssize_t count)
{
    return record(self, CONNECTOR_CALL_SAVE, given, count);
}

static PyObject *poll(Calls *self, PyObject *const *given, Py_ssize_t count)
{
    return record(self, CONNECTOR_CALL_POLL, given, count);
}

static int calls_init(Calls *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[12] = {NULL}, **then = &given[8]; /* then[0]: there is no such call */
    if (!PyArg_ParseTuple(args, "O!OOUUOOOOOOb", packer_type, &given[0], &given[1], &given[2], &given[3], &given[4],
                          &given[5], &given[6], &given[7], &then[CONNECTOR_CALL_LOAD], &then[CONNECTOR_CALL_SAVE],
                          &then[CONNECTOR_CALL_POLL], &self->index))
        return -1;
    HOLD(self, given);
    self->followed = self->packer->followed - 1;
    self->step = -1;
    return packer_accept(self->packer, CONNECTOR_CALL_LAYOUT);
}

static PyMethodDef calls_methods[] = {
    {"metadata", FAST(metadata), "Hook.before of calls that bring a step's metadata."},
    {"without_step", (PyCFunction)without_step, METH_NOARGS, "Hook.off of those."},
    {"begin", FAST(begin), "Hook.before of calls that are recorded."},
    {"begin_save", FAST(begin_save), "Hook.before of wait_for_save."},
    {"load", FAST(load), "Hook.after of start_load_kv."},
    {"save", FAST(save), "Hook.after of wait_for_save."},
    {"poll", FAST(poll), "Hook.after of get_finished."},
    {NULL},
};

static PyType_Slot calls_slots[] = {
    {Py_tp_doc, "Calls(packer, part, recorder, name, mark, attach, missing, before_save, after_load, after_save, "
                "after_poll, index)"},
    HOLDER_SLOTS,
    {Py_tp_init, calls_init},
    {Py_tp_methods, calls_methods},
    {0, NULL},
};

PyType_Spec calls_spec = {
    "kvtrace.capture._native.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, calls_slots,
};

/* `before` and `after` of a hook that gives an attribute another value for the time of a call. */
typedef struct {
    HOLDER;
    PyObject *find; /* gives whose attribute it is, or None as long as nobody has it */
    PyObject *name, *value;
    PyObject *owner; /* once it was found */
} Around;

static PyObject *around_before(Around *self, PyObject *const *given, Py_ssize_t count)
{
    if (self->owner == NULL) {
        PyObject *found = PyObject_CallNoArgs(self->find);
        if (found == NULL)
            return NULL;
        if (found == Py_None) {
            Py_DECREF(found);
            return Py_NewRef((PyObject *)self); /* there was nothing to change */
        }
        replace(&self->owner, found);
    }
    PyObject *until = read_attribute(self->owner, self->name);
    if (until != NULL && PyObject_SetAttr(self->owner, self->name, self->value) < 0)
        Py_CLEAR(until);
    return until;
}

static PyObject *around_after(Around *self, PyObject *const *given, Py_ssize_t count)
{
    if (!is_after(given, count))
        return NULL;
    if (given[0] != (PyObject *)self && self->owner != NULL && PyObject_SetAttr(self->owner, self->name, given[0]) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int around_init(Around *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[4] = {NULL}; /* the last: nobody yet */
    if (!PyArg_ParseTuple(args, "OUO", &given[0], &given[1], &given[2]))
        return -1;
    HOLD(self, given);
    return 0;
}

static PyMethodDef around_methods[] = {
    {"before", FAST(around_before), "Hook.before: the value that was there."},
    {"after", FAST(around_after), "Hook.after: put it back."},
    {NULL},
};

static PyType_Slot around_slots[] = {
    {Py_tp_doc, "Around(find, name, value)"}, HOLDER_SLOTS, {Py_tp_init, around_init},
    {Py_tp_methods, around_methods},          {0, NULL},
};

PyType_Spec around_spec = {
    "kvtrace.capture._native.Around", sizeof(Around), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, around_slots,
};
