/* The hash chain of an admitted request, a record a block: what probes/block_hashes.py does itself without this. */

#include "packer.h"

#define LAYOUT    "iIiQQ"
#define LOW_BYTES 8

#pragma pack(push, 1)
typedef struct {
    int32_t step;
    uint32_t request;
    int32_t position;
    uint64_t block_hash, token_hash;
    uint8_t whole;
} Record;
#pragma pack(pop)

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

PyObject *write_chain(PyObject *module, PyObject *args)
{
    PyObject *packer, *hashes, *plain;
    Py_ssize_t first;
    Record record = {0};
    if (!PyArg_ParseTuple(args, "O!iIOnO", packer_type, &packer, &record.step, &record.request, &hashes, &first,
                          &plain) ||
        !packer_writes((Packer *)packer, LAYOUT))
        return NULL;
    Py_ssize_t end = PySequence_Size(hashes);
    for (Py_ssize_t at = first; at < end; at++) {
        record.position = (int32_t)at;
        if (low_hash(hashes, at, &record.block_hash) < 0 ||
            (plain != Py_None && low_hash(plain, at - first, &record.token_hash) < 0) ||
            packer_store((Packer *)packer, (const char *)&record) < 0)
            return NULL;
    }
    return end < 0 ? NULL : Py_NewRef(Py_None);
}
