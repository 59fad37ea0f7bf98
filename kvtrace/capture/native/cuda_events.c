/* A ring of CUDA events that mark places of passes. */

#include "cuda_events.h"

PyTypeObject *event_ring_type, *ring_event_type;

static int event_ring_init(EventRing *self, PyObject *args, PyObject *kwargs)
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

void event_ring_open(EventRing *self)
{
    State *state = self->state;
    state->next = state->stop;
    state->limit = state->taken + self->count;
    state->known = 0;
}

void event_ring_close(EventRing *self, int64_t step)
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

static PyObject *event_ring_begin(EventRing *self, PyObject *none)
{
    event_ring_open(self);
    Py_RETURN_NONE;
}

static PyObject *event_ring_leave(EventRing *self, PyObject *none)
{
    self->state->limit = 0;
    Py_RETURN_NONE;
}

static PyObject *event_ring_end(EventRing *self, PyObject *given)
{
    long long step = PyLong_AsLongLong(given);
    if (step == -1 && PyErr_Occurred())
        return NULL;
    int marked = self->state->next > self->state->stop;
    event_ring_close(self, step);
    return PyBool_FromLong(marked);
}

static PyObject *event_ring_mark(EventRing *self, PyObject *place)
{
    return PyObject_CallFunction((PyObject *)ring_event_type, "OO", self, place);
}

static PyMethodDef event_ring_methods[] = {
    {"begin", (PyCFunction)event_ring_begin, METH_NOARGS, NULL},
    {"leave", (PyCFunction)event_ring_leave, METH_NOARGS, NULL},
    {"end", (PyCFunction)event_ring_end, METH_O, NULL},
    {"mark", (PyCFunction)event_ring_mark, METH_O, NULL},
    {NULL},
};

static PyType_Slot event_ring_slots[] = {
    {Py_tp_doc, "EventRing(event_record, events, places, steps, stops, state, count, keep)"},
    HOLDER_SLOTS,
    {Py_tp_init, event_ring_init},
    {Py_tp_methods, event_ring_methods},
    {0, NULL},
};

PyType_Spec event_ring_spec = {"kvtrace.capture._native.EventRing", sizeof(EventRing), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, event_ring_slots};

int mark_at(RingEvent *mark, uint64_t stream)
{
    EventRing *ring = event_ring_of(mark);
    State *state = ring->state;
    if (state->limit == 0)
        return 0;
    uint64_t number = state->next++;
    if (number >= state->limit)
        return 0;
    ring->places[number % ring->count] = mark->place;
    /* The GIL is kept, as PyTorch keeps it around what it launches: who gives it away may have to wait for it. */
    int error = ring->record(ring->events[number % ring->count], (void *)(uintptr_t)stream);
    if (error)
        PyErr_Format(PyExc_RuntimeError, "CUDA error %d at an event", error);
    return error ? -1 : 0;
}

static int ring_event_init(RingEvent *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[1];
    if (!PyArg_ParseTuple(args, "O!I", event_ring_type, &given[0], &self->place))
        return -1;
    HOLD(self, given);
    return 0;
}

static PyObject *ring_event_call(RingEvent *self, PyObject *args, PyObject *kwargs)
{
    unsigned long long stream;
    if (!PyArg_ParseTuple(args, "K", &stream))
        return NULL;
    return self->ring != NULL && mark_at(self, stream) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyType_Slot ring_event_slots[] = {
    {Py_tp_doc, "RingEvent(ring, place)"}, HOLDER_SLOTS, {Py_tp_init, ring_event_init},
    {Py_tp_call, ring_event_call},         {0, NULL},
};

PyType_Spec ring_event_spec = {"kvtrace.capture._native.RingEvent", sizeof(RingEvent), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, ring_event_slots};

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
