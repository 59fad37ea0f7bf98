/* What is recorded once a block: allocations, references, releases, hash changes.
 *
 * probes/blocks.py is complete without this, five times slower; what cannot be done quickly here is handed to it.
 * Records are BLOCK_EVENT's (kvtrace/events.py), whose layout is checked when a Writer is made. Everything runs under
 * the GIL.
 */

#include "packer.h"
#include "state.h"

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
    PyObject *pools;  /* id of a block pool -> Pool */
    PyObject *inserted, *popped, *allocated, *touched,
        *freed;       /* the slow ways: Hook.after of insert, pop and the pool's */
    PyObject *listed; /* likewise: Hook.arguments of free_blocks */
    PyObject
        *plain; /* the type of the latest block that had no `pool`, where no other block of its type has one either */
    unsigned char cache, evict, allocate, hit, free;
} Writer;

static PyObject *n_block_id, *n_ref_cnt, *n_is_null, *n_pool, *n_dict;

/* A record that is complete but for its block. */
static int append_block(Writer *self, Record *record, PyObject *block)
{
    long long block_id, references;
    if (read_int(block, n_block_id, INT32_MIN, INT32_MAX, &block_id) < 0 ||
        read_int(block, n_ref_cnt, INT32_MIN, INT32_MAX, &references) < 0)
        return -1;
    record->block_id = (int32_t)block_id;
    record->ref_count = (int32_t)references;
    return packer_store((Packer *)self->packer, (const char *)record);
}

/* What a record says of its pool and engine. */
static int describe(const PoolState *pool, Record *record)
{
    const EngineState *engine = engine_state(pool->engine);
    if (engine == NULL || !is_within(engine->acting_step, INT32_MIN, INT32_MAX, "acting_step") ||
        !is_within(engine->owner, 0, UINT32_MAX, "owner") || !is_within(pool->index, 0, UINT8_MAX, "index"))
        return -1;
    record->step = (int32_t)engine->acting_step;
    record->request = (uint32_t)engine->owner;
    record->pool = (uint8_t)pool->index;
    return 0;
}

/* A pool, if it is known and no tier's. NULL: it is not, or an exception is set. */
static PoolState *own_pool(PyObject *known)
{
    PoolState *pool = known ? pool_state(known) : NULL;
    return pool && is_none(pool->tier) ? pool : NULL;
}

/* A map's pool, borrowed, if the quick way can be gone: the map is known and its pool is no tier's. NULL: it cannot. */
static PoolState *quick_pool(Writer *self, PyObject *args, Py_ssize_t count, PyObject *kwargs)
{
    if (PyTuple_Size(args) != count || PyDict_Size(kwargs) != 0)
        return NULL;
    PyObject *known = known_by_id(self->maps, args);
    return own_pool(known && PyTuple_Check(known) ? PyTuple_GetItem(known, 1) : NULL);
}

static int is_call(PyObject *const *args, Py_ssize_t count)
{
    if (count == 4 && PyTuple_Check(args[2]) && PyDict_Check(args[3]))
        return 1;
    PyErr_SetString(PyExc_TypeError, "state, result, args and kwargs are needed");
    return 0;
}

static PyObject *go_slowly(PyObject *way, PyObject *const *args)
{
    return PyObject_CallFunctionObjArgs(way, args[0], args[1], args[2], args[3], NULL);
}

static PyObject *changed(Writer *self, PyObject *const *args, Py_ssize_t count, int evicts)
{
    if (!is_call(args, count))
        return NULL;
    if (evicts && args[1] == Py_None)
        Py_RETURN_NONE;
    PoolState *pool = quick_pool(self, args[2], 3, args[3]);
    if (PyErr_Occurred())
        return NULL;
    PyObject *key = pool ? PyTuple_GetItem(args[2], 1) : NULL;
    char *bytes;
    Py_ssize_t length;
    if (key == NULL || !PyBytes_Check(key) || PyBytes_AsStringAndSize(key, &bytes, &length) < 0 || length < 12) {
        PyErr_Clear();
        return go_slowly(evicts ? self->popped : self->inserted, args);
    }
    PyObject *block = evicts ? args[1] : PyTuple_GetItem(args[2], 2);
    Record record = {.op = evicts ? self->evict : self->cache};
    pool->cached += evicts ? -1 : 1;
    pool->evicted += evicts;
    if (describe(pool, &record) < 0)
        return NULL;
    for (int i = 0; i < 8; i++) /* a key ends with the group in four bytes; before it the hash's low bytes */
        record.block_hash = record.block_hash << 8 | (unsigned char)bytes[length - 12 + i];
    record.group = (uint8_t)bytes[length - 1];
    record.time_ns = now_ns();
    return append_block(self, &record, block) < 0 ? NULL : Py_NewRef(Py_None);
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
    int null = is_true(block, n_is_null), ours = !null;
    if (null < 0)
        return -1;
    if (ours && knows_pool) {
        PyObject *pool = PyObject_GetAttr(block, n_pool);
        if (pool == NULL)
            return -1;
        ours = pool == Py_None || pool == block_pool;
        Py_DECREF(pool);
    }
    return ours;
}

/* Whether a block knows its own pool. To ask one that does not takes longer than to record it. */
static int knows_own_pool(Writer *self, PyObject *block)
{
    PyObject *type = (PyObject *)Py_TYPE(block);
    if (type == self->plain || PyObject_HasAttr(block, n_pool))
        return type != self->plain;
    if (!PyObject_HasAttr(block, n_dict)) /* nor will any other of its type, then */
        replace(&self->plain, Py_NewRef(type));
    return 0;
}

/* A record for each of these blocks; everything but the block is in `record`. */
static int append_each(Writer *self, Record *record, PyObject *blocks, PyObject *block_pool)
{
    PyObject *list = PySequence_List(blocks); /* its own: nothing can change it meanwhile */
    if (list == NULL)
        return -1;
    int knows_pool = -1, failed = 0;
    for (Py_ssize_t i = 0, count = PyList_Size(list); i < count && !failed; i++) {
        PyObject *block = PyList_GetItem(list, i);
        if (knows_pool < 0)
            knows_pool = knows_own_pool(self, block);
        int ours = is_ours(block, block_pool, knows_pool);
        failed = ours < 0 || (ours && append_block(self, record, block) < 0);
    }
    Py_DECREF(list);
    return failed ? -1 : 0;
}

/* Blocks of a pool changed hands. `blocks` NULL: they cannot be found quickly. */
static PyObject *handed(Writer *self, PyObject *const *args, unsigned char op, PyObject *blocks, PyObject *slow_way)
{
    PoolState *pool = blocks ? own_pool(known_by_id(self->pools, args[2])) : NULL;
    if (pool == NULL)
        return PyErr_Occurred() ? NULL : go_slowly(slow_way, args);
    Record record = {.op = op};
    if (describe(pool, &record) < 0)
        return NULL;
    if (op != self->allocate && !is_none(engine_state(pool->engine)->holder))
        return go_slowly(slow_way, args);
    record.time_ns = now_ns();
    return append_each(self, &record, blocks, PyTuple_GetItem(args[2], 0)) < 0 ? NULL : Py_NewRef(Py_None);
}

/* The one argument of a pool's method, borrowed, if it is there by position and alone. */
static PyObject *only_argument(PyObject *args, PyObject *kwargs)
{
    return PyTuple_Size(args) == 2 && PyDict_Size(kwargs) == 0 ? PyTuple_GetItem(args, 1) : NULL;
}

static PyObject *after_allocate(Writer *self, PyObject *const *args, Py_ssize_t count)
{
    return is_call(args, count) ? handed(self, args, self->allocate, args[1], self->allocated) : NULL;
}

static PyObject *after_touch(Writer *self, PyObject *const *args, Py_ssize_t count)
{
    return is_call(args, count) ? handed(self, args, self->hit, only_argument(args[2], args[3]), self->touched) : NULL;
}

static PyObject *after_free(Writer *self, PyObject *const *args, Py_ssize_t count)
{
    return is_call(args, count) ? handed(self, args, self->free, only_argument(args[2], args[3]), self->freed) : NULL;
}

/* Blocks to free as a list: what is given may be walked only once. */
static PyObject *listed(Writer *self, PyObject *args)
{
    PyObject *given, *names;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &given, &PyDict_Type, &names))
        return NULL;
    PyObject *blocks = only_argument(given, names);
    if (blocks == NULL)
        return PyObject_CallObject(self->listed, args);
    PyObject *list = PySequence_List(blocks), *none = list ? PyDict_New() : NULL;
    PyObject *both = none ? Py_BuildValue("((OO)O)", PyTuple_GetItem(given, 0), list, none) : NULL;
    Py_XDECREF(list);
    Py_XDECREF(none);
    return both;
}

static int writer_init(Writer *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[10] = {NULL};
    if (!PyArg_ParseTuple(args, "O!O!O!OOOOOObbbbb", packer_type, &given[0], &PyDict_Type, &given[1], &PyDict_Type,
                          &given[2], &given[3], &given[4], &given[5], &given[6], &given[7], &given[8], &self->cache,
                          &self->evict, &self->allocate, &self->hit, &self->free))
        return -1;
    if (!packer_writes((Packer *)given[0], LAYOUT))
        return -1;
    HOLD(self, given);
    return 0;
}

static PyMethodDef methods[] = {
    {"after_insert", FAST(after_insert), "Hook.after of the map's insert."},
    {"after_pop", FAST(after_pop), "Hook.after of the map's pop."},
    {"after_allocate", FAST(after_allocate), "Hook.after of the pool's get_new_blocks."},
    {"after_touch", FAST(after_touch), "Hook.after of the pool's touch."},
    {"after_free", FAST(after_free), "Hook.after of the pool's free_blocks."},
    {"listed", (PyCFunction)listed, METH_VARARGS, "Hook.arguments of the pool's free_blocks."},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Writer(packer, maps, pools, after_insert, after_pop, after_allocate, after_touch, after_free, listed, *ops)"},
    HOLDER_SLOTS,
    {Py_tp_init, writer_init},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec writer_spec = {
    "kvtrace.capture._native.Writer", sizeof(Writer), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};

int blocks_names(void)
{
    const Name names[] = {
        {&n_block_id, "block_id"}, {&n_ref_cnt, "ref_cnt"}, {&n_is_null, "is_null"},
        {&n_pool, "pool"},         {&n_dict, "__dict__"},
    };
    return INTERN(names);
}
