/* Marks of passes: the driver's events, in a ring. */

#include "cuda_events.h"

PyTypeObject *marks_type, *mark_type;

static int marks_init(Marks *self, PyObject *args, PyObject *kwargs)
{
    unsigned long long record, events, places, steps, stops, state;
    PyObject *given[1];
    if (!PyArg_ParseTuple(args, "KKKKKKIO", &record, &events, &places, &steps, &stops, &state, &self->count, &given[0]))
        return -1;
    if (record == 0 || self->count == 0) {
        PyErr_SetString(PyExc_ValueError, "nothing to record");
        return -1;
    }
    HOLD(self, given);
    self->record = (int (*)(void *, void *))(uintptr_t)record;
    self->events = (void **)(uintptr_t)events;
    self->places = (uint32_t *)(uintptr_t)places;
    self->steps = (int64_t *)(uintptr_t)steps;
    self->stops = (uint64_t *)(uintptr_t)stops;
    self->state = (State *)(uintptr_t)state;
    return 0;
}

void marks_open(Marks *self)
{
    State *state = self->state;
    state->next = state->stop;
    state->limit = state->taken + self->count;
    state->known = 0;
}

void marks_close(Marks *self, int64_t step)
{
    State *state = self->state;
    uint64_t limit = state->limit;
    state->limit = 0;
    if (state->next == state->stop)
        return;
    if (state->next > limit) {
        state->lost++;
        return;
    }
    self->steps[state->ended % self->count] = step;
    self->stops[state->ended % self->count] = state->stop = state->next;
    state->ended++;
}

static PyObject *marks_begin(Marks *self, PyObject *none)
{
    marks_open(self);
    Py_RETURN_NONE;
}

static PyObject *marks_leave(Marks *self, PyObject *none)
{
    self->state->limit = 0;
    Py_RETURN_NONE;
}

static PyObject *marks_end(Marks *self, PyObject *given)
{
    long long step = PyLong_AsLongLong(given);
    if (step == -1 && PyErr_Occurred())
        return NULL;
    int marked = self->state->next > self->state->stop;
    marks_close(self, step);
    return PyBool_FromLong(marked);
}

static PyObject *marks_mark(Marks *self, PyObject *place)
{
    return PyObject_CallFunction((PyObject *)mark_type, "OO", self, place);
}

static PyMethodDef marks_methods[] = {
    {"begin", (PyCFunction)marks_begin, METH_NOARGS, NULL},
    {"leave", (PyCFunction)marks_leave, METH_NOARGS, NULL},
    {"end", (PyCFunction)marks_end, METH_O, NULL},
    {"mark", (PyCFunction)marks_mark, METH_O, NULL},
    {NULL},
};

static PyType_Slot marks_slots[] = {
    {Py_tp_doc, "Marks(event_record, events, places, steps, stops, state, count, keep)"},
    HOLDER_SLOTS,
    {Py_tp_init, marks_init},
    {Py_tp_methods, marks_methods},
    {0, NULL},
};

PyType_Spec marks_spec = {"kvtrace.capture._native.Marks", sizeof(Marks), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                          marks_slots};

int mark_at(Mark *mark, uint64_t stream)
{
    Marks *marks = marks_of(mark);
    State *state = marks->state;
    if (state->limit == 0)
        return 0;
    uint64_t number = state->next++;
    if (number >= state->limit)
        return 0;
    marks->places[number % marks->count] = mark->place;
    /* The GIL is kept, as PyTorch keeps it around what it launches: who gives it away may have to wait for it. */
    int error = marks->record(marks->events[number % marks->count], (void *)(uintptr_t)stream);
    if (error)
        PyErr_Format(PyExc_RuntimeError, "CUDA error %d at an event", error);
    return error ? -1 : 0;
}

static int mark_init(Mark *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[1];
    if (!PyArg_ParseTuple(args, "O!I", marks_type, &given[0], &self->place))
        return -1;
    HOLD(self, given);
    return 0;
}

static PyObject *mark_call(Mark *self, PyObject *args, PyObject *kwargs)
{
    unsigned long long stream;
    if (!PyArg_ParseTuple(args, "K", &stream))
        return NULL;
    return self->marks != NULL && mark_at(self, stream) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyType_Slot mark_slots[] = {
    {Py_tp_doc, "Mark(marks, place)"}, HOLDER_SLOTS, {Py_tp_init, mark_init}, {Py_tp_call, mark_call}, {0, NULL},
};

PyType_Spec mark_spec = {"kvtrace.capture._native.Mark", sizeof(Mark), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                         mark_slots};

PyObject *elapsed(PyObject *module, PyObject *args)
{
    unsigned long long call, since, events, first, out;
    unsigned count, ring, done = 0;
    int error = 0;
    if (!PyArg_ParseTuple(args, "KKKKIIK", &call, &since, &events, &first, &count, &ring, &out))
        return NULL;
    if (call == 0 || ring == 0)
        return PyErr_Format(PyExc_RuntimeError, "nothing to ask");
    int (*ask)(float *milliseconds, void *since, void *event) = (int (*)(float *, void *, void *))(uintptr_t)call;
    Py_BEGIN_ALLOW_THREADS while (done < count && !error)
    {
        void *event = ((void **)(uintptr_t)events)[(first + done) % ring];
        error = ask((float *)(uintptr_t)out + done, (void *)(uintptr_t)since, event);
        done += !error;
    }
    Py_END_ALLOW_THREADS return Py_BuildValue("Ii", done, error);
}
