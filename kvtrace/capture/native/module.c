/* What runs in each step inside the engine. Everything but prefault.c runs under the GIL. */

#include "packer.h"
#include "cuda_events.h"
#include "state.h"

/* Every file's part of the module: types, and the names that they read. */
extern PyType_Spec packer_spec, writer_spec, hashes_spec, guard_spec, owner_spec, steps_spec, calls_spec, around_spec;
extern PyType_Spec forwards_spec, updates_spec, ends_spec, launch_spec, event_ring_spec, ring_event_spec,
    timed_passes_spec, timestamped_call_spec;
int packer_names(void), blocks_names(void), guard_names(void), owners_names(void), steps_names(void), calls_names(void);
int passes_names(void), ends_names(void), prefault_init(void);
PyObject *elapsed(PyObject *module, PyObject *args), *drain_tiles(PyObject *module, PyObject *args);
PyObject *catch_up(PyObject *module, PyObject *none), *forget_put_off(PyObject *module, PyObject *none);

static PyMethodDef functions[] = {
    {"argument", FAST(argument),
     "argument(args, kwargs, position, name, default=None): one that callers may pass by position or by name."},
    {"watch_reads", (PyCFunction)watch_reads, METH_O,
     "watch_reads(watcher): called with an object and a name before an attribute is read here; None: nobody is."},
    {"set_virtual_clock", (PyCFunction)set_virtual_clock, METH_O,
     "set_virtual_clock(ns): what records are stamped with from now on, 1 ns apart; 0: CLOCK_MONOTONIC again."},
    {"fence", fence, METH_NOARGS,
     "fence(): other processes and devices see what is written before it first; what is read after it is not older."},
    {"write_line", (PyCFunction)write_line, METH_VARARGS,
     "write_line(descriptor, line): as os.write does, but without giving the GIL to others; how many bytes were "
     "written."},
    {"catch_up", catch_up, METH_NOARGS, "catch_up(): do what hooks of this thread put off (Hook.later)."},
    {"forget_put_off", forget_put_off, METH_NOARGS, "forget_put_off(): in a forked child, whose parent does it."},
    {"now_ns", (PyCFunction)read_clock, METH_NOARGS, "now_ns(): the time that the next record would be stamped with."},
    {"elapsed", (PyCFunction)elapsed, METH_VARARGS,
     "elapsed(event_elapsed, since, events, first, count, ring, out): ms from an event to others; how many, and the "
     "error."},
    {"drain_tiles", (PyCFunction)drain_tiles, METH_VARARGS,
     "drain_tiles(drain, bytes, until_ns): follows a ring of tiles and copies it to a file, without the GIL; why it is "
     "back, and a number."},
    {NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "What runs often, in C.", -1, functions};

PyMODINIT_FUNC PyInit__native(void)
{
    static const struct {
        const char *name;
        PyType_Spec *of;
        int (*names)(void);
        PyTypeObject **is;
    } types[] = {
        {"Packer", &packer_spec, packer_names, &packer_type},
        {"EngineState", &EngineState_spec, NULL, &engine_type},
        {"PoolState", &PoolState_spec, NULL, &pool_type},
        {"RequestState", &RequestState_spec, NULL, &request_type},
        {"Writer", &writer_spec, blocks_names},
        {"Guard", &guard_spec, guard_names},
        {"Hashes", &hashes_spec, NULL},
        {"Owner", &owner_spec, owners_names},
        {"Steps", &steps_spec, steps_names},
        {"Calls", &calls_spec, calls_names},
        {"Around", &around_spec, calls_names},
        {"Forwards", &forwards_spec, passes_names},
        {"Updates", &updates_spec, passes_names},
        {"Ends", &ends_spec, ends_names},
        {"Launch", &launch_spec, NULL},
        {"EventRing", &event_ring_spec, NULL, &event_ring_type},
        {"RingEvent", &ring_event_spec, NULL, &ring_event_type},
        {"TimestampedCall", &timestamped_call_spec, NULL},
        {"TimedPasses", &timed_passes_spec, NULL},
    };
    PyObject *made = prefault_init() < 0 ? PyErr_NoMemory() : PyModule_Create(&module);
    for (size_t i = 0; made != NULL && i < sizeof types / sizeof *types; i++) {
        PyObject *type = types[i].names && types[i].names() < 0 ? NULL : PyType_FromSpec(types[i].of);
        if (type == NULL || PyModule_AddObjectRef(made, types[i].name, type) < 0)
            Py_CLEAR(made);
        else if (types[i].is != NULL)
            *types[i].is = (PyTypeObject *)Py_NewRef(type);
        Py_XDECREF(type);
    }
    return made;
}
