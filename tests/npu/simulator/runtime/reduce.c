/* Reductions of arrays; half precision is added up in float32, as devices do. */
#include <stdlib.h>
#include <string.h>

#include "collectives.h"

enum { INT8, INT16, INT32, FP16, FP32, INT64, UINT64, UINT8, UINT16, UINT32, FP64, BF16 };

size_t type_nbytes(HcclDataType type) {
    static const size_t nbytes[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2};
    return type >= 0 && type <= BF16 ? nbytes[type] : 1; /* the kinds of float8 are moved, never reduced */
}

HcclDataType wide_type(HcclDataType type) { return type == FP16 || type == BF16 ? FP32 : type; }

#define EACH(C, EXPRESSION)                                   \
    {                                                         \
        C *a = total;                                         \
        const C *b = more;                                    \
        for (uint64_t i = 0; i < count; i++) a[i] = EXPRESSION; \
        return;                                               \
    }
#define BY_OP(C)                                                        \
    switch (op) {                                                       \
        case HCCL_REDUCE_SUM: EACH(C, a[i] + b[i])                      \
        case HCCL_REDUCE_PROD: EACH(C, a[i] * b[i])                     \
        case HCCL_REDUCE_MAX: EACH(C, a[i] > b[i] || a[i] != a[i] ? a[i] : b[i]) \
        default: EACH(C, a[i] < b[i] || a[i] != a[i] ? a[i] : b[i])     \
    }

void reduce_into(void *total, const void *more, uint64_t count, HcclDataType type, HcclReduceOp op) {
    switch (type) {
        case INT8: BY_OP(int8_t)
        case INT16: BY_OP(int16_t)
        case INT32: BY_OP(int32_t)
        case FP32: BY_OP(float)
        case INT64: BY_OP(int64_t)
        case UINT64: BY_OP(uint64_t)
        case UINT8: BY_OP(uint8_t)
        case UINT16: BY_OP(uint16_t)
        case UINT32: BY_OP(uint32_t)
        case FP64: BY_OP(double)
    }
}

static float from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (value != value) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void *widened(const void *values, uint64_t count, HcclDataType type) {
    void *made = malloc(count * type_nbytes(wide_type(type)) + 1);
    if (type == FP16)
        for (uint64_t i = 0; i < count; i++) ((float *)made)[i] = (float)((const _Float16 *)values)[i];
    else if (type == BF16)
        for (uint64_t i = 0; i < count; i++) ((float *)made)[i] = from_bf16(((const uint16_t *)values)[i]);
    else memcpy(made, values, count * type_nbytes(type));
    return made;
}

void narrow_into(void *to, const void *wide, uint64_t count, HcclDataType type) {
    if (type == FP16)
        for (uint64_t i = 0; i < count; i++) ((_Float16 *)to)[i] = (_Float16)((const float *)wide)[i];
    else if (type == BF16)
        for (uint64_t i = 0; i < count; i++) ((uint16_t *)to)[i] = to_bf16(((const float *)wide)[i]);
    else memcpy(to, wide, count * type_nbytes(type));
}
