/* What is recorded once a block: hash changes and rows of blocks.
 *
 * probes/blocks.py is complete without this, four times slower; what cannot be done quickly here is handed to it. Records
 * are BLOCK_EVENT's (kvtrace/events.py), whose layout is checked when a Writer is made. Everything runs under the GIL.
 */

#include "packer.h"

#define LAYOUT "qiiBiIQBB"

#pragma pack(push, 1)
typedef struct {
    int64_t time_ns;
    int32_t step, block_id;
    uint8_t op;
    int32_t ref_count;
    uint32_t request;
    uint64_t block_hash;
    uint8_t group, pool, whole;
} Record;
#pragma pack(pop)

typedef struct {
    HOLDER;
    PyObject *packer; /* of block events */
    PyObject *maps;   /* id of a map from hashes to blocks -> (map, Pool) */
    PyObject *inserted; /* the slow ways: Hook.after of insert and pop */
    PyObject *popped;
    unsigned char cache, evict;
} Writer;

static PyObject *n_tier, *n_engine, *n_acting_step, *n_owner, *n_index;
static PyObject *n_cached, *n_evicted, *n_block_id, *n_ref_cnt, *n_is_null, *n_pool;

static int append(Writer *self, const Record *record)
{
    return packer_store((Packer *)self->packer, (const char *)record);
}

static int add_to(PyObject *object, PyObject *name, long long by)
{
    long long number;
    if (read_int(object, name, INT64_MIN / 2, INT64_MAX / 2, &number) < 0)
        return -1;
    return write_int(object, name, number + by);
}

/* What a hash change's record says of its pool and engine. */
static int describe(PyObject *pool, Record *record)
{
    long long step, owner, index;
    PyObject *engine = PyObject_GetAttr(pool, n_engine);
    if (engine == NULL)
        return -1;
    int failed = read_int(engine, n_acting_step, INT32_MIN, INT32_MAX, &step) < 0
        || read_int(engine, n_owner, 0, UINT32_MAX, &owner) < 0 || read_int(pool, n_index, 0, UINT8_MAX, &index) < 0;
    Py_DECREF(engine);
    if (failed)
        return -1;
    record->step = (int32_t)step;
    record->request = (uint32_t)owner;
    record->pool = (uint8_t)index;
    return 0;
}

/* A map's pool, borrowed, if the quick way can be gone: the map is known and its pool is no tier's. NULL: it cannot. */
static PyObject *quick_pool(Writer *self, PyObject *args, Py_ssize_t count, PyObject *kwargs)
{
    if (PyTuple_Size(args) != count || PyDict_Size(kwargs) != 0)
        return NULL;
    PyObject *id = PyLong_FromVoidPtr(PyTuple_GetItem(args, 0));
    PyObject *known = id ? PyDict_GetItemWithError(self->maps, id) : NULL;
    Py_XDECREF(id);
    PyObject *pool = known && PyTuple_Check(known) ? PyTuple_GetItem(known, 1) : NULL;
    PyObject *tier = pool ? PyObject_GetAttr(pool, n_tier) : NULL;
    Py_XDECREF(tier);
    return tier == Py_None ? pool : NULL;
}

static PyObject *changed(Writer *self, PyObject *const *args, Py_ssize_t count, int evicts)
{
    if (count != 4 || !PyTuple_Check(args[2]) || !PyDict_Check(args[3]))
        return PyErr_Format(PyExc_TypeError, "state, result, args and kwargs are needed");
    if (evicts && args[1] == Py_None)
        Py_RETURN_NONE;
    PyObject *pool = quick_pool(self, args[2], 3, args[3]);
    if (PyErr_Occurred())
        return NULL;
    PyObject *key = pool ? PyTuple_GetItem(args[2], 1) : NULL;
    char *bytes;
    Py_ssize_t length;
    if (key == NULL || !PyBytes_Check(key) || PyBytes_AsStringAndSize(key, &bytes, &length) < 0 || length < 12) {
        PyErr_Clear();
        return PyObject_CallFunctionObjArgs(evicts ? self->popped : self->inserted, args[0], args[1], args[2], args[3], NULL);
    }
    PyObject *block = evicts ? args[1] : PyTuple_GetItem(args[2], 2);
    Record record = {0};
    long long block_id, references;
    if (add_to(pool, n_cached, evicts ? -1 : 1) < 0 || (evicts && add_to(pool, n_evicted, 1) < 0)
        || read_int(block, n_block_id, INT32_MIN, INT32_MAX, &block_id) < 0
        || read_int(block, n_ref_cnt, INT32_MIN, INT32_MAX, &references) < 0 || describe(pool, &record) < 0)
        return NULL;
    for (int i = 0; i < 8; i++) /* a key ends with the group in four bytes; before it the hash's low bytes */
        record.block_hash = record.block_hash << 8 | (unsigned char)bytes[length - 12 + i];
    record.group = (uint8_t)bytes[length - 1];
    record.op = evicts ? self->evict : self->cache;
    record.block_id = (int32_t)block_id;
    record.ref_count = (int32_t)references;
    record.time_ns = now_ns();
    if (append(self, &record) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *after_insert(Writer *self, PyObject *const *args, Py_ssize_t count)
{
    return changed(self, args, count, 0);
}

static PyObject *after_pop(Writer *self, PyObject *const *args, Py_ssize_t count)
{
    return changed(self, args, count, 1);
}

/* Whether a block is to be recorded: it is not null, and its own pool, where it knows one, is this. -1: an error. */
static int is_ours(PyObject *block, PyObject *block_pool, int knows_pool)
{
    PyObject *null = PyObject_GetAttr(block, n_is_null);
    int ours = null == NULL ? -1 : PyObject_IsTrue(null);
    Py_XDECREF(null);
    if (ours < 0)
        return -1;
    ours = !ours;
    if (ours && knows_pool) {
        PyObject *pool = PyObject_GetAttr(block, n_pool);
        if (pool == NULL)
            return -1;
        ours = pool == Py_None || pool == block_pool;
        Py_DECREF(pool);
    }
    return ours;
}

static PyObject *write_blocks(Writer *self, PyObject *args)
{
    PyObject *blocks, *block_pool;
    Record record = {0};
    long long moment;
    if (!PyArg_ParseTuple(args, "OOLiBIB", &blocks, &block_pool, &moment, &record.step, &record.op, &record.request, &record.pool))
        return NULL;
    record.time_ns = moment;
    PyObject *list = PySequence_List(blocks); /* its own: nothing can change it meanwhile */
    if (list == NULL)
        return NULL;
    int knows_pool = -1;
    for (Py_ssize_t i = 0, count = PyList_Size(list); i < count; i++) {
        PyObject *block = PyList_GetItem(list, i);
        if (knows_pool < 0)
            knows_pool = PyObject_HasAttrString(block, "pool");
        int ours = is_ours(block, block_pool, knows_pool);
        long long block_id, references;
        if (ours > 0
            && (read_int(block, n_block_id, INT32_MIN, INT32_MAX, &block_id) < 0
                || read_int(block, n_ref_cnt, INT32_MIN, INT32_MAX, &references) < 0))
            ours = -1;
        if (ours > 0) {
            record.block_id = (int32_t)block_id;
            record.ref_count = (int32_t)references;
            ours = append(self, &record) < 0 ? -1 : 1;
        }
        if (ours < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    Py_DECREF(list);
    Py_RETURN_NONE;
}

static int writer_init(Writer *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[4];
    if (!PyArg_ParseTuple(args, "O!O!OObb", packer_type, &given[0], &PyDict_Type, &given[1], &given[2], &given[3], &self->cache,
                          &self->evict))
        return -1;
    if (!packer_writes((Packer *)given[0], LAYOUT))
        return -1;
    HOLD(self, given);
    return 0;
}

static PyMethodDef methods[] = {
    {"after_insert", FAST(after_insert), "Hook.after of the map's insert."},
    {"after_pop", FAST(after_pop), "Hook.after of the map's pop."},
    {"write_blocks", (PyCFunction)write_blocks, METH_VARARGS,
     "write_blocks(blocks, block_pool, time_ns, step, op, request, pool): a record for each block."},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Writer(packer, maps, after_insert, after_pop, cache, evict)"},
    HOLDER_SLOTS,
    {Py_tp_init, writer_init},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec writer_spec = {
    "kvtrace._native.Writer", sizeof(Writer), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};

int blocks_names(void)
{
    const Name names[] = {
        {&n_tier, "tier"}, {&n_engine, "engine"}, {&n_acting_step, "acting_step"}, {&n_owner, "owner"},
        {&n_index, "index"}, {&n_cached, "cached"}, {&n_evicted, "evicted"}, {&n_block_id, "block_id"},
        {&n_ref_cnt, "ref_cnt"}, {&n_is_null, "is_null"}, {&n_pool, "pool"},
    };
    return INTERN(names);
}
