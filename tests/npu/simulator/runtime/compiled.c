/* Compiled operators: what torch_npu calls where it has no aclnn function, as when DDP pads what it gathers. There
 * are Fill and PadV3; no other may pass in silence. */
#include <stdlib.h>
#include <string.h>

#include "acl/acl_op_compiler.h"
#include "simulator.h"

#define MOST_DIMS 8

struct aclTensorDesc {
    aclDataType type;
    int dims;
    int64_t sizes[MOST_DIMS];
};

struct aclDataBuffer {
    void *data;
    size_t nbytes;
};

typedef struct {
    char *to;
    const char *value; /* on the device: read when the stream is there; else NULL */
    char known[16];    /* the value, if it was on the host */
    size_t nbytes, item;
    const char *inside; /* of PadV3: its input, of these sizes, which begins there in each dimension */
    int dims;
    int64_t sizes[MOST_DIMS], whole[MOST_DIMS], before[MOST_DIMS];
} fill;

aclDataBuffer *aclCreateDataBuffer(void *data, size_t size) {
    aclDataBuffer *it = malloc(sizeof *it);
    *it = (aclDataBuffer){data, size};
    return it;
}

aclError aclDestroyDataBuffer(const aclDataBuffer *it) {
    free((void *)it);
    return ACL_SUCCESS;
}

void *aclGetDataBufferAddr(const aclDataBuffer *it) { return it ? it->data : NULL; }

aclTensorDesc *aclCreateTensorDesc(aclDataType type, int dims, const int64_t *sizes, aclFormat format) {
    aclTensorDesc *it = calloc(1, sizeof *it);
    (void)format;
    it->type = type;
    it->dims = dims < 0 || dims > MOST_DIMS ? 0 : dims;
    for (int i = 0; i < it->dims; i++) it->sizes[i] = sizes[i];
    return it;
}

void aclDestroyTensorDesc(const aclTensorDesc *it) { free((void *)it); }

/* Copy the rows of dimension `dim` and on. */
static void place(const fill *it, int dim, const char **from, char *to, size_t row) {
    if (dim == it->dims) {
        memcpy(to, *from, it->item);
        *from += it->item;
        return;
    }
    row /= (size_t)it->whole[dim];
    for (int64_t i = 0; i < it->sizes[dim]; i++)
        place(it, dim + 1, from, to + (size_t)(it->before[dim] + i) * row, row);
}

static void run(void *argument) {
    fill *it = argument;
    const char *value = it->value ? it->value : it->known;
    for (size_t at = 0; at + it->item <= it->nbytes; at += it->item) memcpy(it->to + at, value, it->item);
    const char *from = it->inside;
    if (from) place(it, 0, &from, it->to, it->nbytes);
    free(it);
}

/* Take the value that stands in `buffer` and fill `out` with it. */
static fill *new_fill(const aclDataBuffer *buffer, const aclDataBuffer *out) {
    fill *it = calloc(1, sizeof *it);
    *it = (fill){.to = out->data, .nbytes = out->nbytes, .item = buffer->nbytes};
    if (sim_is_device_memory(buffer->data)) it->value = buffer->data;
    else memcpy(it->known, buffer->data, it->item);
    return it;
}

/* Pads with a value: how much before and after each dimension is told in host memory, as int32 or int64. */
static bool set_paddings(fill *it, const aclTensorDesc *input, const aclDataBuffer *in, const aclTensorDesc *desc,
                         const aclDataBuffer *paddings) {
    if (sim_is_device_memory(paddings->data) || !input->dims || !in->nbytes) return false;
    it->inside = in->data;
    it->dims = input->dims;
    for (int i = 0; i < it->dims; i++) {
        int64_t ends[2];
        for (int end = 0; end < 2; end++)
            ends[end] = desc->type == ACL_INT32 ? ((int32_t *)paddings->data)[2 * i + end]
                                                : ((int64_t *)paddings->data)[2 * i + end];
        it->before[i] = ends[0];
        it->sizes[i] = input->sizes[i];
        it->whole[i] = input->sizes[i] + ends[0] + ends[1];
    }
    return true;
}

static aclError execute(const char *type, int inputs, aclTensorDesc *const *desc, aclDataBuffer *const *in, int outputs,
                        aclDataBuffer *const *out, aclrtStream stream) {
    bool fills = !strcmp(type, "Fill") && inputs == 2, pads = !strcmp(type, "PadV3") && inputs == 3;
    if ((fills || pads) && outputs == 1) {
        const aclDataBuffer *value = in[inputs - 1];
        fill *it = value->nbytes >= 1 && value->nbytes <= 16 ? new_fill(value, out[0]) : NULL;
        if (it && (fills || set_paddings(it, desc[0], in[0], desc[1], in[1]))) {
            sim_enqueue(stream, run, it);
            return ACL_SUCCESS;
        }
        free(it);
    }
    return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "the simulated device has no kernel for the operator %s", type);
}

aclError aclopCompileAndExecute(const char *type, int inputs, const aclTensorDesc *const in_desc[],
                                const aclDataBuffer *const in[], int outputs, const aclTensorDesc *const out_desc[],
                                aclDataBuffer *const out[], const aclopAttr *attributes, aclopEngineType engine,
                                aclopCompileType flag, const char *path, aclrtStream stream) {
    (void)out_desc, (void)attributes, (void)engine, (void)flag, (void)path;
    return execute(type, inputs, (aclTensorDesc *const *)in_desc, (aclDataBuffer *const *)in, outputs, out, stream);
}

aclError aclopCompileAndExecuteV2(const char *type, int inputs, aclTensorDesc *in_desc[], aclDataBuffer *in[],
                                  int outputs, aclTensorDesc *out_desc[], aclDataBuffer *out[], aclopAttr *attributes,
                                  aclopEngineType engine, aclopCompileType flag, const char *path, aclrtStream stream) {
    (void)out_desc, (void)attributes, (void)engine, (void)flag, (void)path;
    return execute(type, inputs, in_desc, in, outputs, out, stream);
}
