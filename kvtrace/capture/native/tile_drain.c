/* Steps of tiles on their way from a device's ring to a file. The thread does without the GIL meanwhile, for a second
 * at a time: to wake it in every step, and to have it wait for the GIL, made the engine's threads wait as often. */

#include "util.h"
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SECTIONS = 3, TILES = 1, RECORDED = 1 };

/* Why the thread is back. */
enum { TIME_IS_UP, NEEDS_ROOM, NOT_WRITTEN, CUDA_FAILED };

static const long SHORTEST_PAUSE_NS = 1000000, LONGEST_PAUSE_NS = 8000000;

/* As kvtrace.probes.device.tiles.layout has them. */
typedef struct {
    int64_t step, opened_gpu_ns, state, lost_before, starts[SECTIONS], filtered_before, counts[SECTIONS], unused;
} Step;

/* As kvtrace.format.tile_file.CHUNK packs it. */
typedef struct {
    uint32_t mark;
    int32_t engine_pid;
    int64_t step, opened_gpu_ns, offset_ns;
    uint32_t tile_origin, counts[SECTIONS], lost_steps, filtered_steps;
} Chunk;

/* As kvtrace.probes.device.tiles.files has it. */
typedef struct {
    int64_t descriptor, failed;
    int64_t bytes, most_bytes; /* of whole chunks; from how many on another file is needed */
    int64_t allowed_bytes;     /* more may not be written before that is asked for */
    int64_t written_bytes;     /* to all files */
} File;

/* As kvtrace.probes.device.tiles.drain has it. */
typedef struct {
    int (*copy)(void *to, uint64_t from, size_t bytes, void *stream);
    int (*synchronize)(void *stream);
    ssize_t (*write)(int descriptor, const void *from, size_t bytes);
    void *stream;
    char *staging;
    uint64_t staging_bytes;
    const Step *steps;
    uint64_t slots;
    const int64_t *published;
    int64_t *released;
    uint64_t memory[SECTIONS], capacities[SECTIONS], record_bytes[SECTIONS];
    File *file;
    uint64_t mark;
    int64_t engine_pid;
    int64_t clock_gpu_ns, clock_offset_ns; /* CLOCK_MONOTONIC minus global timer, when that read so */
    double clock_drift;
    int64_t over; /* set by another thread */
    int64_t drained, recorded, lost, unwritten, tiles;
    int64_t lost_before, told_lost, told_filtered; /* by the device; in chunks */
} Drain;

typedef struct {
    int why;
    long long number; /* bytes that need room, errno, or CUDA's error */
} Return;

static const Return GOES_ON = {TIME_IS_UP, 0};

/* Write what has been copied; what has been written of a chunk counts once all of it is. */
static Return flush(Drain *drain, uint64_t used)
{
    int error = drain->synchronize(drain->stream);
    if (error)
        return (Return){CUDA_FAILED, error};
    for (uint64_t done = 0; done < used;) {
        ssize_t now = drain->write((int)drain->file->descriptor, drain->staging + done, used - done);
        if (now < 0 && errno != EINTR)
            return (Return){NOT_WRITTEN, errno};
        done += now > 0 ? (uint64_t)now : 0;
    }
    return GOES_ON;
}

/* Copy a section behind what is in the staging buffer, and fill it up to a multiple of 8 bytes. */
static Return copy_section(Drain *drain, uint64_t from, uint64_t bytes, uint64_t *used)
{
    for (uint64_t padding = -bytes & 7; bytes || padding;) {
        uint64_t room = drain->staging_bytes - *used, part = bytes < room ? bytes : room;
        int error = part ? drain->copy(drain->staging + *used, from, part, drain->stream) : 0;
        if (error)
            return (Return){CUDA_FAILED, error};
        from += part, bytes -= part, *used += part;
        for (; !bytes && padding && *used < drain->staging_bytes; padding--)
            drain->staging[(*used)++] = 0;
        if (*used == drain->staging_bytes) {
            Return flushed = flush(drain, *used);
            if (flushed.why)
                return flushed;
            *used = 0;
        }
    }
    return GOES_ON;
}

static uint64_t address_of(const Drain *drain, const Step *step, int section)
{
    uint64_t place = (uint64_t)step->starts[section] % drain->capacities[section];
    return drain->memory[section] + place * drain->record_bytes[section];
}

static int64_t chunk_bytes(const Drain *drain, const Step *step)
{
    uint64_t bytes = sizeof(Chunk);
    for (int s = 0; s < SECTIONS; s++)
        bytes += ((uint64_t)step->counts[s] * drain->record_bytes[s] + 7) & ~(uint64_t)7;
    return (int64_t)bytes;
}

static Return write_chunk(Drain *drain, const Step *step)
{
    Chunk chunk = {(uint32_t)drain->mark, (int32_t)drain->engine_pid, step->step, step->opened_gpu_ns};
    double moved_ns = (double)(step->opened_gpu_ns - drain->clock_gpu_ns) * drain->clock_drift;
    uint64_t used = sizeof chunk;
    Return done = GOES_ON;
    chunk.offset_ns = drain->clock_offset_ns + (int64_t)(moved_ns + (moved_ns < 0 ? -0.5 : 0.5));
    chunk.tile_origin = (uint32_t)(address_of(drain, step, TILES) >> 1);
    for (int s = 0; s < SECTIONS; s++)
        chunk.counts[s] = (uint32_t)step->counts[s];
    chunk.lost_steps = (uint32_t)(drain->lost - drain->told_lost);
    chunk.filtered_steps = (uint32_t)(step->filtered_before - drain->told_filtered);
    drain->told_lost = drain->lost;
    drain->told_filtered = step->filtered_before;
    memcpy(drain->staging, &chunk, used);
    for (int s = 0; s < SECTIONS && !done.why; s++)
        done = copy_section(drain, address_of(drain, step, s), (uint64_t)step->counts[s] * drain->record_bytes[s],
                            &used);
    return done.why ? done : flush(drain, used);
}

/* Take one step home. The ring has its room again, whatever became of it. */
static Return take(Drain *drain, const Step *step)
{
    File *file = drain->file;
    int recorded = step->state == RECORDED, writes = recorded && !file->failed;
    int64_t bytes = chunk_bytes(drain, step);
    Return done = GOES_ON;
    if (writes && (bytes > file->allowed_bytes || file->bytes >= file->most_bytes))
        return (Return){NEEDS_ROOM, bytes};
    drain->lost += step->lost_before - drain->lost_before + !recorded;
    drain->lost_before = step->lost_before;
    if (writes)
        done = write_chunk(drain, step);
    if (done.why == CUDA_FAILED)
        return done;
    if (writes && !done.why) {
        file->bytes += bytes;
        file->allowed_bytes -= bytes;
        file->written_bytes += bytes;
        drain->recorded++;
        drain->tiles += step->counts[TILES];
    } else
        drain->unwritten += recorded;
    for (int s = 0; s < SECTIONS; s++)
        __atomic_store_n(&drain->released[s], step->starts[s] + (recorded ? step->counts[s] : 0), __ATOMIC_RELEASE);
    __atomic_store_n(&drain->released[SECTIONS], ++drain->drained, __ATOMIC_RELEASE);
    return done;
}

static Return follow(Drain *drain, int64_t until_ns)
{
    struct timespec pause = {0, SHORTEST_PAUSE_NS};
    for (;;) {
        int over = (int)__atomic_load_n(&drain->over, __ATOMIC_ACQUIRE); /* what was published before that is taken */
        int64_t published = __atomic_load_n(drain->published, __ATOMIC_ACQUIRE);
        if (drain->drained < published)
            pause.tv_nsec = SHORTEST_PAUSE_NS;
        while (drain->drained < published) {
            Return done = take(drain, drain->steps + (uint64_t)drain->drained % drain->slots);
            if (done.why)
                return done;
        }
        if (over || now_ns() >= until_ns)
            return GOES_ON;
        nanosleep(&pause, NULL);
        pause.tv_nsec = 2 * pause.tv_nsec < LONGEST_PAUSE_NS ? 2 * pause.tv_nsec : LONGEST_PAUSE_NS;
    }
}

PyObject *drain_tiles(PyObject *module, PyObject *args)
{
    unsigned long long address, size;
    long long until_ns;
    Return done;
    if (!PyArg_ParseTuple(args, "KKL", &address, &size, &until_ns))
        return NULL;
    Drain *drain = (Drain *)(uintptr_t)address;
    if (size != sizeof(Drain))
        return PyErr_Format(PyExc_ValueError, "kvtrace's compiled part has another drain: install kvtrace again");
    if (drain->staging_bytes < sizeof(Chunk) || !drain->slots)
        return PyErr_Format(PyExc_ValueError, "too little memory to copy through");
    Py_BEGIN_ALLOW_THREADS done = follow(drain, until_ns);
    Py_END_ALLOW_THREADS return Py_BuildValue("iL", done.why, done.number);
}
