// What the patches and the library that installs them share.
#pragma once
#include <stdint.h>

#define ORACLE_RANGES 8
enum { ORACLE_READ = 1, ORACLE_WRITE = 2, ORACLE_COPY = 4 }; // the first two are the Sanitizer API's own flags

typedef struct {
    uint64_t clock;  // of its multiprocessor
    uint64_t offset; // in its range, bytes
    uint32_t program, launch, range, kind_and_bytes;
} oracle_access;

typedef struct {
    uint64_t base[ORACLE_RANGES], bytes[ORACLE_RANGES];
    uint64_t accesses; // address of `capacity` records
    uint32_t ranges, granule_bytes, capacity, count;
} oracle_watch;

typedef struct {
    uint64_t watch;
    uint32_t number, unused;
} oracle_launch;
