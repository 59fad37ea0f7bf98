/* The hash chain of an admitted request, a record a block. */

#include "packer.h"

#define LOW_BYTES 8

typedef struct {
    HOLDER;
    Packer *packer; /* of request hashes */
} Hashes;

/* The low 64 bits of a hash, which is in the order of its digits. */
static int low_hash(PyObject *hashes, Py_ssize_t at, uint64_t *low)
{
    char *bytes;
    Py_ssize_t length;
    PyObject *hash = PySequence_GetItem(hashes, at);
    int failed = hash == NULL || PyBytes_AsStringAndSize(hash, &bytes, &length) < 0;
    if (!failed && length < LOW_BYTES) {
        PyErr_Format(PyExc_ValueError, "a hash has %zd bytes", length);
        failed = 1;
    }
    *low = 0;
    for (int i = 0; i < LOW_BYTES && !failed; i++)
        *low = *low << 8 | (unsigned char)bytes[length - LOW_BYTES + i];
    Py_XDECREF(hash);
    return failed ? -1 : 0;
}

static PyObject *hashes_write(Hashes *self, PyObject *args)
{
    PyObject *hashes, *plain;
    Py_ssize_t first;
    RequestHashRecord record = {0};
    if (!PyArg_ParseTuple(args, "iIOnO", &record.step, &record.request, &hashes, &first, &plain))
        return NULL;
    Py_ssize_t end = PySequence_Size(hashes);
    for (Py_ssize_t at = first; at < end; at++) {
        uint64_t block_hash, token_hash = 0;
        if (low_hash(hashes, at, &block_hash) < 0 ||
            (plain != Py_None && low_hash(plain, at - first, &token_hash) < 0) || !SET(record.position, at))
            return NULL;
        record.block_hash = block_hash;
        record.token_hash = token_hash;
        if (packer_store(self->packer, &record) < 0)
            return NULL;
    }
    return none_unless(end < 0);
}

static int hashes_init(Hashes *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[1];
    if (!PyArg_ParseTuple(args, "O!", packer_type, &given[0]))
        return -1;
    HOLD(self, given);
    return packer_accept(self->packer, REQUEST_HASH_LAYOUT);
}

static PyMethodDef methods[] = {
    {"write", (PyCFunction)hashes_write, METH_VARARGS,
     "write(step, request, hashes, first, plain): a record for each hash from `first` on."},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Hashes(packer)"}, HOLDER_SLOTS, {Py_tp_init, hashes_init}, {Py_tp_methods, methods}, {0, NULL},
};

PyType_Spec hashes_spec = {
    "kvtrace.capture._native.Hashes", sizeof(Hashes), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};
