/* What the probes keep of engines, pools and requests and the rest of this module looks at, without asking Python for
 * it.
 *
 * Engine, Pool and LiveRequest of probes/engine.py are these with more to them.
 */

#include "state.h"
#include <stddef.h>
#include <structmember.h>

PyTypeObject *engine_type, *pool_type, *request_type;

#define STATE(type, first)                                                                               \
    static PyObject *type##_new(PyTypeObject *of, PyObject *args, PyObject *kwargs)                      \
    {                                                                                                    \
        type *made = (type *)PyType_GenericNew(of, args, kwargs);                                        \
        if (made != NULL)                                                                                \
            made->held = (Py_ssize_t)((offsetof(type, first) - sizeof(Held)) / sizeof(PyObject *));      \
        return (PyObject *)made;                                                                         \
    }                                                                                                    \
    static PyType_Slot type##_slots[] = {                                                                \
        {Py_tp_new, type##_new},     {Py_tp_dealloc, deallocate},     {Py_tp_traverse, holder_traverse}, \
        {Py_tp_clear, holder_clear}, {Py_tp_members, type##_members}, {0, NULL},                         \
    };                                                                                                   \
    PyType_Spec type##_spec = {                                                                          \
        "kvtrace.capture._native." #type,                                                                \
        sizeof(type),                                                                                    \
        0,                                                                                               \
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,                                   \
        type##_slots,                                                                                    \
    };

typedef struct {
    HOLDER;
} Held;

static PyMemberDef EngineState_members[] = {
    {"requests", T_OBJECT, offsetof(EngineState, requests), 0},
    {"lookup", T_OBJECT, offsetof(EngineState, lookup), 0},
    {"holder", T_OBJECT, offsetof(EngineState, holder), 0},
    {"acting_step", T_LONGLONG, offsetof(EngineState, acting_step), 0},
    {"owner", T_LONGLONG, offsetof(EngineState, owner), 0},
    {NULL},
};
STATE(EngineState, acting_step)

static PyMemberDef PoolState_members[] = {
    {"engine", T_OBJECT, offsetof(PoolState, engine), 0},     {"tier", T_OBJECT, offsetof(PoolState, tier), 0},
    {"index", T_LONGLONG, offsetof(PoolState, index), 0},     {"cached", T_LONGLONG, offsetof(PoolState, cached), 0},
    {"evicted", T_LONGLONG, offsetof(PoolState, evicted), 0}, {NULL},
};
STATE(PoolState, index)

static PyMemberDef RequestState_members[] = {
    {"number", T_LONGLONG, offsetof(RequestState, number), 0},
    {"decode_from", T_LONGLONG, offsetof(RequestState, decode_from), 0},
    {NULL},
};
STATE(RequestState, number)

static void *of_type(PyObject *object, PyTypeObject *type)
{
    if (object != NULL && PyObject_TypeCheck(object, type))
        return object;
    PyErr_Format(PyExc_TypeError, "%R is needed, not %R", type, object ? (PyObject *)Py_TYPE(object) : Py_None);
    return NULL;
}

EngineState *engine_state(PyObject *object)
{
    return of_type(object, engine_type);
}

PoolState *pool_state(PyObject *object)
{
    return of_type(object, pool_type);
}

RequestState *request_state(PyObject *object)
{
    return of_type(object, request_type);
}
