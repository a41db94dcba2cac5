/* Devices, contexts, versions and errors. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simulator.h"

static _Thread_local int current_device = 0;
static _Thread_local char last_error[512];
static int contexts[DEVICES]; /* their addresses are the primary contexts */

int sim_current_device(void) { return current_device; }

aclError sim_fail(aclError code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return code;
}

const char *aclGetRecentErrMsg(void) { return last_error; }

aclError aclrtSetDevice(int32_t device) {
    if (device < 0 || device >= DEVICES)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "no device %d: the simulator has %d", device, DEVICES);
    current_device = device;
    return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t *device) {
    *device = current_device;
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceCount(uint32_t *count) {
    const char *asked = getenv("NPU_SIM_DEVICES"); /* 0: a driver, but no device */
    *count = asked ? (uint32_t)atoi(asked) : DEVICES;
    return ACL_SUCCESS;
}

const char *aclrtGetSocName(void) {
    const char *asked = getenv("NPU_SIM_SOC"); /* Ascend910A has saturation and the overflow register by default */
    return asked ? asked : "Ascend910B1";
}

aclError aclrtCreateContext(aclrtContext *context, int32_t device) {
    *context = &contexts[device];
    return aclrtSetDevice(device);
}

aclError aclrtGetCurrentContext(aclrtContext *context) {
    *context = &contexts[current_device];
    return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
    return aclrtSetDevice((int32_t)((int *)context - contexts));
}

aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) {
    (void)device;
    if (flags) *flags = 0;
    *active = 1;
    return ACL_SUCCESS;
}

aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer) {
    *can = device != peer;
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceInfo(uint32_t device, aclrtDevAttr attribute, int64_t *value) {
    (void)device, (void)attribute;
    *value = 24; /* cores */
    return ACL_SUCCESS;
}

aclError aclrtDeviceGetUuid(int32_t device, aclrtUuid *uuid) {
    memset(uuid, 0, sizeof *uuid);
    snprintf(uuid->bytes, sizeof uuid->bytes, "simulated-%d", device);
    return ACL_SUCCESS;
}

aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion *version) {
    (void)name;
    memset(version, 0, sizeof *version);
    strcpy(version->version, "8.5.0");
    strcpy(version->majorVersion, "8");
    strcpy(version->minorVersion, "5");
    strcpy(version->releaseVersion, "0");
    strcpy(version->patchVersion, "0");
    return ACL_SUCCESS;
}

aclError aclsysGetVersionStr(char *package, char *version) {
    (void)package;
    strcpy(version, "8.5.0");
    return ACL_SUCCESS;
}

/* A 910B has infinities and NaN; a 910A only saturates. */
aclError aclGetCannAttribute(aclCannAttr attribute, int32_t *available) {
    (void)attribute;
    *available = strncmp(aclrtGetSocName(), "Ascend910A", 10) != 0;
    return ACL_SUCCESS;
}

static int64_t system_parameters[16]; /* deterministic, debug switches: remembered as set */

aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
    if ((unsigned)option < 16) system_parameters[option] = value;
    return ACL_SUCCESS;
}

aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t *value) {
    *value = (unsigned)option < 16 ? system_parameters[option] : 0;
    return ACL_SUCCESS;
}

size_t aclGetCompileoptSize(int option) {
    (void)option;
    return 256;
}

aclError aclGetCompileopt(int option, char *value, size_t length) {
    (void)option;
    snprintf(value, length, "disable");
    return ACL_SUCCESS;
}
