/* What runs often inside the engine, in C. Python's ways beside it do the same, slower.
 *
 * Everything but prefault.c runs under the GIL.
 */

#include "packer.h"
#include "cuda_events.h"
#include "state.h"

static PyMethodDef functions[] = {
    {"argument", FAST(argument),
     "argument(args, kwargs, position, name, default=None): one that callers may pass by position or by name."},
    {"write_chain", (PyCFunction)write_chain, METH_VARARGS,
     "write_chain(packer, step, request, hashes, first, plain): a record for each hash from `first` on."},
    {"set_virtual_clock", (PyCFunction)set_virtual_clock, METH_O,
     "set_virtual_clock(ns): what records are stamped with from now on; 0: CLOCK_MONOTONIC again."},
    {"elapsed", (PyCFunction)elapsed, METH_VARARGS,
     "elapsed(event_elapsed, since, events, first, count, ring, out): ms from an event to others; how many, and the "
     "error."},
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
        {"Owner", &owner_spec, owners_names},
        {"Steps", &steps_spec, steps_names},
        {"Calls", &calls_spec, calls_names},
        {"Around", &around_spec, calls_names},
        {"Forwards", &forwards_spec, passes_names},
        {"Updates", &updates_spec, passes_names},
        {"Ends", &ends_spec, ends_names},
        {"Launch", &launch_spec, NULL},
        {"Marks", &marks_spec, NULL, &marks_type},
        {"Mark", &mark_spec, NULL, &mark_type},
        {"Stamped", &stamped_spec, NULL},
        {"Marked", &marked_spec, NULL},
    };
    PyObject *made = ahead_ready() < 0 ? PyErr_NoMemory() : PyModule_Create(&module);
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
