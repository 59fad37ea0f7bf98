/* Records of one event, packed in C straight into the stream's mapped segment. */

#ifndef KVTRACE_PACKER_H
#define KVTRACE_PACKER_H

#include "util.h"
#include "events.h"

#define MOST_FIELDS 32
#define MOST_BYTES  256

typedef struct Packer {
    PyObject_HEAD char *base; /* of the segment that records go to; NULL: there is none */
    long long next, last;     /* where the next record goes, and the last place there is for one */
    PyObject *wrote;          /* called after each record where records are counted, else None */
    int fields, bytes;        /* bytes of a record, its last, the commit byte, included */
    unsigned int followed;    /* segments so far: names that were interned before the latest may be another process's */
    char codes[MOST_FIELDS];
    short places[MOST_FIELDS];
    PyObject *names[MOST_FIELDS];
    PyObject *layout;  /* kvtrace.events.Event.layout */
    PyObject *refused; /* another layout, that a hook was compiled with: nothing is recorded; NULL: there is none */
    PyObject *stream;  /* kvtrace.capture.stream.Stream */
    Py_buffer view;
    long long before, ready; /* bytes of the segments before this one; how many of this one's have pages */
    struct Packer *another;
} Packer;

/* A hook is to store records of this layout, one of events.h. If the event was declared otherwise, its stream takes no
 * records from now on, counts them as dropped and says so. -1: an exception is set. */
int packer_accept(Packer *self, const char *layout);

/* Append a record of events.h, whose last byte is of no account. Python code may have run. */
int packer_store(Packer *self, const void *record);

/* From now on a packer's pages are made ready ahead of it; from now on they are not. */
void prefault_start(Packer *packer);
void prefault_stop(Packer *packer);

extern PyTypeObject *packer_type;

#endif
