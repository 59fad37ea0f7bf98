/* Pages that records will go to, made ready ahead of them by a thread of its own, which knows nothing of Python.
 *
 * Whoever is the first to write to a page of a mapped file waits until the kernel has got one, cleared it and noted
 * that the file changes: as long as for a hundred records. That need not be the engine. Where the kernel cannot do it
 * ahead (Linux before 5.14), the engine does, as it did.
 */

#include "packer.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PERIOD_NS 20000000
#define LEAST     (1 << 16) /* bytes ahead, of a stream that has just begun */
#define MOST      (1 << 20) /* and of one that has written as much */
#define AT_ONCE \
    (1 << 14) /* meanwhile no packer gets another segment, and no thread changes what the process has mapped */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows, and of the list through `another` */
static Packer *followed;
static int running, unable;

/* A packer whose pages are to be made ready, if there is one. */
static Packer *next_one(void)
{
    for (Packer *packer = followed; packer != NULL; packer = packer->another) {
        long long next = __atomic_load_n(&packer->next, __ATOMIC_RELAXED), written = packer->before + next;
        long long ahead = written < LEAST ? LEAST : written > MOST ? MOST : written;
        if (packer->ready < packer->view.len && packer->ready < next + ahead)
            return packer;
    }
    return NULL;
}

static void make_ready(Packer *packer)
{
    long long left = packer->view.len - packer->ready;
    size_t bytes = (size_t)(left < AT_ONCE ? left : AT_ONCE);
    if (madvise(packer->base + packer->ready, bytes, MADV_POPULATE_WRITE) == 0)
        packer->ready += (long long)bytes;
    else if (errno == EINVAL)
        unable = 1;
    else if (errno != EAGAIN && errno != EINTR)
        packer->ready = packer->view.len; /* whoever writes there will see */
}

static void *work(void *none)
{
    const struct timespec period = {0, PERIOD_NS};
    for (int is_able = 1; is_able; nanosleep(&period, NULL))
        for (Packer *packer = NULL;;) {
            pthread_mutex_lock(&lock);
            if ((is_able = !unable) && (packer = next_one()) != NULL)
                make_ready(packer);
            pthread_mutex_unlock(&lock);
            if (!is_able || packer == NULL)
                break;
        }
    return none;
}

/* Should there be no thread, nothing is lost but time. Signals are for others. */
static void start(void)
{
    pthread_attr_t detached;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    unable = pthread_create(&thread, &detached, work, NULL) != 0;
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void prefault_start(Packer *packer)
{
    pthread_mutex_lock(&lock);
    packer->ready = 0;
    packer->another = followed;
    followed = packer;
    if (!running && !unable) {
        running = 1;
        start();
    }
    pthread_mutex_unlock(&lock);
}

void prefault_stop(Packer *packer)
{
    pthread_mutex_lock(&lock);
    for (Packer **place = &followed; *place != NULL; place = &(*place)->another)
        if (*place == packer) {
            *place = packer->another;
            break;
        }
    pthread_mutex_unlock(&lock);
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* Threads are the parent's. So are the segments: a child takes others. */
static void in_child(void)
{
    running = 0;
    pthread_mutex_unlock(&lock);
}

int prefault_init(void)
{
    return pthread_atfork(before_fork, after_fork, in_child) == 0 ? 0 : -1;
}
