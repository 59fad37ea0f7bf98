/* Records of one event, packed straight into the stream's mapped segment. Everything runs under the GIL. */

#include "packer.h"
#include <string.h>

PyTypeObject *packer_type;

static PyObject *n_segment, *n_next, *n_refuse;

int packer_names(void)
{
    const Name names[] = {{&n_segment, "segment"}, {&n_next, "emit_in_next"}, {&n_refuse, "refuse"}};
    return INTERN(names);
}

static void release(Packer *self)
{
    if (self->base != NULL) {
        prefault_stop(self);
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
    release(self);
    self->followed += 1;
    self->before += end;
    self->next = first;
    if (map != Py_None) {
        if (PyObject_GetBuffer(map, &self->view, PyBUF_WRITABLE) < 0)
            return NULL;
        self->base = self->view.buf;
        self->last = self->view.len - self->bytes;
        prefault_start(self);
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

int packer_store(Packer *self, const void *record)
{
    if (self->refused != NULL) {
        PyObject *counted = PyObject_CallMethodObjArgs(self->stream, n_refuse, NULL);
        Py_XDECREF(counted);
        return counted == NULL ? -1 : 0;
    }
    if (self->base == NULL || self->next > self->last)
        return store_in_next(self, record);
    char *to = self->base + self->next;
    self->next += self->bytes;
    memcpy(to, record, self->bytes - 1);
    /* Last: a record counts once this is written. Other processes read, on processors that reorder stores, too. */
    __atomic_store_n(to + self->bytes - 1, 1, __ATOMIC_RELEASE);
    if (self->wrote == Py_None)
        return 0;
    PyObject *counted = PyObject_CallNoArgs(self->wrote);
    Py_XDECREF(counted);
    return counted == NULL ? -1 : 0;
}

int packer_accept(Packer *self, const char *layout)
{
    PyObject *ours = PyUnicode_FromString(layout);
    int same = ours ? PyUnicode_Compare(ours, self->layout) == 0 : 0;
    if (ours == NULL || (PyErr_Occurred() != NULL))
        return -1;
    if (same) {
        Py_DECREF(ours);
        return 0;
    }
    replace(&self->refused, ours);
    PyObject *said = PyObject_CallMethodObjArgs(self->stream, n_refuse, ours, NULL);
    Py_XDECREF(said);
    return said == NULL ? -1 : 0;
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

/* The field that a keyword names, looked for from where it would be if all came in order; -1: an exception is set. */
static int field_of(const Packer *self, PyObject *name, int expected)
{
    for (int i = 0, at = expected; i < self->fields; i++, at = at + 1 < self->fields ? at + 1 : 0)
        if (self->names[at] == name)
            return at;
    for (int at = 0; at < self->fields; at++)
        if (PyUnicode_Compare(self->names[at], name) == 0)
            return at;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "there is no field %R", name);
    return -1;
}

/* Values by field from arguments in declared order, then from those given by name. -1: an exception is set. */
static int by_field(const Packer *self, PyObject *const *values, Py_ssize_t count, PyObject *keywords, PyObject **found)
{
    Py_ssize_t named = keywords ? PyTuple_Size(keywords) : 0;
    if (count + named != self->fields) {
        PyErr_Format(PyExc_TypeError, "a record has %d values, not %zd", self->fields, count + named);
        return -1;
    }
    memset(found, 0, sizeof *found * (size_t)self->fields);
    for (Py_ssize_t i = 0; i < count + named; i++) {
        int at = i < count ? (int)i : field_of(self, PyTuple_GetItem(keywords, i - count), (int)i);
        if (at < 0)
            return -1;
        if (found[at] != NULL) {
            PyErr_Format(PyExc_TypeError, "the field %R is given twice", self->names[at]);
            return -1;
        }
        found[at] = values[i];
    }
    return 0;
}

static PyObject *emit(Packer *self, PyObject *const *values, Py_ssize_t count, PyObject *keywords)
{
    char record[MOST_BYTES];
    PyObject *found[MOST_FIELDS], *const *in_order = keywords == NULL && count == self->fields ? values : found;
    if (in_order == found && by_field(self, values, count, keywords, found) < 0)
        return NULL;
    for (int i = 0; i < self->fields; i++)
        if (put(in_order[i], self->codes[i], record + self->places[i]) < 0)
            return NULL;
    return none_unless(packer_store(self, record) < 0);
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

static PyObject *columns(Packer *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    PyObject *found[MOST_FIELDS];
    if (count < 1)
        return PyErr_Format(PyExc_TypeError, "the number of rows is needed");
    Py_ssize_t rows = PyLong_AsSsize_t(args[0]);
    if (by_field(self, args + 1, count - 1, keywords, found) < 0)
        return NULL;
    if (rows <= 0)
        return rows == -1 && PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    char few[16 * MOST_BYTES], *records = few;
    if (rows > (Py_ssize_t)sizeof few / self->bytes && (records = PyMem_Calloc(rows, self->bytes)) == NULL)
        return PyErr_NoMemory();
    int failed = 0;
    for (int field = 0; field < self->fields && !failed; field++)
        failed = put_column(self, field, found[field], rows, records) < 0;
    for (Py_ssize_t row = 0; row < rows && !failed; row++)
        failed = packer_store(self, records + row * self->bytes) < 0;
    if (records != few)
        PyMem_Free(records);
    return none_unless(failed);
}

/* One word of a layout, `name:code` and what a code's values mean; how many bytes the field has, 0: it is none. */
static int read_field(Packer *self, const char *word)
{
    const char *colon = strchr(word, ':');
    if (colon == NULL || colon == word || colon[1] == 0 || memchr(word, ' ', (size_t)(colon - word)) != NULL ||
        self->fields >= MOST_FIELDS)
        return 0;
    PyObject *name = PyUnicode_DecodeUTF8(word, colon - word, NULL);
    if (name == NULL)
        return 0;
    PyUnicode_InternInPlace(&name);
    char code = colon[1];
    self->names[self->fields] = name;
    self->codes[self->fields] = code;
    self->places[self->fields++] = (short)self->bytes;
    return strchr("qQ", code) ? 8 : strchr("iI", code) ? 4 : strchr("B?", code) ? 1 : 0;
}

static int init(Packer *self, PyObject *args, PyObject *kwargs)
{
    PyObject *layout, *stream, *wrote;
    if (!PyArg_ParseTuple(args, "UOO", &layout, &stream, &wrote))
        return -1;
    if (self->layout != NULL) {
        PyErr_SetString(PyExc_TypeError, "a packer is made once");
        return -1;
    }
    const char *text = PyUnicode_AsUTF8AndSize(layout, NULL);
    int known = text != NULL;
    for (const char *word = text; known; word = strchr(word, ' ') + 1) {
        int width = read_field(self, word);
        self->bytes += width;
        known = width > 0 && self->bytes < MOST_BYTES;
        if (strchr(word, ' ') == NULL)
            break;
    }
    self->bytes += 1;
    if (!known) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "records of %R cannot be packed", layout);
        return -1;
    }
    replace(&self->layout, Py_NewRef(layout));
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
    release(self);
    Py_CLEAR(self->stream);
    Py_CLEAR(self->wrote);
    Py_CLEAR(self->layout);
    Py_CLEAR(self->refused);
    for (int i = 0; i < self->fields; i++)
        Py_CLEAR(self->names[i]);
    return 0;
}

#define FAST_BY_NAME(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"emit", FAST_BY_NAME(emit), "kvtrace.capture.stream.Emit"},
    {"columns", FAST_BY_NAME(columns), "kvtrace.capture.stream.EmitColumns"},
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
