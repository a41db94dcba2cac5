/* What the files of the simulated Ascend runtime share. The functions that programs call are those of the real headers
 * (acl/acl_rt.h, hccl/hccl.h, in torch_npu's wheel); those named sim_* are ours.
 *
 * Theory of operation
 *   Device memory is memory of this process that holds NaN patterns until something is written. A stream is a queue
 *   of tasks with a thread that runs them in order; nothing else orders tasks of two streams but events. A task sees
 *   memory only through the pointers it was given, never keeps it alive: as on a device, who frees memory too early
 *   reads what came after.
 */
#ifndef SIMULATOR_H
#define SIMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "acl/acl.h"
#include "acl/acl_rt.h"

#define DEVICES 2
#define DEVICE_MEMORY_BYTES (4ull << 30) /* of each device */
#define POISON 0x7ff1 /* NaN as float64 (signalling), float32, bfloat16 and float16; no small integer, no bool */

typedef struct sim_stream sim_stream;
typedef void (*sim_task)(void *argument);

/* device.c */
int sim_current_device(void);
aclError sim_fail(aclError code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* memory.c */
void sim_poison(void *start, size_t nbytes);
bool sim_is_device_memory(const void *pointer);
bool sim_is_pinned_memory(const void *pointer);

/* streams.c; `stream` may be NULL, the default stream of the current device */
sim_stream *sim_stream_of(aclrtStream stream);
void sim_enqueue(aclrtStream stream, sim_task run, void *argument);
void sim_stream_failed(const char *format, ...) __attribute__((format(printf, 1, 2))); /* by a task, of its stream */
aclError sim_wait_for_stream(sim_stream *stream);
uint64_t *sim_stream_positions(void); /* how far each stream's queue reaches now; freed by the caller */
bool sim_streams_passed(const uint64_t *positions);

/* scrubbing.c */
void sim_scrub(void);
void sim_returned(void *start, size_t nbytes);

/* counting.c: `nbytes` is 0 for what copies nothing */
void sim_count(const char *what, size_t nbytes);

#endif
