/* Saturation mode and the overflow register of each device. Kernels report here what they produced (sim_note_overflow);
 * in saturation mode they clamp it. The register is read and cleared in a stream, after what was put there before. */
#include <stdlib.h>
#include <string.h>

#include "simulator.h"

static aclrtFloatOverflowMode modes[DEVICES] = {ACL_RT_OVERFLOW_MODE_INFNAN, ACL_RT_OVERFLOW_MODE_INFNAN};
static int registers[DEVICES];

int sim_is_saturating(int device) { return modes[device] == ACL_RT_OVERFLOW_MODE_SATURATION; }
void sim_note_overflow(int device) { __atomic_store_n(&registers[device], 1, __ATOMIC_SEQ_CST); }

aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode mode) {
    modes[sim_current_device()] = mode;
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceSatMode(aclrtFloatOverflowMode *mode) {
    *mode = modes[sim_current_device()];
    return ACL_SUCCESS;
}

typedef struct {
    int device;
    int32_t *to;   /* eight numbers; NULL: clear the register */
    bool as_float; /* float32, not int32 */
} status_task;

static void run(void *argument) {
    status_task *task = argument;
    if (task->to) {
        int is_set = __atomic_load_n(&registers[task->device], __ATOMIC_SEQ_CST);
        memset(task->to, 0, 8 * sizeof *task->to);
        if (task->as_float)
            *(float *)task->to = (float)is_set;
        else
            *task->to = is_set;
    } else {
        __atomic_store_n(&registers[task->device], 0, __ATOMIC_SEQ_CST);
    }
    free(task);
}

static void put(aclrtStream stream, status_task task) {
    status_task *kept = malloc(sizeof task);
    *kept = task;
    sim_enqueue(stream, run, kept);
}

void sim_read_overflow_register(aclrtStream stream, int device, void *to, int as_float) {
    put(stream, (status_task){device, to, as_float});
}

void sim_clear_overflow_register(aclrtStream stream, int device) { put(stream, (status_task){device, NULL, false}); }

aclError aclrtGetStreamOverflowSwitch(aclrtStream stream, uint32_t *flag) {
    (void)stream;
    *flag = 0;
    return ACL_SUCCESS;
}
