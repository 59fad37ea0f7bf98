/* An NVTX listener: what a profiler injects, reduced to writing down what it is told.
 *
 * NVTX loads the library that NVTX_INJECTION64_PATH names and calls InitializeInjectionNvtx2. Through export table 1 it
 * hands out tables of function pointers; what is stored there is called from then on. Each process writes to
 * NVTX_LISTENER_DIR/PID.log, a line a call:
 *
 *     THREAD TIME_NS domain|push|pop|mark|flush DOMAIN NAME PAYLOAD_TYPE PAYLOAD
 *
 * Names are of registered strings only; others are written as "?". Numbers of tables, functions and types are those of
 * NVTX version 3.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CALLBACKS_TABLE = 1, DOMAIN_FUNCTIONS = 5 };
enum { MARK = 1, PUSH = 4, POP = 5, REGISTER_STRING = 10, CREATE_DOMAIN = 12 };
enum { REGISTERED_MESSAGE = 3 };

struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    int64_t payload;
    int32_t message_type;
    const void *message;
};

struct callbacks {
    size_t size;
    int (*module_functions)(int module, void ***table, unsigned *count);
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *file;
static pid_t owner;

static void write_line(const char *what, const char *domain, const struct attributes *event)
{
    struct timespec now;
    const char *name = event && event->message_type == REGISTERED_MESSAGE ? event->message : "?";

    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&lock);
    if (owner != getpid()) { /* forked since */
        char path[4096];
        owner = getpid();
        snprintf(path, sizeof path, "%s/%d.log", getenv("NVTX_LISTENER_DIR"), (int)owner);
        file = fopen(path, "a");
    }
    if (file) {
        fprintf(file, "%ld %lld %s %s %s %d %lld\n", syscall(SYS_gettid), now.tv_sec * 1000000000LL + now.tv_nsec, what,
                domain ? domain : "-", event ? name : "-", event ? event->payload_type : 0,
                event ? (long long)event->payload : 0LL);
        fflush(file);
    }
    pthread_mutex_unlock(&lock);
}

static void *create_domain(const char *name)
{
    write_line("domain", name, NULL);
    return strdup(name);
}

static void *register_string(void *domain, const char *text)
{
    (void)domain;
    return strdup(text);
}

static int push(void *domain, const struct attributes *event)
{
    write_line("push", domain, event);
    return 0;
}

static int pop(void *domain)
{
    write_line("pop", domain, NULL);
    return 0;
}

static void mark(void *domain, const struct attributes *event)
{
    write_line("mark", domain, event);
}

int cuptiActivityFlushAll(uint32_t flags)
{
    struct attributes said = {.payload_type = 2, .payload = flags};

    write_line("flush", (void *)"cupti", &said);
    return 0;
}

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t))
{
    const struct callbacks *callbacks = export_table(CALLBACKS_TABLE);
    void **functions;
    unsigned count;

    if (!callbacks || !callbacks->module_functions(DOMAIN_FUNCTIONS, &functions, &count) || count <= CREATE_DOMAIN)
        return 0;
    *(void **)functions[MARK] = (void *)mark;
    *(void **)functions[PUSH] = (void *)push;
    *(void **)functions[POP] = (void *)pop;
    *(void **)functions[REGISTER_STRING] = (void *)register_string;
    *(void **)functions[CREATE_DOMAIN] = (void *)create_domain;
    return 1;
}
