/* Saturation mode and the overflow register of each device. Kernels report here what they produced (sim_note_overflow);
 * in saturation mode they clamp it. */
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

int sim_overflow_register(int device) { return __atomic_load_n(&registers[device], __ATOMIC_SEQ_CST); }
void sim_clear_overflow_register(int device) { __atomic_store_n(&registers[device], 0, __ATOMIC_SEQ_CST); }

aclError aclrtGetStreamOverflowSwitch(aclrtStream stream, uint32_t *flag) {
    (void)stream;
    *flag = 0;
    return ACL_SUCCESS;
}
