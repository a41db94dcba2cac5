/* Counts of what makes the host wait or moves data between host and device. Who called is for the observer to find:
 * it runs on the calling thread, within the call. */
#include "simulator.h"

typedef void (*sim_observer)(const char *what, size_t nbytes);

static sim_observer observer;

void sim_observe(sim_observer wanted) { observer = wanted; }

void sim_count(const char *what, size_t nbytes) {
    sim_observer called = observer;
    if (called) called(what, nbytes);
}
