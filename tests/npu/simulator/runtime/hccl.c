/* Collectives: tasks in a stream that send what others need, and wait for what they send. All is made of one exchange:
 * so many bytes from some place for each rank, so many bytes to some place of each. */
#include <stdlib.h>
#include <string.h>

#include "collectives.h"

typedef struct {
    group *in;
    const char *from;
    char *to;
    size_t *send_nbytes, *send_start, *receive_nbytes, *receive_start; /* for each rank */
    /* The pieces received are reduced into `to`; count is 0 where they are kept apart. */
    uint64_t count;
    HcclDataType type;
    HcclReduceOp op;
} exchange;

static exchange *new_exchange(group *in, const void *from, void *to) {
    exchange *it = calloc(1, sizeof *it);
    size_t *table = calloc(4ul * group_size(in), sizeof *table);
    *it = (exchange){.in = in, .from = from, .to = to, .send_nbytes = table};
    it->send_start = table + group_size(in);
    it->receive_nbytes = it->send_start + group_size(in);
    it->receive_start = it->receive_nbytes + group_size(in);
    return it;
}

static void reduce_pieces(exchange *it, const char *pieces) {
    size_t nbytes = it->count * type_nbytes(it->type);
    void *total = widened(pieces, it->count, it->type);
    for (uint32_t rank = 1; rank < group_size(it->in); rank++) { /* in the order of ranks: the same bits everywhere */
        void *more = widened(pieces + rank * nbytes, it->count, it->type);
        reduce_into(total, more, it->count, wide_type(it->type), it->op);
        free(more);
    }
    narrow_into(it->to, total, it->count, it->type);
    free(total);
}

static void run(void *argument) {
    exchange *it = argument;
    uint32_t size = group_size(it->in), mine = group_rank(it->in);
    char *pieces = it->count ? malloc(size * it->count * type_nbytes(it->type)) : it->to;
    for (uint32_t rank = 0; rank < size; rank++)
        if (rank != mine && it->send_nbytes[rank])
            group_send(it->in, rank, it->from + it->send_start[rank], it->send_nbytes[rank]);
    if (it->receive_nbytes[mine] && pieces + it->receive_start[mine] != it->from + it->send_start[mine])
        memmove(pieces + it->receive_start[mine], it->from + it->send_start[mine], it->receive_nbytes[mine]);
    for (uint32_t rank = 0; rank < size; rank++)
        if (rank != mine && it->receive_nbytes[rank])
            group_receive(it->in, rank, pieces + it->receive_start[rank], it->receive_nbytes[rank]);
    if (it->count) {
        reduce_pieces(it, pieces);
        free(pieces);
    }
    free(it->send_nbytes);
    free(it);
}

static HcclResult enqueue(exchange *it, aclrtStream stream) {
    sim_enqueue(stream, run, it);
    return HCCL_SUCCESS;
}

static HcclResult all_to_all(group *in, const void *from, void *to, size_t step_from, size_t step_to, size_t nbytes,
                             aclrtStream stream) {
    exchange *it = new_exchange(in, from, to);
    for (uint32_t rank = 0; rank < group_size(in); rank++) {
        it->send_nbytes[rank] = it->receive_nbytes[rank] = nbytes;
        it->send_start[rank] = rank * step_from;
        it->receive_start[rank] = rank * step_to;
    }
    return enqueue(it, stream);
}

HcclResult HcclAllGather(void *from, void *to, uint64_t count, HcclDataType type, HcclComm in, aclrtStream stream) {
    size_t nbytes = count * type_nbytes(type);
    return all_to_all(in, from, to, 0, nbytes, nbytes, stream);
}

HcclResult HcclAlltoAll(const void *from, uint64_t count, HcclDataType type, const void *to, uint64_t receive_count,
                        HcclDataType receive_type, HcclComm in, aclrtStream stream) {
    (void)receive_count, (void)receive_type;
    size_t nbytes = count * type_nbytes(type);
    return all_to_all(in, from, (void *)to, nbytes, nbytes, nbytes, stream);
}

HcclResult HcclAlltoAllV(const void *from, const void *send_counts, const void *send_starts, HcclDataType type,
                         const void *to, const void *receive_counts, const void *receive_starts,
                         HcclDataType receive_type, HcclComm in, aclrtStream stream) {
    exchange *it = new_exchange(in, from, (void *)to);
    for (uint32_t rank = 0; rank < group_size(in); rank++) {
        it->send_nbytes[rank] = ((const uint64_t *)send_counts)[rank] * type_nbytes(type);
        it->send_start[rank] = ((const uint64_t *)send_starts)[rank] * type_nbytes(type);
        it->receive_nbytes[rank] = ((const uint64_t *)receive_counts)[rank] * type_nbytes(receive_type);
        it->receive_start[rank] = ((const uint64_t *)receive_starts)[rank] * type_nbytes(receive_type);
    }
    return enqueue(it, stream);
}

static HcclResult reduce(group *in, const void *from, void *to, size_t step_from, uint64_t count, HcclDataType type,
                         HcclReduceOp op, uint32_t only, aclrtStream stream) {
    exchange *it = new_exchange(in, from, to);
    size_t nbytes = count * type_nbytes(type);
    bool receives = only == UINT32_MAX || only == group_rank(in);
    for (uint32_t rank = 0; rank < group_size(in); rank++) {
        it->send_start[rank] = rank * step_from;
        it->receive_start[rank] = rank * nbytes;
        if (only == UINT32_MAX || only == rank) it->send_nbytes[rank] = nbytes;
        if (receives) it->receive_nbytes[rank] = nbytes;
    }
    if (receives) it->count = count;
    it->type = type;
    it->op = op;
    return enqueue(it, stream);
}

static int to_skip = -1;

/* A fault to be planted: of the all-reduces that come, this one (0 is the next) brings nothing of the other ranks. */
void sim_skip_all_reduce(int number) { to_skip = number; }

static HcclResult keep_own(group *in, const void *from, void *to, size_t nbytes, aclrtStream stream) {
    exchange *it = new_exchange(in, from, to);
    it->send_nbytes[group_rank(in)] = it->receive_nbytes[group_rank(in)] = nbytes;
    return enqueue(it, stream);
}

HcclResult HcclAllReduce(void *from, void *to, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm in,
                         aclrtStream stream) {
    if (to_skip >= 0 && to_skip-- == 0) return keep_own(in, from, to, count * type_nbytes(type), stream);
    return reduce(in, from, to, 0, count, type, op, UINT32_MAX, stream);
}

HcclResult HcclReduce(void *from, void *to, uint64_t count, HcclDataType type, HcclReduceOp op, uint32_t root,
                      HcclComm in, aclrtStream stream) {
    return reduce(in, from, to, 0, count, type, op, root, stream);
}

HcclResult HcclReduceScatter(void *from, void *to, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm in,
                             aclrtStream stream) {
    return reduce(in, from, to, count * type_nbytes(type), count, type, op, UINT32_MAX, stream);
}

/* From one rank to others: `step` is 0 where all get the same. */
static HcclResult spread(group *in, const void *from, void *to, size_t step, size_t nbytes, uint32_t root,
                         aclrtStream stream) {
    exchange *it = new_exchange(in, from, to);
    it->receive_nbytes[root] = nbytes;
    if (group_rank(in) == root)
        for (uint32_t rank = 0; rank < group_size(in); rank++) {
            it->send_nbytes[rank] = nbytes;
            it->send_start[rank] = rank * step;
        }
    return enqueue(it, stream);
}

HcclResult HcclBroadcast(void *buffer, uint64_t count, HcclDataType type, uint32_t root, HcclComm in,
                         aclrtStream stream) {
    return spread(in, buffer, buffer, 0, count * type_nbytes(type), root, stream);
}

HcclResult HcclScatter(void *from, void *to, uint64_t count, HcclDataType type, uint32_t root, HcclComm in,
                       aclrtStream stream) {
    size_t nbytes = count * type_nbytes(type);
    return spread(in, from, to, nbytes, nbytes, root, stream);
}

HcclResult HcclSend(void *buffer, uint64_t count, HcclDataType type, uint32_t peer, HcclComm in, aclrtStream stream) {
    exchange *it = new_exchange(in, buffer, NULL);
    it->send_nbytes[peer] = count * type_nbytes(type);
    return enqueue(it, stream);
}

HcclResult HcclRecv(void *buffer, uint64_t count, HcclDataType type, uint32_t peer, HcclComm in, aclrtStream stream) {
    exchange *it = new_exchange(in, NULL, buffer);
    it->receive_nbytes[peer] = count * type_nbytes(type);
    return enqueue(it, stream);
}

HcclResult HcclBatchSendRecv(HcclSendRecvItem *items, uint32_t count, HcclComm in, aclrtStream stream) {
    for (int receiving = 0; receiving < 2; receiving++) /* all that is sent first: sending does not wait */
        for (uint32_t i = 0; i < count; i++) {
            HcclSendRecvItem *each = &items[i];
            if (each->send_or_receive != receiving) continue;
            (receiving ? HcclRecv : HcclSend)(each->buffer, each->count, each->type, each->peer, in, stream);
        }
    return HCCL_SUCCESS;
}

HcclResult HcclBarrier(HcclComm in, aclrtStream stream) {
    static char nothing[4096];
    return all_to_all(in, nothing, nothing, 0, 1, 1, stream);
}

HcclResult HcclGetRankSize(HcclComm in, uint32_t *size) {
    *size = group_size(in);
    return HCCL_SUCCESS;
}

HcclResult HcclGetRankId(HcclComm in, uint32_t *rank) {
    *rank = group_rank(in);
    return HCCL_SUCCESS;
}

HcclResult HcclGetCommName(HcclComm in, char *name) {
    strcpy(name, group_name(in));
    return HCCL_SUCCESS;
}

HcclResult HcclGetCommAsyncError(HcclComm in, HcclResult *error) {
    (void)in;
    *error = HCCL_SUCCESS;
    return HCCL_SUCCESS;
}
