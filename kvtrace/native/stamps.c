/* Stamps around a layer's calls, and launches: what probes/device/around.py and probes/device/cuda.py do in Python. */

#include "packer.h"

/* cuLaunchKernel: function, grid, block, shared memory, stream, arguments, extra. */
typedef int (*LaunchKernel)(
    void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **
);

typedef struct {
    HOLDER;
    PyObject *keep; /* what the arguments lie in */
    LaunchKernel launch;
    void *function, **arguments;
    unsigned threads;
} Launch;

static int launch_init(Launch *self, PyObject *args, PyObject *kwargs)
{
    unsigned long long launch, function, arguments;
    PyObject *given[1];
    if (!PyArg_ParseTuple(args, "KKIKO", &launch, &function, &self->threads, &arguments, &given[0]))
        return -1;
    HOLD(self, given);
    self->launch = (LaunchKernel)(uintptr_t)launch;
    self->function = (void *)(uintptr_t)function;
    self->arguments = (void **)(uintptr_t)arguments;
    return 0;
}

static PyObject *launch_call(Launch *self, PyObject *args, PyObject *kwargs)
{
    unsigned long long stream;
    int error;
    if (!PyArg_ParseTuple(args, "K", &stream))
        return NULL;
    if (self->launch == NULL)
        return PyErr_Format(PyExc_RuntimeError, "nothing to launch");
    Py_BEGIN_ALLOW_THREADS /* the driver waits here where the GPU has too much to do */
    error = self->launch(self->function, 1, 1, 1, self->threads, 1, 1, 0, (void *)(uintptr_t)stream, self->arguments, NULL);
    Py_END_ALLOW_THREADS
    return error ? PyErr_Format(PyExc_RuntimeError, "CUDA error %d at a launch", error) : Py_NewRef(Py_None);
}

static PyType_Slot launch_slots[] = {
    {Py_tp_doc, "Launch(launch_kernel, function, threads, arguments, keep)"},
    HOLDER_SLOTS,
    {Py_tp_init, launch_init},
    {Py_tp_call, launch_call},
    {0, NULL},
};

PyType_Spec launch_spec = {"kvtrace._native.Launch", sizeof(Launch), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, launch_slots};

typedef struct {
    HOLDER;
    PyObject *original, *before, *after, *stream, *capturing, *failed;
    int in_graphs, follows, over;
} Stamped;

static int is_so(PyObject *question)
{
    PyObject *answer = PyObject_CallNoArgs(question);
    int so = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return so;
}

/* Which stamps a call gets: 2 before and after, 1 only after, 0 none; -1: an exception is set. */
static int stamps_of(Stamped *self)
{
    int captured = self->in_graphs && !self->follows ? 0 : is_so(self->capturing);
    return captured == 0 ? 2 : captured < 0 ? -1 : self->in_graphs;
}

/* An exception of ours is told of, and there are no stamps any more. -1: it is none of ours, it stays. */
static int end(Stamped *self)
{
    self->over = 1;
    return taken_away(self->failed) ? 0 : -1;
}

static int stamp(PyObject *launch, PyObject *stream)
{
    PyObject *done = PyObject_CallFunctionObjArgs(launch, stream, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *stamped_call(Stamped *self, PyObject *args, PyObject *kwargs)
{
    int stamps = self->over ? 0 : stamps_of(self);
    PyObject *stream = stamps > 0 ? PyObject_CallNoArgs(self->stream) : NULL;
    int failed = stamps < 0 || (stamps > 0 && stream == NULL) || (stamps == 2 && stamp(self->before, stream) < 0);
    PyObject *result = failed && end(self) < 0 ? NULL : PyObject_Call(self->original, args, kwargs);
    if (result != NULL && !failed && stamps > 0 && stamp(self->after, stream) < 0 && end(self) < 0)
        Py_CLEAR(result);
    Py_XDECREF(stream);
    return result;
}

static int stamped_init(Stamped *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[6];
    if (!PyArg_ParseTuple(args, "OOOOOOpp", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5],
                          &self->in_graphs, &self->follows))
        return -1;
    HOLD(self, given);
    return 0;
}

static PyObject *stamped_reduce(Stamped *self, PyObject *none)
{
    return PyUnicode_FromString("stamped"); /* copied as a function is: not at all */
}

static PyMethodDef stamped_methods[] = {
    {"__reduce__", (PyCFunction)stamped_reduce, METH_NOARGS, NULL},
    {NULL},
};

static PyType_Slot stamped_slots[] = {
    {Py_tp_doc, "Stamped(original, before, after, stream, capturing, failed, in_graphs, follows)"},
    HOLDER_SLOTS,
    {Py_tp_init, stamped_init},
    {Py_tp_call, stamped_call},
    {Py_tp_methods, stamped_methods},
    {0, NULL},
};

PyType_Spec stamped_spec = {"kvtrace._native.Stamped", sizeof(Stamped), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, stamped_slots};
