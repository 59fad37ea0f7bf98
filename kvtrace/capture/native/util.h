/* Helpers that every hook here uses: attributes, arguments, references, exceptions, the clock. */

#ifndef KVTRACE_UTIL_H
#define KVTRACE_UTIL_H

#define Py_LIMITED_API 0x030B0000 /* one build for Python 3.11 and later */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* The clock that time.monotonic_ns reads. */
int64_t now_ns(void);

/* Names of attributes that are read, and where to keep them. */
typedef struct {
    PyObject **to;
    const char *text;
} Name;

int intern_names(const Name *names, size_t count);
#define INTERN(names) intern_names(names, sizeof(names) / sizeof *(names))

/* An attribute. Every read of vLLM's attributes goes through here, so that tests can watch and refuse it. */
PyObject *read_attribute(PyObject *object, PyObject *name);

/* Where instances of a type keep an attribute (`__slots__`), for read_slot; NULL: they do not, or not so. */
PyObject *slot_of(PyTypeObject *type, PyObject *name);

/* The same attribute, without a search for it. */
PyObject *read_slot(PyObject *object, PyObject *slot, PyObject *name);

/* An attribute, None if there is none. NULL: another exception is set. */
PyObject *attribute_or_none(PyObject *object, PyObject *name);

/* Whether a value, given away, is true; -1: an exception is set. */
int take_truth(PyObject *value);

/* Whether an attribute is true, likewise. */
int is_true(PyObject *object, PyObject *name);

/* A number, given away, within bounds; -1 with an exception set if it is none. `*out` is set otherwise. */
int take_int(PyObject *value, PyObject *name, long long least, long long most, long long *out);

/* An attribute within bounds, likewise. */
int read_int(PyObject *object, PyObject *name, long long least, long long most, long long *out);

/* An attribute's length; -1: an exception is set. */
long long size_of(PyObject *object, PyObject *name);

/* Give an attribute a number. */
int write_int(PyObject *object, PyObject *name, long long number);

/* Set a record's field to a number: 0 with an OverflowError set if it does not fit. */
#define SET(field, number) fits((field) = (number), (number), #field)
int overflows(long long number, const char *field);
static inline int fits(long long stored, long long number, const char *field)
{
    return stored == number ? 1 : overflows(number, field);
}

/* A step's mark: (engine's pid, step). -1 with an exception set if it is something else. */
int read_mark(PyObject *mark, long long *pid, long long *step);

/* The mark on a scheduler's output. 0: there is none; -1: an exception is set. */
int mark_of(PyObject *output, PyObject *attribute, long long *pid, long long *step);

/* Whether a hook was given what `Hook.before` is, or what `Hook.after` is; an exception is set if not. */
int is_before(PyObject *const *given, Py_ssize_t count);
int is_after(PyObject *const *given, Py_ssize_t count);

/* An argument of `given`, args and kwargs, by position or by name, borrowed. NULL: there is none, or an exception is
 * set. */
PyObject *argument_of(PyObject *const *given, Py_ssize_t position, PyObject *name);

/* The same, of an argument that must be there: NULL with an exception set if it is not. */
PyObject *needed_argument(PyObject *const *given, Py_ssize_t position, PyObject *name);

/* What a dict has under the id of the first argument, borrowed. NULL: nothing, or an exception is set. */
PyObject *known_by_id(PyObject *known, PyObject *args);

/* Call a function for its effect; -1: an exception is set. A function that is None is not called. */
int call_for_effect(PyObject *function, PyObject *one, PyObject *other);

/* If an exception is set that an `except Exception` would catch: take it away, call `tell` with it, and return 1. */
int taken_away(PyObject *tell);

/* What a hook returns: None, or NULL where it failed. */
static inline PyObject *none_unless(int failed)
{
    return failed ? NULL : Py_NewRef(Py_None);
}

static inline int is_none(PyObject *object)
{
    return object == NULL || object == Py_None;
}

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL

/* tp_dealloc of every type here: it drops what tp_clear does. */
void deallocate(PyObject *self);

/* What every type but Packer begins with: as many references as `held` says, one behind the other. NULL may be among
 * them. */
#define HOLDER PyObject_HEAD Py_ssize_t held

/* Hold these from now on: new references to them. */
void hold(PyObject *self, PyObject *const *given, size_t count);
#define HOLD(self, given) hold((PyObject *)(self), given, sizeof(given) / sizeof *(given))

int holder_traverse(PyObject *self, visitproc visit, void *arg);
int holder_clear(PyObject *self);
#define HOLDER_SLOTS                                                                                \
    {Py_tp_new, PyType_GenericNew}, {Py_tp_dealloc, deallocate}, {Py_tp_traverse, holder_traverse}, \
    {                                                                                               \
        Py_tp_clear, holder_clear                                                                   \
    }

/* Put a reference that is given away in the place of another. */
static inline void replace(PyObject **place, PyObject *by)
{
    PyObject *before = *place;
    *place = by;
    Py_XDECREF(before);
}

/* Functions of the module. */
PyObject *argument(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *set_virtual_clock(PyObject *module, PyObject *ns);
PyObject *read_clock(PyObject *module, PyObject *unused);
PyObject *watch_reads(PyObject *module, PyObject *watcher);
PyObject *fence(PyObject *module, PyObject *none);
PyObject *write_line(PyObject *module, PyObject *args);

#endif
