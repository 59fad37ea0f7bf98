/* Stands in for a hooked function: see `wrap` in probes/hooks.py. */

#include "util.h"
#include <stddef.h>
#include <structmember.h>

typedef struct {
    HOLDER;
    PyObject *dict; /* what functools.update_wrapper puts there */
    PyObject *original;
    PyObject *before, *after, *arguments, *later; /* each may be None */
    PyObject *fire, *disable;
    PyObject *none;              /* keyword arguments of calls that have none */
    char fired, failed, gave_up; /* once; for good; likewise with what it puts off */
    char catches_up;             /* what was put off is done before anything else */
} Guard;

/* What is put off: (guard, what its `after` returned), in turn. NULL: nothing is. Each thread has its own engine. */
static _Thread_local PyObject *put_off;

typedef PyObject *(*Fast)(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* Has an exception of ours been raised? Then the hook is switched off. */
static int switched_off(Guard *self)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return 0;
    self->failed = 1; /* before anything is told: that may come back here */
    return taken_away(self->disable);
}

/* Call what comes before or after; without a detour what is compiled. */
static PyObject *ask(PyObject *function, PyObject *const *given, Py_ssize_t count)
{
    if (PyCFunction_CheckExact(function) && PyCFunction_GetFlags(function) == METH_FASTCALL)
        return ((Fast)(void (*)(void))PyCFunction_GetFunction(function))(PyCFunction_GetSelf(function), given, count);
    if (count == 1)
        return PyObject_CallFunctionObjArgs(function, given[0], NULL);
    return count == 2 ? PyObject_CallFunctionObjArgs(function, given[0], given[1], NULL)
                      : PyObject_CallFunctionObjArgs(function, given[0], given[1], given[2], given[3], NULL);
}

static int put_off_until_later(Guard *self, PyObject *what)
{
    PyObject *both = PyTuple_Pack(2, (PyObject *)self, what);
    if (put_off == NULL)
        put_off = PyList_New(0);
    int failed = both == NULL || put_off == NULL || PyList_Append(put_off, both) < 0;
    Py_XDECREF(both);
    return failed ? -1 : 0;
}

/* Do what one hook put off, before it was switched off, perhaps; an exception of ours does that. -1: an interruption.
 */
static int do_now(Guard *self, PyObject *what)
{
    PyObject *done = self->gave_up ? Py_NewRef(Py_None) : ask(self->later, &what, 1);
    Py_XDECREF(done);
    if (done != NULL)
        return 0;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    self->gave_up = 1;
    if (self->failed)
        PyErr_Clear(); /* that has been told */
    else
        switched_off(self);
    return 0;
}

/* Do what this thread put off. -1: an interruption; what was not done yet is still put off. */
static int do_put_off(void)
{
    int failed = 0;
    while (put_off != NULL && !failed) {
        PyObject *list = put_off;
        put_off = NULL; /* others may come back here */
        Py_ssize_t count = PyList_Size(list), at = 0;
        while (at < count && !failed) {
            PyObject *both = PyList_GetItem(list, at++);
            failed = do_now((Guard *)PyTuple_GetItem(both, 0), PyTuple_GetItem(both, 1)) < 0;
        }
        if (at < count) {
            PyObject *type, *value, *traceback;
            PyErr_Fetch(&type, &value, &traceback);
            replace(&put_off, PyList_GetSlice(list, at, count));
            PyErr_Restore(type, value, traceback);
        }
        Py_DECREF(list);
    }
    return failed ? -1 : 0;
}

PyObject *catch_up(PyObject *module, PyObject *none)
{
    return none_unless(do_put_off() < 0);
}

PyObject *forget_put_off(PyObject *module, PyObject *none)
{
    Py_CLEAR(put_off);
    Py_RETURN_NONE;
}

/* Run what comes before. 1: that failed. -1: an interruption. `*args` and `*kwargs` are new references to those of the
 * original. */
static int run_before(Guard *self, PyObject **args, PyObject **kwargs, PyObject **state)
{
    if (self->arguments != Py_None) {
        PyObject *both = PyObject_CallFunctionObjArgs(self->arguments, *args, *kwargs, NULL);
        PyObject *replaced = both ? PySequence_GetItem(both, 0) : NULL,
                 *named = replaced ? PySequence_GetItem(both, 1) : NULL;
        Py_XDECREF(both);
        if (named == NULL || !PyTuple_Check(replaced) || !PyDict_Check(named)) {
            if (named != NULL)
                PyErr_SetString(PyExc_TypeError, "a hook's arguments are a tuple and a dict");
            Py_XDECREF(replaced);
            Py_XDECREF(named);
            return switched_off(self) ? 1 : -1;
        }
        replace(args, replaced);
        replace(kwargs, named);
    }
    if (self->before != Py_None) {
        PyObject *given[] = {*args, *kwargs}, *found = ask(self->before, given, 2);
        if (found == NULL)
            return switched_off(self) ? 1 : -1;
        replace(state, found);
    }
    return 0;
}

/* Empty keyword arguments, borrowed: the same ones for each call. Nobody should add to them; should somebody have,
 * others. */
static PyObject *no_names(Guard *self)
{
    if (self->none == NULL || PyDict_Size(self->none) != 0)
        replace(&self->none, PyDict_New());
    return self->none;
}

static PyObject *call(Guard *self, PyObject *args, PyObject *kwargs)
{
    if (self->catches_up && do_put_off() < 0)
        return NULL;
    if (self->failed)
        return PyObject_Call(self->original, args, kwargs);
    if (!self->fired) {
        self->fired = 1;
        if (call_for_effect(self->fire, NULL, NULL) < 0)
            return NULL;
    }
    PyObject *state = Py_NewRef(Py_None), *result = NULL;
    Py_INCREF(args);
    if (kwargs == NULL)
        kwargs = no_names(self);
    Py_XINCREF(kwargs);
    int failed = kwargs != NULL ? run_before(self, &args, &kwargs, &state) : -1;
    if (failed >= 0)
        result = PyObject_Call(self->original, args, kwargs);
    if (result != NULL && !failed && self->after != Py_None) {
        PyObject *given[] = {state, result, args, kwargs}, *done = ask(self->after, given, 4);
        int done_for = done == NULL ||
                       (done != Py_None && self->later != Py_None && put_off_until_later(self, done) < 0);
        if (done_for && !switched_off(self))
            Py_CLEAR(result);
        Py_XDECREF(done);
    }
    Py_DECREF(state);
    Py_DECREF(args);
    Py_XDECREF(kwargs);
    return result;
}

static PyTypeObject *method_type; /* types.MethodType */

static PyObject *get(Guard *self, PyObject *object, PyObject *type)
{
    if (object == NULL || object == Py_None)
        return Py_NewRef((PyObject *)self);
    return PyObject_CallFunctionObjArgs((PyObject *)method_type, (PyObject *)self, object, NULL);
}

static PyObject *reduce(Guard *self, PyObject *none)
{
    return PyObject_GetAttrString((PyObject *)self, "__qualname__"); /* pickled by name, as a function is */
}

static int init(Guard *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[9] = {NULL};
    int catches_up;
    if (!PyArg_ParseTuple(args, "OOOOOOOp", &given[1], &given[2], &given[3], &given[4], &given[5], &given[6], &given[7],
                          &catches_up))
        return -1;
    HOLD(self, given);
    self->catches_up = (char)catches_up;
    return 0;
}

int guard_names(void)
{
    PyObject *types = PyImport_ImportModule("types");
    method_type = types ? (PyTypeObject *)PyObject_GetAttrString(types, "MethodType") : NULL;
    Py_XDECREF(types);
    return method_type ? 0 : -1;
}

static PyMemberDef members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(Guard, dict), READONLY},
    {NULL},
};

static PyGetSetDef accessors[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyMethodDef methods[] = {
    {"__reduce__", (PyCFunction)reduce, METH_NOARGS, NULL},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Guard(original, before, after, arguments, later, fire, disable, catches_up)"},
    HOLDER_SLOTS,
    {Py_tp_init, init},
    {Py_tp_call, call},
    {Py_tp_descr_get, get},
    {Py_tp_members, members},
    {Py_tp_getset, accessors},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec guard_spec = {
    "kvtrace.capture._native.Guard",
    sizeof(Guard),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR,
    slots,
};
