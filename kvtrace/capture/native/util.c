/* Helpers that every hook here uses. */

#include "util.h"
#include <errno.h>
#include <time.h>
#include <unistd.h>

static int64_t virtual_ns; /* 0: the clock is CLOCK_MONOTONIC */

/* Replay steps a scheduler in virtual time, from this on; 0 gives the real clock back. It never moves backwards. */
PyObject *set_virtual_clock(PyObject *module, PyObject *ns)
{
    long long value = PyLong_AsLongLong(ns);
    if (value == -1 && PyErr_Occurred())
        return NULL;
    if (value == 0 || value > virtual_ns)
        virtual_ns = value;
    Py_RETURN_NONE;
}

int64_t now_ns(void)
{
    struct timespec t;
    if (virtual_ns) /* a reading takes 1 ns: records of one moment keep their order in every table */
        return virtual_ns++;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

PyObject *read_clock(PyObject *module, PyObject *unused)
{
    return PyLong_FromLongLong(now_ns());
}

int intern_names(const Name *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (*names[i].to == NULL && (*names[i].to = PyUnicode_InternFromString(names[i].text)) == NULL)
            return -1;
    return 0;
}

static PyObject *watcher; /* called with the object and the name before an attribute is read; NULL: nobody watches */

PyObject *watch_reads(PyObject *module, PyObject *by)
{
    replace(&watcher, by == Py_None ? NULL : Py_NewRef(by));
    Py_RETURN_NONE;
}

PyObject *read_attribute(PyObject *object, PyObject *name)
{
    return call_for_effect(watcher, object, name) < 0 ? NULL : PyObject_GetAttr(object, name);
}

PyObject *slot_of(PyTypeObject *type, PyObject *name)
{
    PyObject *slot = PyObject_GetAttr((PyObject *)type, name);
    if (slot == NULL)
        PyErr_Clear();
    else if (!Py_IS_TYPE(slot, &PyMemberDescr_Type))
        Py_CLEAR(slot);
    return slot;
}

PyObject *read_slot(PyObject *object, PyObject *slot, PyObject *name)
{
    static descrgetfunc get;
    if (get == NULL)
        get = (descrgetfunc)PyType_GetSlot(&PyMemberDescr_Type, Py_tp_descr_get);
    return call_for_effect(watcher, object, name) < 0 ? NULL : get(slot, object, (PyObject *)Py_TYPE(object));
}

PyObject *attribute_or_none(PyObject *object, PyObject *name)
{
    PyObject *value = read_attribute(object, name);
    if (value != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return value;
    PyErr_Clear();
    return Py_NewRef(Py_None);
}

int take_truth(PyObject *value)
{
    int truth = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    return truth;
}

int is_true(PyObject *object, PyObject *name)
{
    return take_truth(read_attribute(object, name));
}

int take_int(PyObject *value, PyObject *name, long long least, long long most, long long *out)
{
    if (value == NULL)
        return -1;
    long long number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    if (number == -1 && PyErr_Occurred())
        return -1;
    if (number < least || number > most) {
        PyErr_Format(PyExc_OverflowError, "%S is %lld, outside of its field", name, number);
        return -1;
    }
    *out = number;
    return 0;
}

int read_int(PyObject *object, PyObject *name, long long least, long long most, long long *out)
{
    return take_int(read_attribute(object, name), name, least, most, out);
}

long long size_of(PyObject *object, PyObject *name)
{
    PyObject *list = read_attribute(object, name);
    long long size = list ? PyObject_Size(list) : -1;
    Py_XDECREF(list);
    return size;
}

int write_int(PyObject *object, PyObject *name, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    int failed = value == NULL || PyObject_SetAttr(object, name, value) < 0;
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

int overflows(long long number, const char *field)
{
    PyErr_Format(PyExc_OverflowError, "%s is %lld, outside of its field", field, number);
    return 0;
}

int read_mark(PyObject *mark, long long *pid, long long *step)
{
    if (!PyTuple_Check(mark) || PyTuple_Size(mark) != 2) {
        PyErr_SetString(PyExc_TypeError, "a step's mark is (engine's pid, step)");
        return -1;
    }
    *pid = PyLong_AsLongLong(PyTuple_GetItem(mark, 0));
    *step = PyLong_AsLongLong(PyTuple_GetItem(mark, 1));
    return (*pid == -1 || *step == -1) && PyErr_Occurred() ? -1 : 0;
}

int mark_of(PyObject *output, PyObject *attribute, long long *pid, long long *step)
{
    PyObject *mark = attribute_or_none(output, attribute);
    if (mark == NULL)
        return -1;
    int found = mark != Py_None;
    if (found && read_mark(mark, pid, step) < 0)
        found = -1;
    Py_DECREF(mark);
    return found;
}

int is_before(PyObject *const *given, Py_ssize_t count)
{
    if (count == 2 && PyTuple_Check(given[0]) && PyDict_Check(given[1]))
        return 1;
    PyErr_SetString(PyExc_TypeError, "args and kwargs are needed");
    return 0;
}

int is_after(PyObject *const *given, Py_ssize_t count)
{
    if (count == 4 && PyTuple_Check(given[2]) && PyDict_Check(given[3]))
        return 1;
    PyErr_SetString(PyExc_TypeError, "state, result, args and kwargs are needed");
    return 0;
}

PyObject *argument_of(PyObject *const *given, Py_ssize_t position, PyObject *name)
{
    if (!PyTuple_Check(given[0]) || !PyDict_Check(given[1])) {
        PyErr_SetString(PyExc_TypeError, "args and kwargs are a tuple and a dict");
        return NULL;
    }
    if (position < PyTuple_Size(given[0]))
        return PyTuple_GetItem(given[0], position);
    return PyDict_GetItemWithError(given[1], name);
}

PyObject *needed_argument(PyObject *const *given, Py_ssize_t position, PyObject *name)
{
    PyObject *found = argument_of(given, position, name);
    if (found == NULL && !PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "there is no argument %S", name);
    return found;
}

PyObject *argument(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    if (count < 4 || count > 5)
        return PyErr_Format(PyExc_TypeError, "args, kwargs, a position, a name and, perhaps, a default are needed");
    Py_ssize_t position = PyLong_AsSsize_t(given[2]);
    PyObject *found = position < 0 ? NULL : argument_of(given, position, given[3]);
    if (found == NULL && PyErr_Occurred())
        return NULL;
    return Py_NewRef(found ? found : count == 5 ? given[4] : Py_None);
}

PyObject *known_by_id(PyObject *known, PyObject *args)
{
    PyObject *object = PyTuple_GetItem(args, 0), *id = object ? PyLong_FromVoidPtr(object) : NULL;
    PyObject *found = id ? PyDict_GetItemWithError(known, id) : NULL;
    Py_XDECREF(id);
    return found;
}

int call_for_effect(PyObject *function, PyObject *one, PyObject *other)
{
    if (is_none(function))
        return 0;
    PyObject *done = PyObject_CallFunctionObjArgs(function, one, other, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

int taken_away(PyObject *tell)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return 0;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(value, traceback);
    if (call_for_effect(tell, value, NULL) < 0)
        PyErr_Clear(); /* the engine must not see this fail */
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return 1;
}

void deallocate(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    ((inquiry)PyType_GetSlot(type, Py_tp_clear))(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

typedef struct {
    HOLDER;
    PyObject *references[];
} Holder;

void hold(PyObject *self, PyObject *const *given, size_t count)
{
    Holder *holder = (Holder *)self;
    holder->held = (Py_ssize_t)count;
    for (size_t i = 0; i < count; i++)
        replace(&holder->references[i], Py_XNewRef(given[i]));
}

int holder_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t i = 0; i < ((Holder *)self)->held; i++)
        Py_VISIT(((Holder *)self)->references[i]);
    return 0;
}

int holder_clear(PyObject *self)
{
    for (Py_ssize_t i = 0; i < ((Holder *)self)->held; i++)
        Py_CLEAR(((Holder *)self)->references[i]);
    return 0;
}

/* For what Python writes or reads of memory that others share. Records are published by packer_store. */
PyObject *fence(PyObject *module, PyObject *none)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return Py_NewRef(Py_None);
}

/* os.write lets go of the GIL, and a thread that takes it keeps it for far longer than a line takes to be written. */
PyObject *write_line(PyObject *module, PyObject *args)
{
    int descriptor;
    PyObject *line;
    char *bytes;
    Py_ssize_t length;
    ssize_t written;
    if (!PyArg_ParseTuple(args, "iO", &descriptor, &line) || PyBytes_AsStringAndSize(line, &bytes, &length) < 0)
        return NULL;
    do
        written = write(descriptor, bytes, (size_t)length);
    while (written < 0 && errno == EINTR);
    return written < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromSsize_t(written);
}
