/* Groups: each rank has a connection to each other, and a thread for each that sends. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collectives.h"

typedef struct message {
    struct message *next;
    size_t nbytes;
    char bytes[];
} message;

typedef struct {
    int socket;
    message *first, *last;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} peer;

struct group {
    uint32_t rank, size;
    char name[128];
    peer *peers;
};

typedef struct {
    uint32_t rank;
    uint16_t port;
} introduction;

static struct {
    int socket;
    uint16_t port;
} roots[64]; /* meeting points that this process has opened */
static int root_count;
static pthread_mutex_t roots_lock = PTHREAD_MUTEX_INITIALIZER;

uint32_t group_rank(const group *it) { return it->rank; }
uint32_t group_size(const group *it) { return it->size; }
const char *group_name(const group *it) { return it->name; }

static bool write_all(int to, const void *bytes, size_t nbytes) {
    for (size_t done = 0; done < nbytes;) {
        ssize_t n = send(to, (const char *)bytes + done, nbytes - done, MSG_NOSIGNAL);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static bool read_all(int from, void *bytes, size_t nbytes) {
    for (size_t done = 0; done < nbytes;) {
        ssize_t n = recv(from, (char *)bytes + done, nbytes - done, 0);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static int listening(uint16_t *port) {
    int it = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(it, (struct sockaddr *)&address, length) || listen(it, 64)) return -1;
    getsockname(it, (struct sockaddr *)&address, &length);
    *port = ntohs(address.sin_port);
    return it;
}

static int connected(uint16_t port) {
    int it = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons(port);
    return connect(it, (struct sockaddr *)&address, sizeof address) ? -1 : it;
}

static void *keep_sending(void *argument) {
    peer *to = argument;
    while (true) {
        pthread_mutex_lock(&to->lock);
        while (!to->first) pthread_cond_wait(&to->changed, &to->lock);
        message *next = to->first;
        to->first = next->next;
        if (!to->first) to->last = NULL;
        pthread_mutex_unlock(&to->lock);
        bool sent = write_all(to->socket, next->bytes, next->nbytes);
        free(next);
        if (!sent) return NULL; /* the other process has ended */
    }
}

void group_send(group *it, uint32_t rank, const void *bytes, size_t nbytes) {
    peer *to = &it->peers[rank];
    message *added = malloc(sizeof *added + nbytes);
    added->next = NULL;
    added->nbytes = nbytes;
    memcpy(added->bytes, bytes, nbytes);
    pthread_mutex_lock(&to->lock);
    if (to->last) to->last->next = added;
    else to->first = added;
    to->last = added;
    pthread_cond_signal(&to->changed);
    pthread_mutex_unlock(&to->lock);
}

void group_receive(group *it, uint32_t rank, void *bytes, size_t nbytes) {
    if (!read_all(it->peers[rank].socket, bytes, nbytes)) sim_stream_failed("rank %u has ended", rank);
}

/* The root hears from each rank where it listens, and tells all. */
static bool ports_of_all(uint32_t size, int root_socket, uint16_t root_port, introduction mine, uint16_t *ports) {
    ports[mine.rank] = mine.port;
    if (root_socket < 0) {
        int root = connected(root_port);
        bool told = root >= 0 && write_all(root, &mine, sizeof mine) && read_all(root, ports, size * sizeof *ports);
        if (root >= 0) close(root);
        return told;
    }
    int *others = calloc(size, sizeof *others);
    bool fine = true;
    for (uint32_t i = 1; i < size && fine; i++) {
        introduction other;
        others[i] = accept(root_socket, NULL, NULL);
        fine = others[i] >= 0 && read_all(others[i], &other, sizeof other);
        if (fine) ports[other.rank] = other.port;
    }
    for (uint32_t i = 1; i < size && fine; i++) fine = write_all(others[i], ports, size * sizeof *ports);
    for (uint32_t i = 1; i < size; i++) close(others[i]);
    free(others);
    close(root_socket);
    return fine;
}

static bool connect_to_all(group *it, int listener, const uint16_t *ports) {
    for (uint32_t lower = 0; lower < it->rank; lower++) {
        int to = connected(ports[lower]);
        if (to < 0 || !write_all(to, &it->rank, sizeof it->rank)) return false;
        it->peers[lower].socket = to;
    }
    for (uint32_t i = it->rank + 1; i < it->size; i++) {
        uint32_t rank;
        int from = accept(listener, NULL, NULL);
        if (from < 0 || !read_all(from, &rank, sizeof rank)) return false;
        it->peers[rank].socket = from;
    }
    for (uint32_t rank = 0; rank < it->size; rank++) {
        if (rank == it->rank) continue;
        peer *to = &it->peers[rank];
        pthread_t thread;
        pthread_mutex_init(&to->lock, NULL);
        pthread_cond_init(&to->changed, NULL);
        pthread_create(&thread, NULL, keep_sending, to);
        pthread_detach(thread);
    }
    return true;
}

HcclResult HcclGetRootInfo(HcclRootInfo *info) {
    memset(info, 0, sizeof *info);
    pthread_mutex_lock(&roots_lock);
    int slot = root_count++ % 64;
    roots[slot].socket = listening(&roots[slot].port);
    memcpy(info->internal, &roots[slot].port, sizeof roots[slot].port);
    bool fine = roots[slot].socket >= 0;
    pthread_mutex_unlock(&roots_lock);
    return fine ? HCCL_SUCCESS : HCCL_E_TCP_CONNECT;
}

HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo *info, uint32_t rank, HcclComm *comm) {
    group *it = calloc(1, sizeof *it);
    uint16_t root_port, port, *ports = calloc(size, sizeof *ports);
    memcpy(&root_port, info->internal, sizeof root_port);
    it->rank = rank;
    it->size = size;
    it->peers = calloc(size, sizeof *it->peers);
    snprintf(it->name, sizeof it->name, "127.0.0.1_%u", root_port);
    int root_socket = -1, listener = listening(&port);
    pthread_mutex_lock(&roots_lock);
    for (int i = 0; i < 64; i++)
        if (roots[i].port == root_port && root_port) root_socket = roots[i].socket, roots[i].port = 0;
    pthread_mutex_unlock(&roots_lock);
    bool fine = ports_of_all(size, root_socket, root_port, (introduction){rank, port}, ports) &&
                connect_to_all(it, listener, ports);
    close(listener);
    free(ports);
    *comm = it;
    return fine ? HCCL_SUCCESS : HCCL_E_TCP_CONNECT;
}

HcclResult HcclCommInitRootInfoConfig(uint32_t size, const HcclRootInfo *info, uint32_t rank, const void *config,
                                      HcclComm *comm) {
    (void)config;
    return HcclCommInitRootInfo(size, info, rank, comm);
}

HcclResult HcclCommDestroy(HcclComm it) { /* what is under way may still be sent; the process's end closes the sockets */
    (void)it;
    return HCCL_SUCCESS;
}
