/* What is recorded once a block: allocations, references, releases, hash changes. */

#include "packer.h"
#include "state.h"

#define LOW_BYTES   8
#define GROUP_BYTES 4 /* a block's key ends with its KV cache group; before it the hash's low bytes */

typedef struct {
    HOLDER;
    Packer *packer;            /* of block events */
    PyObject *maps;            /* id of a map from hashes to blocks -> (map, Pool) */
    PyObject *pools;           /* id of a block pool -> Pool */
    PyObject *find_map;        /* (map) -> Pool or None: of a map that is not known yet */
    PyObject *find_pool;       /* (block pool) -> Pool or None, likewise */
    PyObject *touched, *freed; /* (Pool, blocks): references that changed while the engine has a holder */
    PyObject *plain; /* the type of the latest block that had no `pool`, where no other block of its type has one */
    PyObject *type, *block_id, *ref_cnt, *is_null; /* of the latest block, and where it keeps these: `slot_of` */
} Writer;

static PyObject *n_block_id, *n_ref_cnt, *n_is_null, *n_pool, *n_dict, *n_key, *n_block, *n_blocks, *n_ordered;
static PyObject *n_changed, *n_hashed;

/* An attribute of a block; from its slot, for all of them are of one type, and to search takes most of the time. */
static PyObject *of_block(Writer *self, PyObject *block, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(block);
    if ((PyObject *)type != self->type) {
        replace(&self->block_id, slot_of(type, n_block_id));
        replace(&self->ref_cnt, slot_of(type, n_ref_cnt));
        replace(&self->is_null, slot_of(type, n_is_null));
        replace(&self->type, Py_NewRef((PyObject *)type));
    }
    PyObject *slot = name == n_block_id ? self->block_id : name == n_ref_cnt ? self->ref_cnt : self->is_null;
    return slot ? read_slot(block, slot, name) : read_attribute(block, name);
}

/* A record that is complete but for its block. */
static int append_block(Writer *self, BlockEventRecord *record, PyObject *block)
{
    long long block_id, references;
    if (take_int(of_block(self, block, n_block_id), n_block_id, INT32_MIN, INT32_MAX, &block_id) < 0 ||
        take_int(of_block(self, block, n_ref_cnt), n_ref_cnt, INT32_MIN, INT32_MAX, &references) < 0)
        return -1;
    record->block_id = (int32_t)block_id;
    record->ref_count = (int32_t)references;
    return packer_store(self->packer, record);
}

/* What a record says of its pool and engine, and when it is. */
static int describe(const PoolState *pool, BlockEventRecord *record)
{
    const EngineState *engine = engine_state(pool->engine);
    if (engine == NULL || !SET(record->step, engine->acting_step) || !SET(record->request, engine->owner) ||
        !SET(record->pool, pool->index))
        return -1;
    record->time_ns = now_ns();
    return 0;
}

/* What is known of a pool or of a map's pool, else what `find` says of it: a new reference, None if it is nobody's. */
static PyObject *find(PyObject *known, PyObject *find, PyObject *args)
{
    PyObject *found = known_by_id(known, args);
    if (found != NULL || PyErr_Occurred())
        return Py_XNewRef(found && PyTuple_Check(found) ? PyTuple_GetItem(found, 1) : found);
    return PyObject_CallFunctionObjArgs(find, PyTuple_GetItem(args, 0), NULL);
}

/* Tell a pool of an offload tier, which records its blocks in its own way. */
static int tell_tier(const PoolState *pool, PyObject *method, int op, PyObject *one, PyObject *other)
{
    PyObject *code = PyLong_FromLong(op);
    PyObject *done = code ? PyObject_CallMethodObjArgs(pool->tier, method, code, one, other, NULL) : NULL;
    Py_XDECREF(code);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int record_hash(Writer *self, PoolState *pool, int op, PyObject *key, PyObject *block)
{
    BlockEventRecord record = {.op = (uint8_t)op};
    char *bytes;
    Py_ssize_t length;
    pool->cached += op == BLOCK_OP_EVICT ? -1 : 1;
    pool->evicted += op == BLOCK_OP_EVICT;
    if (!is_none(pool->tier))
        return tell_tier(pool, n_hashed, op, key, block);
    if (describe(pool, &record) < 0 || PyBytes_AsStringAndSize(key, &bytes, &length) < 0)
        return -1;
    if (length < LOW_BYTES + GROUP_BYTES) {
        PyErr_Format(PyExc_ValueError, "a block's key has %zd bytes", length);
        return -1;
    }
    for (int i = 0; i < LOW_BYTES; i++)
        record.block_hash = record.block_hash << 8 | (unsigned char)bytes[length - LOW_BYTES - GROUP_BYTES + i];
    record.kv_group = (uint8_t)bytes[length - 1];
    return append_block(self, &record, block);
}

static PyObject *changed(Writer *self, PyObject *const *given, Py_ssize_t count, int op)
{
    if (!is_after(given, count))
        return NULL;
    if (op == BLOCK_OP_EVICT && given[1] == Py_None)
        Py_RETURN_NONE;
    PyObject *known = find(self->maps, self->find_map, given[2]);
    if (is_none(known))
        return known;
    PoolState *pool = pool_state(known);
    PyObject *key = pool ? needed_argument(given + 2, 1, n_key) : NULL, *block = given[1];
    if (key != NULL && op == BLOCK_OP_CACHE)
        block = needed_argument(given + 2, 2, n_block);
    int failed = key == NULL || block == NULL || record_hash(self, pool, op, key, block) < 0;
    Py_DECREF(known);
    return none_unless(failed);
}

static PyObject *after_insert(Writer *self, PyObject *const *given, Py_ssize_t count)
{
    return changed(self, given, count, BLOCK_OP_CACHE);
}

static PyObject *after_pop(Writer *self, PyObject *const *given, Py_ssize_t count)
{
    return changed(self, given, count, BLOCK_OP_EVICT);
}

/* Whether a block is to be recorded: it is not null, and its own pool, where it knows one, is this. -1: an error. */
static int is_ours(Writer *self, PyObject *block, PyObject *block_pool, int knows_pool)
{
    int null = take_truth(of_block(self, block, n_is_null)), ours = !null;
    if (null < 0)
        return -1;
    if (ours && knows_pool) {
        PyObject *pool = read_attribute(block, n_pool);
        if (pool == NULL)
            return -1;
        ours = pool == Py_None || pool == block_pool;
        Py_DECREF(pool);
    }
    return ours;
}

/* Whether a block knows its own pool. To ask one that does not takes longer than to record it. -1: an error. */
static int knows_own_pool(Writer *self, PyObject *block)
{
    PyObject *type = (PyObject *)Py_TYPE(block);
    if (type == self->plain)
        return 0;
    PyObject *pool = read_attribute(block, n_pool);
    if (pool == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        if (!PyObject_HasAttr(block, n_dict)) /* nor will any other of its type, then */
            replace(&self->plain, Py_NewRef(type));
        return 0;
    }
    Py_XDECREF(pool);
    return pool == NULL ? -1 : 1;
}

/* A record for each of these blocks; everything but the block is in `record`. */
static int append_each(Writer *self, BlockEventRecord *record, PyObject *blocks, PyObject *block_pool)
{
    PyObject *list = PySequence_List(blocks); /* its own: nothing can change it meanwhile */
    if (list == NULL)
        return -1;
    Py_ssize_t count = PyList_Size(list);
    int knows_pool = count ? knows_own_pool(self, PyList_GetItem(list, 0)) : 0, failed = knows_pool < 0;
    for (Py_ssize_t i = 0; i < count && !failed; i++) {
        PyObject *block = PyList_GetItem(list, i);
        int ours = is_ours(self, block, block_pool, knows_pool);
        failed = ours < 0 || (ours && append_block(self, record, block) < 0);
    }
    Py_DECREF(list);
    return failed ? -1 : 0;
}

/* Blocks of a pool changed hands. */
static int record_blocks(Writer *self, const PoolState *pool, int op, PyObject *block_pool, PyObject *blocks)
{
    BlockEventRecord record = {.op = (uint8_t)op};
    return describe(pool, &record) < 0 ? -1 : append_each(self, &record, blocks, block_pool);
}

/* `held` is told of blocks that changed while the engine has a holder; NULL: nobody is. */
static PyObject *handed(Writer *self, PyObject *args, int op, PyObject *blocks, PyObject *held)
{
    PyObject *known = blocks ? find(self->pools, self->find_pool, args) : NULL;
    if (is_none(known))
        return known;
    PoolState *pool = pool_state(known);
    int failed = pool == NULL;
    if (!failed && !is_none(pool->tier))
        failed = tell_tier(pool, n_changed, op, blocks, NULL) < 0;
    else if (!failed) {
        failed = record_blocks(self, pool, op, PyTuple_GetItem(args, 0), blocks) < 0;
        if (!failed && held != NULL && pool->index == 0 && !is_none(engine_state(pool->engine)->holder))
            failed = call_for_effect(held, known, blocks) < 0;
    }
    Py_DECREF(known);
    return none_unless(failed);
}

static PyObject *after_allocate(Writer *self, PyObject *const *given, Py_ssize_t count)
{
    return is_after(given, count) ? handed(self, given[2], BLOCK_OP_ALLOCATE, given[1], NULL) : NULL;
}

static PyObject *after_touch(Writer *self, PyObject *const *given, Py_ssize_t count)
{
    PyObject *blocks = is_after(given, count) ? needed_argument(given + 2, 1, n_blocks) : NULL;
    return blocks ? handed(self, given[2], BLOCK_OP_HIT, blocks, self->touched) : NULL;
}

static PyObject *after_free(Writer *self, PyObject *const *given, Py_ssize_t count)
{
    PyObject *blocks = is_after(given, count) ? needed_argument(given + 2, 1, n_ordered) : NULL;
    return blocks ? handed(self, given[2], BLOCK_OP_FREE, blocks, self->freed) : NULL;
}

/* Blocks to free as a list: what is given may be walked only once. */
static PyObject *listed(Writer *self, PyObject *const *given, Py_ssize_t count)
{
    PyObject *blocks = is_before(given, count) ? needed_argument(given, 1, n_ordered) : NULL;
    PyObject *list = blocks ? PySequence_List(blocks) : NULL, *none = list ? PyDict_New() : NULL;
    PyObject *both = none ? Py_BuildValue("((OO)O)", PyTuple_GetItem(given[0], 0), list, none) : NULL;
    Py_XDECREF(list);
    Py_XDECREF(none);
    return both;
}

static int writer_init(Writer *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[12] = {NULL}; /* the last: no type is known */
    if (!PyArg_ParseTuple(args, "O!O!O!OOOO", packer_type, &given[0], &PyDict_Type, &given[1], &PyDict_Type, &given[2],
                          &given[3], &given[4], &given[5], &given[6]))
        return -1;
    HOLD(self, given);
    return packer_accept(self->packer, BLOCK_EVENT_LAYOUT);
}

static PyMethodDef methods[] = {
    {"after_insert", FAST(after_insert), "Hook.after of the map's insert."},
    {"after_pop", FAST(after_pop), "Hook.after of the map's pop."},
    {"after_allocate", FAST(after_allocate), "Hook.after of the pool's get_new_blocks."},
    {"after_touch", FAST(after_touch), "Hook.after of the pool's touch."},
    {"after_free", FAST(after_free), "Hook.after of the pool's free_blocks."},
    {"listed", FAST(listed), "Hook.arguments of the pool's free_blocks."},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Writer(packer, maps, pools, find_map, find_pool, touched, freed)"},
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
        {&n_block_id, "block_id"},      {&n_ref_cnt, "ref_cnt"}, {&n_is_null, "is_null"}, {&n_pool, "pool"},
        {&n_dict, "__dict__"},          {&n_key, "key"},         {&n_block, "block"},     {&n_blocks, "blocks"},
        {&n_ordered, "ordered_blocks"}, {&n_changed, "changed"}, {&n_hashed, "hashed"},
    };
    return INTERN(names);
}
