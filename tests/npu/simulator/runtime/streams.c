/* Streams: queues with a thread each.
 *
 * sim_set_delays makes each stream wait now and then before a task, by its own random numbers, so that what is not
 * ordered by events comes in another order than it was issued. sim_hold stops a stream until sim_release.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "simulator.h"

#define GATHERING_NS 300000

typedef struct task {
    struct task *next;
    sim_task run;
    void *argument;
} task;

struct sim_stream {
    struct sim_stream *next; /* of all streams */
    int device, id;
    bool has_thread, held, closed, idle;
    int waiting; /* threads that wait for it */
    uint64_t enqueued, completed, random;
    task *first, *last;
    char error[256]; /* of the first task that failed; "" if none has */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static sim_stream *streams;
static sim_stream *default_streams[DEVICES];
static int stream_count;
static uint64_t delay_seed;
static unsigned most_delay_us;
static _Thread_local sim_stream *running; /* the stream whose thread this is */

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t x = *state += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static void delay(sim_stream *stream) {
    if (!most_delay_us) return;
    uint64_t chance = next_random(&stream->random);
    if (chance % 4) return; /* three of four tasks run at once */
    unsigned us = (unsigned)(chance / 4 % most_delay_us);
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000L}, NULL);
}

/* Sleep until there is a task; then a moment more unless somebody waits, so that the host and this thread do not take
 * turns for each task: on few cores that costs more than the kernels. */
static void sleep_until_wanted(sim_stream *stream) {
    stream->idle = true;
    pthread_cond_wait(&stream->changed, &stream->lock);
    stream->idle = false;
    if (stream->waiting || stream->closed) return;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += GATHERING_NS;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&stream->changed, &stream->lock, &until);
}

static void *work(void *argument) {
    sim_stream *stream = running = argument;
    pthread_mutex_lock(&stream->lock);
    while (true) {
        while ((!stream->first || stream->held) && !stream->closed) sleep_until_wanted(stream);
        if (stream->closed) break;
        task *next = stream->first;
        pthread_mutex_unlock(&stream->lock);
        delay(stream);
        next->run(next->argument);
        pthread_mutex_lock(&stream->lock);
        stream->first = next->next;
        if (!stream->first) stream->last = NULL;
        free(next);
        stream->completed++;
        if (stream->waiting) pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/* Threads must not run on into the end of the process, which takes their memory and libraries away. */
static void close_all(void) {
    for (sim_stream *stream = streams; stream; stream = stream->next) {
        pthread_mutex_lock(&stream->lock);
        stream->closed = true;
        bool has_thread = stream->has_thread;
        pthread_cond_broadcast(&stream->changed);
        pthread_mutex_unlock(&stream->lock);
        if (has_thread && pthread_tryjoin_np(stream->thread, NULL)) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 2;
            pthread_timedjoin_np(stream->thread, NULL, &until);
        }
    }
}

static sim_stream *new_stream(int device) {
    sim_stream *stream = calloc(1, sizeof *stream);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->device = device;
    pthread_mutex_lock(&streams_lock);
    if (!streams) atexit(close_all);
    stream->id = stream_count++;
    stream->random = delay_seed + 1000003ull * (uint64_t)stream->id;
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&streams_lock);
    return stream;
}

sim_stream *sim_stream_of(aclrtStream stream) {
    if (stream) return stream;
    int device = sim_current_device();
    if (!default_streams[device]) default_streams[device] = new_stream(device);
    return default_streams[device];
}

void sim_enqueue(aclrtStream handle, sim_task run, void *argument) {
    sim_stream *stream = sim_stream_of(handle);
    task *added = malloc(sizeof *added);
    *added = (task){NULL, run, argument};
    pthread_mutex_lock(&stream->lock);
    if (stream->last) stream->last->next = added;
    else stream->first = added;
    stream->last = added;
    stream->enqueued++;
    if (!stream->has_thread) {
        stream->has_thread = true;
        pthread_create(&stream->thread, NULL, work, stream);
    }
    if (stream->idle) pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

void sim_stream_failed(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&running->lock);
    if (!running->error[0]) {
        vsnprintf(running->error, sizeof running->error, format, arguments);
        fprintf(stderr, "simulated device: a kernel failed: %s\n", running->error);
    }
    pthread_mutex_unlock(&running->lock);
    va_end(arguments);
}

aclError sim_wait_for_stream(sim_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    uint64_t until = stream->enqueued;
    stream->waiting++;
    if (stream->completed < until) pthread_cond_broadcast(&stream->changed);
    while (stream->completed < until && !stream->closed) pthread_cond_wait(&stream->changed, &stream->lock);
    stream->waiting--;
    char error[sizeof stream->error];
    memcpy(error, stream->error, sizeof error);
    stream->error[0] = 0;
    pthread_mutex_unlock(&stream->lock);
    sim_scrub();
    return error[0] ? sim_fail(ACL_ERROR_RT_AICORE_EXCEPTION, "%s", error) : ACL_SUCCESS;
}

uint64_t *sim_stream_positions(void) {
    pthread_mutex_lock(&streams_lock);
    uint64_t *positions = calloc((size_t)stream_count + 1, sizeof *positions);
    positions[0] = (uint64_t)stream_count;
    for (sim_stream *stream = streams; stream; stream = stream->next) {
        pthread_mutex_lock(&stream->lock);
        positions[1 + stream->id] = stream->enqueued;
        pthread_mutex_unlock(&stream->lock);
    }
    pthread_mutex_unlock(&streams_lock);
    return positions;
}

bool sim_streams_passed(const uint64_t *positions) {
    bool passed = true;
    pthread_mutex_lock(&streams_lock);
    for (sim_stream *stream = streams; stream && passed; stream = stream->next) {
        pthread_mutex_lock(&stream->lock);
        if ((uint64_t)stream->id < positions[0]) passed = stream->completed >= positions[1 + stream->id];
        pthread_mutex_unlock(&stream->lock);
    }
    pthread_mutex_unlock(&streams_lock);
    return passed;
}

void sim_set_delays(uint64_t seed, unsigned most_us) {
    pthread_mutex_lock(&streams_lock);
    delay_seed = seed;
    most_delay_us = most_us;
    for (sim_stream *stream = streams; stream; stream = stream->next)
        stream->random = seed + 1000003ull * (uint64_t)stream->id;
    pthread_mutex_unlock(&streams_lock);
}

static void set_held(sim_stream *stream, bool held) {
    pthread_mutex_lock(&stream->lock);
    stream->held = held;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

void sim_hold(aclrtStream stream) { set_held(sim_stream_of(stream), true); }
void sim_release(aclrtStream stream) { set_held(sim_stream_of(stream), false); }

/* What programs call. */

aclError aclrtCreateStream(aclrtStream *stream) {
    *stream = new_stream(sim_current_device());
    return ACL_SUCCESS;
}

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flags) {
    (void)priority, (void)flags;
    return aclrtCreateStream(stream);
}

aclError aclrtDestroyStream(aclrtStream stream) { /* kept: the caching allocator may still know its address */
    return sim_wait_for_stream(sim_stream_of(stream));
}

aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }

aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus *status) {
    sim_stream *stream = sim_stream_of(handle);
    pthread_mutex_lock(&stream->lock);
    *status = stream->completed == stream->enqueued ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    pthread_mutex_unlock(&stream->lock);
    return ACL_SUCCESS;
}

aclError aclrtStreamGetId(aclrtStream stream, int32_t *id) {
    *id = sim_stream_of(stream)->id;
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
    sim_count("aclrtSynchronizeStream", 0);
    return sim_wait_for_stream(sim_stream_of(stream));
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t ms) {
    (void)ms;
    return aclrtSynchronizeStream(stream);
}

aclError aclrtSynchronizeDevice(void) {
    sim_count("aclrtSynchronizeDevice", 0);
    aclError code = ACL_SUCCESS;
    for (sim_stream *stream = streams; stream; stream = stream->next)
        if (stream->device == sim_current_device()) {
            aclError its = sim_wait_for_stream(stream);
            if (its) code = its;
        }
    return code;
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t ms) {
    (void)ms;
    return aclrtSynchronizeDevice();
}

aclError aclrtLaunchCallback(aclrtCallback call, void *argument, aclrtCallbackBlockType type, aclrtStream stream) {
    (void)type;
    sim_enqueue(stream, call, argument);
    return ACL_SUCCESS;
}

aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc call, void *argument) {
    sim_enqueue(stream, call, argument);
    return ACL_SUCCESS;
}
