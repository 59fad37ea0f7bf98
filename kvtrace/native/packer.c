/* What `kvtrace/stream.py` does in Python where this could not be built. Everything runs under the GIL. */

#include "packer.h"

static PyObject *n_segment, *n_map, *n_offsets, *n_last, *n_next;

int packer_names(void)
{
    static const struct {
        PyObject **to;
        const char *text;
    } names[] = {{&n_segment, "segment"}, {&n_map, "map"}, {&n_offsets, "offsets"}, {&n_last, "last"}, {&n_next, "_emit_in_next"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (*names[i].to == NULL && (*names[i].to = PyUnicode_InternFromString(names[i].text)) == NULL)
            return -1;
    return 0;
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

static void let_go(Packer *self)
{
    if (self->mapped)
        PyBuffer_Release(&self->view);
    self->mapped = 0;
    Py_CLEAR(self->offsets);
    Py_CLEAR(self->segment);
}

/* A stream without a segment has one without a map: it counts as full. */
int packer_follow(Packer *self)
{
    PyObject *segment = PyObject_GetAttr(self->stream, n_segment);
    if (segment == NULL)
        return -1;
    if (segment == self->segment) {
        Py_DECREF(segment);
        return 0;
    }
    let_go(self);
    PyObject *map = PyObject_GetAttr(segment, n_map), *offsets = map ? PyObject_GetAttr(segment, n_offsets) : NULL;
    long long last = -1;
    int failed = offsets == NULL;
    if (!failed && map != Py_None)
        failed = read_int(segment, n_last, INT64_MIN, INT64_MAX, &last) < 0 || PyObject_GetBuffer(map, &self->view, PyBUF_WRITABLE) < 0;
    if (failed) {
        Py_XDECREF(map);
        Py_XDECREF(offsets);
        Py_DECREF(segment);
        return -1;
    }
    self->mapped = map != Py_None;
    Py_DECREF(map);
    if (self->mapped && last > self->view.len - self->bytes)
        last = self->view.len - self->bytes;
    self->last = last;
    self->offsets = offsets;
    self->segment = segment;
    return 0;
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
    PyObject *values = PyTuple_New(self->fields), *segment = self->segment;
    for (int i = 0; values != NULL && i < self->fields; i++) {
        PyObject *value = value_at(self->codes[i], record + self->places[i]);
        if (value == NULL || PyTuple_SetItem(values, i, value) < 0)
            Py_CLEAR(values);
    }
    if (values == NULL)
        return -1;
    Py_INCREF(segment); /* the call may let go of it */
    PyObject *done = PyObject_CallMethodObjArgs(self->stream, n_next, segment, values, NULL);
    Py_DECREF(segment);
    Py_DECREF(values);
    Py_XDECREF(done);
    return done == NULL ? -1 : packer_follow(self);
}

int packer_store(Packer *self, const char *record)
{
    if (self->offsets == NULL && packer_follow(self) < 0) /* it could not be followed meanwhile */
        return -1;
    PyObject *place = PyIter_Next(self->offsets);
    if (place == NULL)
        return -1;
    long long offset = PyLong_AsLongLong(place);
    Py_DECREF(place);
    if (offset == -1 && PyErr_Occurred())
        return -1;
    if (!self->mapped || offset < 0 || offset > self->last)
        return store_in_next(self, record);
    char *to = (char *)self->view.buf + offset;
    memcpy(to, record, self->bytes - 1);
    *(volatile char *)(to + self->bytes - 1) = 1; /* last: a record counts once this is written */
    if (self->wrote == Py_None)
        return 0;
    PyObject *counted = PyObject_CallNoArgs(self->wrote);
    Py_XDECREF(counted);
    return counted == NULL ? -1 : packer_follow(self);
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
    if (number == -1 && PyErr_Occurred())
        return -1;
    int32_t i = (int32_t)number;
    uint32_t I = (uint32_t)number;
    int fits = 1;
    switch (code) {
    case 'q':
        memcpy(to, &number, 8);
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

static PyObject *emit(Packer *self, PyObject *const *values, Py_ssize_t count)
{
    char record[MOST_BYTES];
    if (count != self->fields)
        return PyErr_Format(PyExc_TypeError, "a record has %d values, not %zd", self->fields, count);
    for (int i = 0; i < self->fields; i++)
        if (put(values[i], self->codes[i], record + self->places[i]) < 0)
            return NULL;
    if (packer_follow(self) < 0 || packer_store(self, record) < 0)
        return NULL;
    Py_RETURN_NONE;
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
    size_t bytes = (size_t)(field + 1 < self->fields ? self->places[field + 1] : self->bytes - 1) - (size_t)self->places[field];
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
    failed = failed || packer_follow(self) < 0;
    for (Py_ssize_t row = 0; row < rows && !failed; row++)
        failed = packer_store(self, records + row * self->bytes) < 0;
    if (records != few)
        PyMem_Free(records);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *follow(Packer *self, PyObject *none)
{
    return packer_follow(self) < 0 ? NULL : Py_NewRef(Py_None);
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
    PyObject *before[] = {self->stream, self->wrote};
    self->stream = Py_NewRef(stream);
    self->wrote = Py_NewRef(wrote);
    Py_XDECREF(before[0]);
    Py_XDECREF(before[1]);
    return 0;
}

static int traverse(Packer *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->stream);
    Py_VISIT(self->wrote);
    Py_VISIT(self->segment);
    Py_VISIT(self->offsets);
    return 0;
}

static int clear(Packer *self)
{
    let_go(self);
    Py_CLEAR(self->stream);
    Py_CLEAR(self->wrote);
    return 0;
}

static void dealloc(Packer *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"emit", (PyCFunction)(void (*)(void))emit, METH_FASTCALL, "kvtrace.stream.Emit"},
    {"columns", (PyCFunction)(void (*)(void))columns, METH_FASTCALL, "kvtrace.stream.EmitColumns"},
    {"follow", (PyCFunction)follow, METH_NOARGS, "Let go of the segment before the stream's."},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Packer(layout, stream, wrote)"},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec packer_spec = {
    "kvtrace._native.Packer", sizeof(Packer), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};
