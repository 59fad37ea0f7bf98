#ifndef KVTRACE_CUDA_EVENTS_H
#define KVTRACE_CUDA_EVENTS_H

#include "util.h"

/* A ring of events as kvtrace.probes.device.cuda_events keeps it. */

typedef struct {
    uint64_t next,
        limit; /* the next mark's number; how far marks are recorded, beyond it they are counted; 0: none is wanted */
    uint64_t stop, taken;   /* of the last pass that was kept, and of the last that was taken */
    uint64_t ended, lost;   /* passes that were kept, and that were not */
    uint64_t stream, known; /* the pass's, if it is known */
    uint64_t in_pieces;     /* whether passes run between piecewise graphs */
    uint64_t step;          /* of the pass; 0: it is a dummy */
    uint64_t stale;         /* whether a graph may have left stamps that are no pass's */
    uint64_t always_stale, ready;
} State;

typedef struct {
    HOLDER;
    PyObject *keep; /* what the pointers point into */
    int (*record)(void *event, void *stream);
    void **events;
    uint32_t *places;
    int64_t *steps;
    uint64_t *stops;
    State *state;
    unsigned count;
} EventRing;

/* What marks a place. */
typedef struct {
    HOLDER;
    PyObject *ring;
    unsigned place;
} RingEvent;

static inline EventRing *event_ring_of(RingEvent *mark)
{
    return (EventRing *)mark->ring;
}

/* Is a pass of pieces under way? */
static inline int is_in_pieces(RingEvent *mark)
{
    return mark->ring != NULL && event_ring_of(mark)->state->limit != 0 && event_ring_of(mark)->state->in_pieces;
}

/* A pass begins; it ends, as one of this step. */
void event_ring_open(EventRing *ring);
void event_ring_close(EventRing *ring, int64_t step);

/* -1: an exception is set. */
int mark_at(RingEvent *mark, uint64_t stream);

extern PyTypeObject *event_ring_type, *ring_event_type;

#endif
