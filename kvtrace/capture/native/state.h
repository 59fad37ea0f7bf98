#ifndef KVTRACE_STATE_H
#define KVTRACE_STATE_H

#include "util.h"

/* Engines, pools and requests as compiled code sees them. Objects may be NULL, which is None. */

typedef struct {
    HOLDER;
    PyObject *requests; /* by id */
    PyObject *lookup;   /* one that nothing has come of yet */
    PyObject *holder;   /* who takes or releases references just now, if that is not a request */
    long long acting_step, owner;
} EngineState;

typedef struct {
    HOLDER;
    PyObject *engine, *tier;
    long long index, cached, evicted;
} PoolState;

typedef struct {
    HOLDER;
    long long number, decode_from;
} RequestState;

/* The same object; NULL with an exception set if it is something else. */
EngineState *engine_state(PyObject *object);
PoolState *pool_state(PyObject *object);
RequestState *request_state(PyObject *object);

extern PyTypeObject *engine_type, *pool_type, *request_type;
extern PyType_Spec EngineState_spec, PoolState_spec, RequestState_spec;

#endif
