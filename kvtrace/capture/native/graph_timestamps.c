/* Timestamps around calls of a layer. */

#include "cuda_events.h"

/* cuLaunchKernel: function, grid, block, shared memory, stream, arguments, extra. */
typedef int (*LaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                            void **, void **);

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
        error = self->launch(self->function, 1, 1, 1, self->threads, 1, 1, 0, (void *)(uintptr_t)stream,
                             self->arguments, NULL);
    Py_END_ALLOW_THREADS return error ? PyErr_Format(PyExc_RuntimeError, "CUDA error %d at a launch", error)
                                      : Py_NewRef(Py_None);
}

static PyType_Slot launch_slots[] = {
    {Py_tp_doc, "Launch(launch_kernel, function, threads, arguments, keep)"},
    HOLDER_SLOTS,
    {Py_tp_init, launch_init},
    {Py_tp_call, launch_call},
    {0, NULL},
};

PyType_Spec launch_spec = {"kvtrace.capture._native.Launch", sizeof(Launch), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                           launch_slots};

typedef struct {
    HOLDER;
    PyObject *original, *before, *after, *mark_before, *mark_after, *stream, *capturing, *failed;
    int in_graphs, follows, over;
    int quick; /* marks are compiled code's */
} TimestampedCall;

static int is_so(PyObject *question)
{
    PyObject *answer = PyObject_CallNoArgs(question);
    int so = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return so;
}

/* An exception of ours is told of, and there are no stamps any more. -1: it is none of ours, it stays. */
static int end(TimestampedCall *self)
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

/* What stamps a call's start and end, borrowed, NULL for one that has none. -1: an exception is set. */
static int stamps_of(TimestampedCall *self, PyObject **start, PyObject **end)
{
    int captured = is_so(self->capturing);
    *start = captured ? self->follows ? NULL : self->before : self->mark_before;
    *end = captured ? self->after : self->mark_after;
    if (captured && !self->in_graphs)
        *start = *end = NULL;
    return captured;
}

/* Between the pieces of a graph nothing is captured, and Python's time is the step's: nothing is asked for that is
 * known. 1: an exception is set. */
static int mark_in_pieces(TimestampedCall *self, PyObject *with)
{
    RingEvent *mark = (RingEvent *)with;
    State *state = event_ring_of(mark)->state;
    if (!state->known) { /* a pass has one */
        PyObject *stream = PyObject_CallNoArgs(self->stream);
        state->stream = stream ? PyLong_AsUnsignedLongLong(stream) : 0;
        Py_XDECREF(stream);
        if (PyErr_Occurred())
            return 1;
        state->known = 1;
    }
    return mark_at(mark, state->stream) < 0;
}

static PyObject *called_in_pieces(TimestampedCall *self, PyObject *args, PyObject *kwargs)
{
    int failed = mark_in_pieces(self, self->mark_before);
    PyObject *result = failed && end(self) < 0 ? NULL : PyObject_Call(self->original, args, kwargs);
    if (result != NULL && !failed && mark_in_pieces(self, self->mark_after) && end(self) < 0)
        Py_CLEAR(result);
    return result;
}

static PyObject *timestamped_call_call(TimestampedCall *self, PyObject *args, PyObject *kwargs)
{
    if (self->quick && !self->over && is_in_pieces((RingEvent *)self->mark_before))
        return called_in_pieces(self, args, kwargs);
    PyObject *start = NULL, *last = NULL, *stream = NULL;
    int failed = !self->over && stamps_of(self, &start, &last) < 0;
    failed = failed || (last != NULL && (stream = PyObject_CallNoArgs(self->stream)) == NULL);
    failed = failed || (start != NULL && stamp(start, stream) < 0);
    PyObject *result = failed && end(self) < 0 ? NULL : PyObject_Call(self->original, args, kwargs);
    if (result != NULL && !failed && last != NULL && stamp(last, stream) < 0 && end(self) < 0)
        Py_CLEAR(result);
    Py_XDECREF(stream);
    return result;
}

static int timestamped_call_init(TimestampedCall *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[8];
    if (!PyArg_ParseTuple(args, "OOOOOOOOpp", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5],
                          &given[6], &given[7], &self->in_graphs, &self->follows))
        return -1;
    HOLD(self, given);
    self->quick = PyObject_TypeCheck(self->mark_before, ring_event_type) &&
                  PyObject_TypeCheck(self->mark_after, ring_event_type);
    return 0;
}

static PyObject *timestamped_call_reduce(TimestampedCall *self, PyObject *none)
{
    return PyUnicode_FromString("timestamped_call"); /* copied as a function is: not at all */
}

static PyMethodDef timestamped_call_methods[] = {
    {"__reduce__", (PyCFunction)timestamped_call_reduce, METH_NOARGS, NULL},
    {NULL},
};

static PyType_Slot timestamped_call_slots[] = {
    {Py_tp_doc, "TimestampedCall(original, before, after, mark_before, mark_after, stream, capturing, failed, "
                "in_graphs, follows)"},
    HOLDER_SLOTS,
    {Py_tp_init, timestamped_call_init},
    {Py_tp_call, timestamped_call_call},
    {Py_tp_methods, timestamped_call_methods},
    {0, NULL},
};

PyType_Spec timestamped_call_spec = {"kvtrace.capture._native.TimestampedCall", sizeof(TimestampedCall), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, timestamped_call_slots};
