/* Records of one event, packed in C straight into the stream's mapped segment. */

#define Py_LIMITED_API 0x030B0000 /* one build for Python 3.11 and later */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MOST_FIELDS 32
#define MOST_BYTES 256

typedef struct {
    PyObject_HEAD
    PyObject *stream;  /* kvtrace.stream.Stream: `segment` is where records go */
    PyObject *wrote;   /* called after each record where records are counted, else None */
    PyObject *segment; /* the one that `view`, `offsets` and `last` are of */
    PyObject *offsets;
    long long last;
    Py_buffer view;
    int mapped;
    int fields, bytes; /* bytes of a record, its last, the commit byte, included */
    char codes[MOST_FIELDS];
    short places[MOST_FIELDS];
} Packer;

extern PyType_Spec packer_spec;

/* An attribute within bounds; -1 with an exception set if it is not. `*out` is set otherwise. */
int read_int(PyObject *object, PyObject *name, long long least, long long most, long long *out);

/* Be ready for `packer_store` until Python code may have run. */
int packer_follow(Packer *self);

/* Append a record of `bytes` bytes, whose last is of no account. */
int packer_store(Packer *self, const char *record);

/* Intern the names of attributes that are read. */
int packer_names(void);
