/* Events: marks in a stream that other streams and the host wait for. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "simulator.h"

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, reached; /* how often it was recorded, and which of those records its stream has reached */
    uint64_t reached_ns;
    int users; /* the handle and the tasks that wait in streams */
} event;

typedef struct {
    event *event;
    uint64_t record;
} mark;

static void drop(event *it) {
    pthread_mutex_lock(&it->lock);
    bool last = --it->users == 0;
    pthread_mutex_unlock(&it->lock);
    if (last) free(it);
}

static void reach(void *argument) {
    mark *at = argument;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&at->event->lock);
    if (at->event->reached < at->record) at->event->reached = at->record;
    at->event->reached_ns = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
    pthread_cond_broadcast(&at->event->changed);
    pthread_mutex_unlock(&at->event->lock);
    drop(at->event);
    free(at);
}

static void await(void *argument) {
    mark *at = argument;
    pthread_mutex_lock(&at->event->lock);
    while (at->event->reached < at->record) pthread_cond_wait(&at->event->changed, &at->event->lock);
    pthread_mutex_unlock(&at->event->lock);
    drop(at->event);
    free(at);
}

static void enqueue(event *it, aclrtStream stream, sim_task task, bool records) {
    mark *at = malloc(sizeof *at);
    pthread_mutex_lock(&it->lock);
    it->users++;
    if (records) it->recorded++;
    *at = (mark){it, it->recorded};
    pthread_mutex_unlock(&it->lock);
    sim_enqueue(stream, task, at);
}

aclError aclrtCreateEvent(aclrtEvent *handle) {
    event *it = calloc(1, sizeof *it);
    pthread_mutex_init(&it->lock, NULL);
    pthread_cond_init(&it->changed, NULL);
    it->users = 1;
    *handle = it;
    return ACL_SUCCESS;
}

aclError aclrtCreateEventWithFlag(aclrtEvent *handle, uint32_t flags) {
    (void)flags;
    return aclrtCreateEvent(handle);
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *handle, uint32_t flags) {
    (void)flags;
    return aclrtCreateEvent(handle);
}

aclError aclrtDestroyEvent(aclrtEvent handle) {
    drop(handle);
    return ACL_SUCCESS;
}

aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream) {
    enqueue(handle, stream, reach, true);
    return ACL_SUCCESS;
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent handle) {
    enqueue(handle, stream, await, false);
    return ACL_SUCCESS;
}

aclError aclrtResetEvent(aclrtEvent handle, aclrtStream stream) {
    (void)handle, (void)stream;
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeEvent(aclrtEvent handle) {
    event *it = handle;
    sim_count("aclrtSynchronizeEvent", 0);
    pthread_mutex_lock(&it->lock);
    while (it->reached < it->recorded) pthread_cond_wait(&it->changed, &it->lock);
    pthread_mutex_unlock(&it->lock);
    return ACL_SUCCESS;
}

static bool is_reached(event *it) {
    pthread_mutex_lock(&it->lock);
    bool reached = it->reached == it->recorded;
    pthread_mutex_unlock(&it->lock);
    return reached;
}

aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus *status) {
    *status = is_reached(handle) ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

aclError aclQueryEventRecordedStatus(aclrtEvent handle, aclrtEventRecordedStatus *status) {
    return aclrtQueryEventStatus(handle, status);
}

aclError aclrtQueryEventWaitStatus(aclrtEvent handle, aclrtEventWaitStatus *status) {
    *status = is_reached(handle) ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float *ms, aclrtEvent start, aclrtEvent end) {
    *ms = (float)((double)((event *)end)->reached_ns - (double)((event *)start)->reached_ns) / 1e6f;
    return ACL_SUCCESS;
}

aclError aclrtEventGetTimestamp(aclrtEvent handle, uint64_t *timestamp) {
    *timestamp = ((event *)handle)->reached_ns / 1000;
    return ACL_SUCCESS;
}
