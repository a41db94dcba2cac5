/* A group of processes that exchange messages over loopback. The real hccl.h is C++: its types are said here again. */
#ifndef COLLECTIVES_H
#define COLLECTIVES_H

#include "simulator.h"

enum { HCCL_SUCCESS = 0, HCCL_E_PARA = 1, HCCL_E_NOT_SUPPORT = 5, HCCL_E_TCP_CONNECT = 11 };
enum { HCCL_REDUCE_SUM = 0, HCCL_REDUCE_PROD, HCCL_REDUCE_MAX, HCCL_REDUCE_MIN };
typedef int HcclResult, HcclDataType, HcclReduceOp;
typedef struct {
    char internal[4108];
} HcclRootInfo;
typedef struct {
    int send_or_receive; /* 0 sends */
    void *buffer;
    uint64_t count;
    HcclDataType type;
    uint32_t peer;
} HcclSendRecvItem;

typedef struct group group;
typedef group *HcclComm;

/* group.c: messages between two ranks arrive in order; sending never waits for the receiver */
uint32_t group_rank(const group *it);
uint32_t group_size(const group *it);
const char *group_name(const group *it);
void group_send(group *it, uint32_t peer, const void *bytes, size_t nbytes);
void group_receive(group *it, uint32_t peer, void *bytes, size_t nbytes);

/* reduce.c */
size_t type_nbytes(HcclDataType type);
void reduce_into(void *total, const void *more, uint64_t count, HcclDataType type, HcclReduceOp op);
void *widened(const void *values, uint64_t count, HcclDataType type); /* freed by the caller */
HcclDataType wide_type(HcclDataType type);
void narrow_into(void *to, const void *wide, uint64_t count, HcclDataType type);

#endif
