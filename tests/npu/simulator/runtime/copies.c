/* Copies and fills. What is in pageable memory of the host is not read or written later than the call: the real
 * runtime copies such memory through a buffer of its own, and waits for the stream where it writes there. */
#include <stdlib.h>
#include <string.h>

#include "simulator.h"

typedef struct {
    void *to;
    const void *from; /* NULL to fill */
    void *buffer;     /* freed afterwards */
    int value;
    size_t nbytes;
} copy;

static void run(void *argument) {
    copy *it = argument;
    if (it->from) memmove(it->to, it->from, it->nbytes);
    else memset(it->to, it->value, it->nbytes);
    free(it->buffer);
    free(it);
}

static void enqueue(copy what, aclrtStream stream) {
    copy *it = malloc(sizeof *it);
    *it = what;
    sim_enqueue(stream, run, it);
}

static const char *name_of(aclrtMemcpyKind kind, const void *to, const void *from) {
    bool to_device = sim_is_device_memory(to), from_device = sim_is_device_memory(from);
    (void)kind;
    if (to_device && from_device) return "device to device";
    return to_device ? "host to device" : from_device ? "device to host" : "host to host";
}

/* Does not wait for any stream: the host sees what is there now. */
aclError aclrtMemcpy(void *to, size_t most, const void *from, size_t nbytes, aclrtMemcpyKind kind) {
    if (nbytes > most) return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "copy of %zu bytes to %zu", nbytes, most);
    sim_count("aclrtMemcpy", nbytes);
    sim_count(name_of(kind, to, from), nbytes);
    memmove(to, from, nbytes);
    return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void *to, size_t most, const void *from, size_t nbytes, aclrtMemcpyKind kind,
                          aclrtStream stream) {
    if (nbytes > most) return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "copy of %zu bytes to %zu", nbytes, most);
    sim_count(name_of(kind, to, from), nbytes);
    bool from_pageable = !sim_is_device_memory(from) && !sim_is_pinned_memory(from);
    bool to_pageable = !sim_is_device_memory(to) && !sim_is_pinned_memory(to);
    void *buffer = NULL;
    if (from_pageable) {
        buffer = malloc(nbytes ? nbytes : 1);
        memcpy(buffer, from, nbytes);
        from = buffer;
    }
    enqueue((copy){to, from, buffer, 0, nbytes}, stream);
    if (!to_pageable) return ACL_SUCCESS;
    sim_count("copy to pageable memory", nbytes);
    return sim_wait_for_stream(sim_stream_of(stream));
}

aclError aclrtMemcpyBatchAsync(void **to, size_t *most, void **from, size_t *nbytes, size_t count,
                               aclrtMemcpyBatchAttr *attributes, size_t *indexes, size_t attribute_count,
                               size_t *failed, aclrtStream stream) {
    (void)attributes, (void)indexes, (void)attribute_count;
    for (size_t i = 0; i < count; i++) {
        aclError code = aclrtMemcpyAsync(to[i], most[i], from[i], nbytes[i], ACL_MEMCPY_DEFAULT, stream);
        if (code) {
            *failed = i;
            return code;
        }
    }
    return ACL_SUCCESS;
}

aclError aclrtMemset(void *to, size_t most, int32_t value, size_t nbytes) {
    if (nbytes > most) return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "fill of %zu bytes in %zu", nbytes, most);
    memset(to, value, nbytes);
    return ACL_SUCCESS;
}

aclError aclrtMemsetAsync(void *to, size_t most, int32_t value, size_t nbytes, aclrtStream stream) {
    if (nbytes > most) return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "fill of %zu bytes in %zu", nbytes, most);
    enqueue((copy){to, NULL, NULL, value, nbytes}, stream);
    return ACL_SUCCESS;
}
