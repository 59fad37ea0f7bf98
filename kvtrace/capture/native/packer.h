/* Records of one event, packed in C straight into the stream's mapped segment. */

#define Py_LIMITED_API 0x030B0000 /* one build for Python 3.11 and later */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MOST_FIELDS 32
#define MOST_BYTES  256

typedef struct Packer {
    PyObject_HEAD char *base; /* of the segment that records go to; NULL: there is none */
    long long next, last;     /* where the next record goes, and the last place there is for one */
    PyObject *wrote;          /* called after each record where records are counted, else None */
    int fields, bytes;        /* bytes of a record, its last, the commit byte, included */
    unsigned int followed;    /* segments so far: names that were interned before the latest may be another process's */
    char codes[MOST_FIELDS];
    short places[MOST_FIELDS];
    PyObject *stream; /* kvtrace.capture.stream.Stream */
    Py_buffer view;
    long long before, ready; /* bytes of the segments before this one; how many of this one's have pages */
    struct Packer *another;
} Packer;

/* An attribute within bounds; -1 with an exception set if it is not. `*out` is set otherwise. */
int read_int(PyObject *object, PyObject *name, long long least, long long most, long long *out);

/* Give an attribute a number. */
int write_int(PyObject *object, PyObject *name, long long number);

/* Append a record of `bytes` bytes, whose last is of no account. Python code may have run. */
int packer_store(Packer *self, const char *record);

/* Append a record of these numbers, in the order of its fields. Python code may have run. */
int packer_numbers(Packer *self, const long long *numbers);

/* From now on a packer's pages are made ready ahead of it; from now on they are not. */
void ahead_follow(Packer *packer);
void ahead_leave(Packer *packer);

/* Does a packer write records of these fields? An exception is set if it does not. */
int packer_writes(const Packer *self, const char *fields);

/* The clock that time.monotonic_ns reads. */
int64_t now_ns(void);

/* Replay steps a scheduler in virtual time: now_ns() returns this from then on; 0 gives the real clock back. */
PyObject *set_virtual_clock(PyObject *module, PyObject *ns);

/* Names of attributes that are read, and where to keep them. */
typedef struct {
    PyObject **to;
    const char *text;
} Name;

int intern_names(const Name *names, size_t count);
#define INTERN(names) intern_names(names, sizeof(names) / sizeof *(names))

/* An attribute, None if there is none. NULL: another exception is set. */
PyObject *attribute_or_none(PyObject *object, PyObject *name);

/* Whether an attribute is true; -1: an exception is set. */
int is_true(PyObject *object, PyObject *name);

/* A step's mark: (engine's pid, step). -1 with an exception set if it is something else. */
int read_mark(PyObject *mark, long long *pid, long long *step);

/* An argument of `given`, args and kwargs, by position or by name, borrowed. NULL: there is none, or an exception is
 * set. */
PyObject *argument_of(PyObject *const *given, Py_ssize_t position, PyObject *name);

/* What a dict has under the id of the first argument, borrowed. NULL: nothing, or an exception is set. */
PyObject *known_by_id(PyObject *known, PyObject *args);

/* If an exception is set that an `except Exception` would catch: take it away, call `tell` with it, and return 1. */
int taken_away(PyObject *tell);

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL

/* tp_dealloc of every type here: it lets go of what tp_clear does. */
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

/* Every file's part of the module: types, and the names that they read. Packers come first. */
extern PyTypeObject *packer_type;
extern PyType_Spec packer_spec, writer_spec, guard_spec, owner_spec, steps_spec, calls_spec, around_spec, forwards_spec,
    updates_spec;
extern PyType_Spec launch_spec, marks_spec, mark_spec, marked_spec, stamped_spec, ends_spec;
int packer_names(void), blocks_names(void), guard_names(void), owners_names(void), steps_names(void), calls_names(void);
int passes_names(void), ends_names(void), ahead_ready(void);
PyObject *argument(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *write_chain(PyObject *module, PyObject *args);
PyObject *elapsed(PyObject *module, PyObject *args);
