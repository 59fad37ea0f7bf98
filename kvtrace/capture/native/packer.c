/* What `kvtrace/capture/stream.py` does in Python where this could not be built. Everything runs under the GIL. */

#include "packer.h"
#include <time.h>

PyTypeObject *packer_type;

static PyObject *n_segment, *n_next;

int intern_names(const Name *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (*names[i].to == NULL && (*names[i].to = PyUnicode_InternFromString(names[i].text)) == NULL)
            return -1;
    return 0;
}

int packer_names(void)
{
    const Name names[] = {{&n_segment, "segment"}, {&n_next, "_emit_in_next"}};
    return INTERN(names);
}

void deallocate(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    ((inquiry)PyType_GetSlot(type, Py_tp_clear))(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

typedef struct {
    HOLDER;
    PyObject *references[];
} Holder;

void hold(PyObject *self, PyObject *const *given, size_t count)
{
    Holder *holder = (Holder *)self;
    holder->held = (Py_ssize_t)count;
    for (size_t i = 0; i < count; i++)
        replace(&holder->references[i], Py_XNewRef(given[i]));
}

int holder_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t i = 0; i < ((Holder *)self)->held; i++)
        Py_VISIT(((Holder *)self)->references[i]);
    return 0;
}

int holder_clear(PyObject *self)
{
    for (Py_ssize_t i = 0; i < ((Holder *)self)->held; i++)
        Py_CLEAR(((Holder *)self)->references[i]);
    return 0;
}

static int64_t virtual_ns; /* 0: the clock is CLOCK_MONOTONIC */

PyObject *set_virtual_clock(PyObject *module, PyObject *ns)
{
    long long value = PyLong_AsLongLong(ns);
    (void)module;
    if (value == -1 && PyErr_Occurred())
        return NULL;
    virtual_ns = value;
    Py_RETURN_NONE;
}

int64_t now_ns(void)
{
    struct timespec t;
    if (virtual_ns)
        return virtual_ns;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int read_int(PyObject *object, PyObject *name, long long least, long long most, long long *out)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return -1;
    long long number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    if (number == -1 && PyErr_Occurred())
        return -1;
    if (number < least || number > most) {
        PyErr_Format(PyExc_OverflowError, "%S is %lld, outside of its field", name, number);
        return -1;
    }
    *out = number;
    return 0;
}

int write_int(PyObject *object, PyObject *name, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    int failed = value == NULL || PyObject_SetAttr(object, name, value) < 0;
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

static void let_go(Packer *self)
{
    if (self->base != NULL) {
        ahead_leave(self);
        PyBuffer_Release(&self->view);
    }
    self->base = NULL;
}

/* Go on in another segment; where the records end of the one before. */
static PyObject *follow(Packer *self, PyObject *args)
{
    PyObject *map;
    long long first, end = self->next;
    if (!PyArg_ParseTuple(args, "OL", &map, &first))
        return NULL;
    let_go(self);
    self->followed += 1;
    self->before += end;
    self->next = first;
    if (map != Py_None) {
        if (PyObject_GetBuffer(map, &self->view, PyBUF_WRITABLE) < 0)
            return NULL;
        self->base = self->view.buf;
        self->last = self->view.len - self->bytes;
        ahead_follow(self);
    }
    return PyLong_FromLongLong(end);
}

static PyObject *value_at(char code, const char *from)
{
    int64_t q;
    uint64_t Q;
    int32_t i;
    uint32_t I;
    switch (code) {
    case 'q':
        memcpy(&q, from, 8);
        return PyLong_FromLongLong(q);
    case 'Q':
        memcpy(&Q, from, 8);
        return PyLong_FromUnsignedLongLong(Q);
    case 'i':
        memcpy(&i, from, 4);
        return PyLong_FromLong(i);
    case 'I':
        memcpy(&I, from, 4);
        return PyLong_FromUnsignedLong(I);
    default:
        return PyLong_FromLong(*(const unsigned char *)from);
    }
}

/* Have Python begin a new segment with a record. */
static int store_in_next(Packer *self, const char *record)
{
    PyObject *values = PyTuple_New(self->fields), *segment = PyObject_GetAttr(self->stream, n_segment);
    for (int i = 0; values != NULL && i < self->fields; i++) {
        PyObject *value = value_at(self->codes[i], record + self->places[i]);
        if (value == NULL || PyTuple_SetItem(values, i, value) < 0)
            Py_CLEAR(values);
    }
    PyObject *done = values && segment ? PyObject_CallMethodObjArgs(self->stream, n_next, segment, values, NULL) : NULL;
    Py_XDECREF(segment);
    Py_XDECREF(values);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

int packer_store(Packer *self, const char *record)
{
    if (self->base == NULL || self->next > self->last)
        return store_in_next(self, record);
    char *to = self->base + self->next;
    self->next += self->bytes;
    memcpy(to, record, self->bytes - 1);
    *(volatile char *)(to + self->bytes - 1) = 1; /* last: a record counts once this is written */
    if (self->wrote == Py_None)
        return 0;
    PyObject *counted = PyObject_CallNoArgs(self->wrote);
    Py_XDECREF(counted);
    return counted == NULL ? -1 : 0;
}

static int put_number(long long number, char code, char *to)
{
    int32_t i = (int32_t)number;
    uint32_t I = (uint32_t)number;
    int fits = 1;
    switch (code) {
    case 'q':
    case 'Q':
        memcpy(to, &number, 8);
        fits = code == 'q' || number >= 0;
        break;
    case 'i':
        memcpy(to, &i, 4);
        fits = i == number;
        break;
    case 'I':
        memcpy(to, &I, 4);
        fits = I == number;
        break;
    default:
        *to = (char)number;
        fits = number >= 0 && number <= UINT8_MAX;
    }
    if (!fits)
        PyErr_Format(PyExc_OverflowError, "%lld is outside of its field (%c)", number, code);
    return fits ? 0 : -1;
}

static int put(PyObject *value, char code, char *to)
{
    if (code == '?') {
        int truth = PyObject_IsTrue(value);
        *to = truth > 0;
        return truth < 0 ? -1 : 0;
    }
    if (code == 'Q') {
        PyObject *index = PyNumber_Index(value);
        uint64_t number = index ? PyLong_AsUnsignedLongLong(index) : 0;
        Py_XDECREF(index);
        memcpy(to, &number, 8);
        return PyErr_Occurred() ? -1 : 0;
    }
    long long number = PyLong_AsLongLong(value);
    return number == -1 && PyErr_Occurred() ? -1 : put_number(number, code, to);
}

int packer_numbers(Packer *self, const long long *numbers)
{
    char record[MOST_BYTES];
    for (int i = 0; i < self->fields; i++)
        if (put_number(numbers[i], self->codes[i], record + self->places[i]) < 0)
            return -1;
    return packer_store(self, record);
}

int packer_writes(const Packer *self, const char *fields)
{
    if (self->fields == (int)strlen(fields) && strncmp(self->codes, fields, self->fields) == 0)
        return 1;
    PyErr_Format(PyExc_ValueError, "the packer's records are not of %s", fields);
    return 0;
}

static PyObject *emit(Packer *self, PyObject *const *values, Py_ssize_t count)
{
    char record[MOST_BYTES];
    if (count != self->fields)
        return PyErr_Format(PyExc_TypeError, "a record has %d values, not %zd", self->fields, count);
    for (int i = 0; i < self->fields; i++)
        if (put(values[i], self->codes[i], record + self->places[i]) < 0)
            return NULL;
    return packer_store(self, record) < 0 ? NULL : Py_NewRef(Py_None);
}

/* A column of `rows` records from a list, or from one value for all of them. */
static int put_column(Packer *self, int field, PyObject *values, Py_ssize_t rows, char *records)
{
    char *to = records + self->places[field], code = self->codes[field];
    if (PyList_Check(values)) {
        for (Py_ssize_t row = 0; row < rows; row++, to += self->bytes) {
            PyObject *value = PyList_GetItem(values, row); /* a shorter list is an IndexError */
            if (value == NULL || put(value, code, to) < 0)
                return -1;
        }
        return 0;
    }
    if (put(values, code, to) < 0)
        return -1;
    size_t bytes = (size_t)(field + 1 < self->fields ? self->places[field + 1] : self->bytes - 1) -
                   (size_t)self->places[field];
    for (Py_ssize_t row = 1; row < rows; row++)
        memcpy(to + row * self->bytes, to, bytes);
    return 0;
}

static PyObject *columns(Packer *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != self->fields + 1)
        return PyErr_Format(PyExc_TypeError, "rows and %d columns are needed, not %zd arguments", self->fields, count);
    Py_ssize_t rows = PyLong_AsSsize_t(args[0]);
    if (rows <= 0)
        return rows == -1 && PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    char few[16 * MOST_BYTES], *records = few;
    if (rows > (Py_ssize_t)sizeof few / self->bytes && (records = PyMem_Calloc(rows, self->bytes)) == NULL)
        return PyErr_NoMemory();
    int failed = 0;
    for (int field = 0; field < self->fields && !failed; field++)
        failed = put_column(self, field, args[1 + field], rows, records) < 0;
    for (Py_ssize_t row = 0; row < rows && !failed; row++)
        failed = packer_store(self, records + row * self->bytes) < 0;
    if (records != few)
        PyMem_Free(records);
    return failed ? NULL : Py_NewRef(Py_None);
}

static int init(Packer *self, PyObject *args, PyObject *kwargs)
{
    const char *layout;
    PyObject *stream, *wrote;
    if (!PyArg_ParseTuple(args, "sOO", &layout, &stream, &wrote))
        return -1;
    size_t codes = strlen(layout);
    int bytes = 0;
    int known = codes >= 3 && codes - 2 <= MOST_FIELDS && layout[0] == '<' && layout[codes - 1] == 'B';
    self->fields = known ? (int)codes - 2 : 0; /* the rest: the order of bytes, the commit byte */
    for (int i = 0; i < self->fields && known; i++) {
        char code = layout[i + 1];
        int width = strchr("qQ", code) ? 8 : strchr("iI", code) ? 4 : strchr("B?", code) ? 1 : 0;
        self->codes[i] = code;
        self->places[i] = (short)bytes;
        bytes += width;
        known = width > 0;
    }
    self->bytes = bytes + 1;
    if (!known || self->bytes > MOST_BYTES) {
        PyErr_Format(PyExc_ValueError, "records of %s cannot be packed", layout);
        return -1;
    }
    replace(&self->stream, Py_NewRef(stream));
    replace(&self->wrote, Py_NewRef(wrote));
    return 0;
}

static int traverse(Packer *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->stream);
    Py_VISIT(self->wrote);
    return 0;
}

static int clear(Packer *self)
{
    let_go(self);
    Py_CLEAR(self->stream);
    Py_CLEAR(self->wrote);
    return 0;
}

static PyMethodDef methods[] = {
    {"emit", FAST(emit), "kvtrace.capture.stream.Emit"},
    {"columns", FAST(columns), "kvtrace.capture.stream.EmitColumns"},
    {"follow", (PyCFunction)follow, METH_VARARGS,
     "follow(map, first): go on in that segment; the end of the one before."},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Packer(layout, stream, wrote)"},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, init},
    {Py_tp_dealloc, deallocate},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec packer_spec = {
    "kvtrace.capture._native.Packer", sizeof(Packer), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};
