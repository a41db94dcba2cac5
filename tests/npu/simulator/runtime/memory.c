/* Memory of the devices and pinned memory of the host. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "simulator.h"

#define ALIGNMENT 512

typedef struct range {
    struct range *next;
    char *start;
    size_t nbytes;
    int device; /* -1 for pinned memory of the host */
} range;

static range *ranges;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t used_bytes[DEVICES];
static size_t limit_bytes[DEVICES] = {DEVICE_MEMORY_BYTES, DEVICE_MEMORY_BYTES};

void sim_poison(void *start, size_t nbytes) {
    uint16_t *words = start;
    for (size_t i = 0; i < nbytes / 2; i++) words[i] = POISON;
    if (nbytes % 2) ((unsigned char *)start)[nbytes - 1] = POISON & 0xff;
}

/* Let a device run out of memory at so many bytes; 0 sets the limit back. */
void sim_set_memory_limit(int device, size_t nbytes) {
    limit_bytes[device] = nbytes ? nbytes : DEVICE_MEMORY_BYTES;
}

static bool take(int device, size_t nbytes) {
    pthread_mutex_lock(&lock);
    bool fits = used_bytes[device] + nbytes <= limit_bytes[device];
    if (fits) used_bytes[device] += nbytes;
    pthread_mutex_unlock(&lock);
    return fits;
}

static void remember(void *start, size_t nbytes, int device) {
    range *added = malloc(sizeof *added);
    pthread_mutex_lock(&lock);
    *added = (range){ranges, start, nbytes, device};
    ranges = added;
    pthread_mutex_unlock(&lock);
}

static size_t forget(void *start, int *device) {
    pthread_mutex_lock(&lock);
    range **link = &ranges;
    while (*link && (*link)->start != start) link = &(*link)->next;
    range *found = *link;
    size_t nbytes = 0;
    if (found) {
        *link = found->next;
        nbytes = found->nbytes;
        *device = found->device;
        if (found->device >= 0) used_bytes[found->device] -= nbytes;
        free(found);
    }
    pthread_mutex_unlock(&lock);
    return nbytes;
}

static int device_of(const void *pointer) {
    int device = -2;
    pthread_mutex_lock(&lock);
    for (range *r = ranges; r && device == -2; r = r->next)
        if ((char *)pointer >= r->start && (char *)pointer < r->start + r->nbytes) device = r->device;
    pthread_mutex_unlock(&lock);
    return device;
}

bool sim_is_device_memory(const void *pointer) { return device_of(pointer) >= 0; }
bool sim_is_pinned_memory(const void *pointer) { return device_of(pointer) == -1; }

aclError aclrtMalloc(void **pointer, size_t nbytes, aclrtMemMallocPolicy policy) {
    (void)policy;
    int device = sim_current_device();
    size_t rounded = nbytes ? (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
    if (!take(device, rounded))
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "device %d has no %zu bytes left", device, nbytes);
    *pointer = aligned_alloc(ALIGNMENT, rounded);
    sim_poison(*pointer, rounded);
    remember(*pointer, rounded, device);
    return ACL_SUCCESS;
}

aclError aclrtMallocAlign32(void **pointer, size_t nbytes, aclrtMemMallocPolicy policy) {
    return aclrtMalloc(pointer, nbytes, policy);
}

aclError aclrtFree(void *pointer) {
    int device = 0;
    size_t nbytes = forget(pointer, &device);
    if (!nbytes) return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "%p was not allocated on a device", pointer);
    sim_returned(pointer, nbytes);
    sim_poison(pointer, nbytes);
    free(pointer);
    return ACL_SUCCESS;
}

aclError aclrtMallocHost(void **pointer, size_t nbytes) {
    if (posix_memalign(pointer, ALIGNMENT, nbytes ? nbytes : 1)) return ACL_ERROR_RT_MEMORY_ALLOCATION;
    sim_poison(*pointer, nbytes);
    remember(*pointer, nbytes ? nbytes : 1, -1);
    return ACL_SUCCESS;
}

aclError aclrtMallocHostWithCfg(void **pointer, uint64_t nbytes, aclrtMallocConfig *config) {
    (void)config;
    return aclrtMallocHost(pointer, nbytes);
}

aclError aclrtFreeHost(void *pointer) {
    int device;
    forget(pointer, &device);
    free(pointer);
    return ACL_SUCCESS;
}

aclError aclrtHostRegister(void *pointer, uint64_t nbytes, aclrtHostRegisterType type, void **on_device) {
    (void)type;
    remember(pointer, nbytes, -1);
    if (on_device) *on_device = pointer;
    return ACL_SUCCESS;
}

aclError aclrtHostRegisterV2(void *pointer, uint64_t nbytes, uint32_t flags) {
    (void)flags;
    remember(pointer, nbytes, -1);
    return ACL_SUCCESS;
}

aclError aclrtHostUnregister(void *pointer) {
    int device;
    forget(pointer, &device);
    return ACL_SUCCESS;
}

aclError aclrtPointerGetAttributes(const void *pointer, aclrtPtrAttributes *attributes) {
    int device = device_of(pointer);
    memset(attributes, 0, sizeof *attributes);
    attributes->location.id = device > 0 ? (uint32_t)device : 0;
    attributes->location.type = device >= 0    ? ACL_MEM_LOCATION_TYPE_DEVICE
                                : device == -1 ? ACL_MEM_LOCATION_TYPE_HOST
                                               : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    return ACL_SUCCESS;
}

aclError aclrtGetMemInfo(aclrtMemAttr kind, size_t *free_bytes, size_t *total_bytes) {
    (void)kind;
    int device = sim_current_device();
    *total_bytes = limit_bytes[device];
    *free_bytes = used_bytes[device] < limit_bytes[device] ? limit_bytes[device] - used_bytes[device] : 0;
    return ACL_SUCCESS;
}

/* Expandable segments: addresses are reserved once, memory comes and goes below them. */

aclError aclrtReserveMemAddress(void **address, size_t nbytes, size_t alignment, void *wanted, uint64_t flags) {
    (void)alignment, (void)wanted, (void)flags;
    *address = mmap(NULL, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *address == MAP_FAILED ? ACL_ERROR_RT_MEMORY_ALLOCATION : ACL_SUCCESS;
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t nbytes, const aclrtPhysicalMemProp *kind,
                             uint64_t flags) {
    (void)flags;
    int device = (int)kind->location.id;
    if (!take(device, nbytes))
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "device %d has no %zu bytes left", device, nbytes);
    range *piece = malloc(sizeof *piece);
    *piece = (range){NULL, NULL, nbytes, device};
    *handle = piece;
    return ACL_SUCCESS;
}

aclError aclrtMapMem(void *address, size_t nbytes, size_t offset, aclrtDrvMemHandle handle, uint64_t flags) {
    (void)offset, (void)flags;
    if (mprotect(address, nbytes, PROT_READ | PROT_WRITE))
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "cannot map %zu bytes at %p: %s", nbytes, address, strerror(errno));
    sim_poison(address, nbytes);
    int device = ((range *)handle)->device;
    pthread_mutex_lock(&lock);
    used_bytes[device] += nbytes; /* forget() gives it back; aclrtFreePhysical gives back what was taken there */
    pthread_mutex_unlock(&lock);
    remember(address, nbytes, device);
    return ACL_SUCCESS;
}

aclError aclrtUnmapMem(void *address) {
    int device;
    size_t nbytes = forget(address, &device);
    sim_returned(address, nbytes);
    madvise(address, nbytes, MADV_DONTNEED);
    mprotect(address, nbytes, PROT_NONE); /* who still reads here ends the process, and should */
    return ACL_SUCCESS;
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
    range *piece = handle;
    pthread_mutex_lock(&lock);
    used_bytes[piece->device] -= piece->nbytes;
    pthread_mutex_unlock(&lock);
    free(piece);
    return ACL_SUCCESS;
}

aclError aclrtReleaseMemAddress(void *address) {
    (void)address; /* its length is not known here; nothing but addresses is lost */
    return ACL_SUCCESS;
}
