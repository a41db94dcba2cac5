/* Poison in what the caching allocator takes back and gives out.
 *
 * A block that is given out is poisoned by its stream, before all that is put there afterwards. One that was freed may
 * still be read by other streams: a program may free it, and order only its reuse by an event that comes later. So it
 * is poisoned when every stream has passed what was put there before the free, unless it was given out again. */
#include <pthread.h>
#include <stdlib.h>

#include "simulator.h"

typedef struct area {
    struct area *next;
    char *start;
    size_t nbytes;
    uint64_t *passed; /* for each stream, what must be done there; see sim_stream_positions */
} area;

static area *freed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void drop(area **link) {
    area *it = *link;
    *link = it->next;
    free(it->passed);
    free(it);
}

void sim_freed(void *start, size_t nbytes) {
    area *it = malloc(sizeof *it);
    *it = (area){NULL, start, nbytes, sim_stream_positions()};
    pthread_mutex_lock(&lock);
    it->next = freed;
    freed = it;
    pthread_mutex_unlock(&lock);
}

static void poison(void *argument) {
    area *it = argument;
    sim_poison(it->start, it->nbytes);
    free(it);
}

void sim_given(aclrtStream stream, void *start, size_t nbytes) {
    char *first = start, *past = first + nbytes;
    pthread_mutex_lock(&lock);
    for (area **link = &freed; *link;) {
        if ((*link)->start < past && (*link)->start + (*link)->nbytes > first) drop(link);
        else link = &(*link)->next;
    }
    pthread_mutex_unlock(&lock);
    area *it = malloc(sizeof *it);
    *it = (area){NULL, start, nbytes, NULL};
    sim_enqueue(stream, poison, it);
}

/* Called where the host has waited; the lock keeps a block from being given out meanwhile. */
void sim_scrub(void) {
    pthread_mutex_lock(&lock);
    for (area **link = &freed; *link;) {
        if (!sim_streams_passed((*link)->passed)) {
            link = &(*link)->next;
            continue;
        }
        sim_poison((*link)->start, (*link)->nbytes);
        drop(link);
    }
    pthread_mutex_unlock(&lock);
}

/* Memory that goes back to the driver is poisoned and unmapped there. */
void sim_returned(void *start, size_t nbytes) {
    char *first = start, *past = first + nbytes;
    pthread_mutex_lock(&lock);
    for (area **link = &freed; *link;) {
        if ((*link)->start >= first && (*link)->start < past) drop(link);
        else link = &(*link)->next;
    }
    pthread_mutex_unlock(&lock);
}
