/* An LD_PRELOAD that makes chosen calls of the system fail, hang or write less, on files below one folder.

   fail_calls(function, folder, first, count, error) chooses them: the calls of `function` are counted from 1, those from
   `first` on fail, `count` of them (-1: all). `error` is an errno, or SHORT_WRITE, or HANGS. calls_seen(function) says how
   many there were. A function stands for all that do the same: "write" is pwritev too, "open" what opens or makes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SHORT_WRITE 0
#define HANGS -1
#define NEXT(result, name, ...) \
    static result (*next)(__VA_ARGS__); \
    if (!next) \
        next = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static const char *FUNCTIONS[] = {"write", "fsync", "close", "rename", "mkdir", "open", "ftruncate", "unlink"};
#define MANY (int)(sizeof FUNCTIONS / sizeof *FUNCTIONS)

static char chosen[32], folder[4096];
static int first, count, error;
static atomic_int seen[MANY];

static int number_of(const char *name)
{
    int at = 0;
    while (at < MANY && strcmp(FUNCTIONS[at], name))
        at++;
    return at;
}

void fail_calls(const char *name, const char *below, int from, int many, int how)
{
    folder[0] = 0; /* nothing is counted meanwhile */
    snprintf(chosen, sizeof chosen, "%s", name);
    first = from;
    count = many;
    error = how;
    for (int at = 0; at < MANY; at++)
        atomic_store(&seen[at], 0);
    snprintf(folder, sizeof folder, "%s", below);
}

int calls_seen(const char *name)
{
    return atomic_load(&seen[number_of(name)]);
}

static int is_path_below(const char *path)
{
    return path && folder[0] && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_file_below(int fd)
{
    char link[64], path[4096];
    ssize_t length;
    if (!folder[0])
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return is_path_below(path);
}

static int is_below(int at, const char *path)
{
    return path[0] == '/' ? is_path_below(path) : at != AT_FDCWD && is_file_below(at);
}

/* Whether a call is to fail; errno says how. It does not come back from one that hangs. */
static int fails(const char *name, int is_inside)
{
    int number;
    if (!is_inside)
        return 0;
    number = atomic_fetch_add(&seen[number_of(name)], 1) + 1;
    if (strcmp(chosen, name) || number < first || (count >= 0 && number >= first + count))
        return 0;
    while (error == HANGS)
        usleep(10000);
    errno = error;
    return 1;
}

static size_t half(size_t nbytes)
{
    return nbytes > 1 ? nbytes / 2 : nbytes;
}

ssize_t write(int fd, const void *data, size_t nbytes)
{
    NEXT(ssize_t, "write", int, const void *, size_t);
    if (fails("write", is_file_below(fd))) {
        if (error != SHORT_WRITE)
            return -1;
        nbytes = half(nbytes);
    }
    return next(fd, data, nbytes);
}

#define PWRITE(name, type) \
    ssize_t name(int fd, const void *data, size_t nbytes, type at) \
    { \
        NEXT(ssize_t, #name, int, const void *, size_t, type); \
        if (fails("write", is_file_below(fd))) { \
            if (error != SHORT_WRITE) \
                return -1; \
            nbytes = half(nbytes); \
        } \
        return next(fd, data, nbytes, at); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

static ssize_t write_part(int fd, const struct iovec *parts, off64_t at)
{
    NEXT(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    return next(fd, parts[0].iov_base, half(parts[0].iov_len), at);
}

#define PWRITEV(name, type) \
    ssize_t name(int fd, const struct iovec *parts, int many, type at) \
    { \
        NEXT(ssize_t, #name, int, const struct iovec *, int, type); \
        if (fails("write", is_file_below(fd))) \
            return error == SHORT_WRITE ? write_part(fd, parts, at) : -1; \
        return next(fd, parts, many, at); \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define PWRITEV2(name, type) \
    ssize_t name(int fd, const struct iovec *parts, int many, type at, int flags) \
    { \
        NEXT(ssize_t, #name, int, const struct iovec *, int, type, int); \
        if (fails("write", is_file_below(fd))) \
            return error == SHORT_WRITE ? write_part(fd, parts, at) : -1; \
        return next(fd, parts, many, at, flags); \
    }
PWRITEV2(pwritev2, off_t)
PWRITEV2(pwritev64v2, off64_t)

int fsync(int fd)
{
    NEXT(int, "fsync", int);
    return fails("fsync", is_file_below(fd)) ? -1 : next(fd);
}

int close(int fd) /* as on Linux, the descriptor is gone also where it fails */
{
    NEXT(int, "close", int);
    int is_failing = fails("close", is_file_below(fd)), number = errno;
    int result = next(fd);
    if (!is_failing)
        return result;
    errno = number;
    return -1;
}

int rename(const char *from, const char *to)
{
    NEXT(int, "rename", const char *, const char *);
    return fails("rename", is_path_below(to)) ? -1 : next(from, to);
}

int renameat(int from_at, const char *from, int to_at, const char *to)
{
    NEXT(int, "renameat", int, const char *, int, const char *);
    return fails("rename", is_below(to_at, to)) ? -1 : next(from_at, from, to_at, to);
}

int mkdir(const char *path, mode_t mode)
{
    NEXT(int, "mkdir", const char *, mode_t);
    return fails("mkdir", is_path_below(path)) ? -1 : next(path, mode);
}

int mkdirat(int at, const char *path, mode_t mode)
{
    NEXT(int, "mkdirat", int, const char *, mode_t);
    return fails("mkdir", is_below(at, path)) ? -1 : next(at, path, mode);
}

int unlinkat(int at, const char *path, int flags)
{
    NEXT(int, "unlinkat", int, const char *, int);
    return fails("unlink", is_below(at, path)) ? -1 : next(at, path, flags);
}

int unlink(const char *path)
{
    NEXT(int, "unlink", const char *);
    return fails("unlink", is_path_below(path)) ? -1 : next(path);
}

#define FTRUNCATE(name, type) \
    int name(int fd, type size) \
    { \
        NEXT(int, #name, int, type); \
        return fails("ftruncate", is_file_below(fd)) ? -1 : next(fd, size); \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

static mode_t mode_of(int flags, va_list more)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        NEXT(int, #name, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = mode_of(flags, more); \
        va_end(more); \
        return fails("open", is_path_below(path)) ? -1 : next(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) \
    { \
        NEXT(int, #name, int, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = mode_of(flags, more); \
        va_end(more); \
        return fails("open", is_below(at, path)) ? -1 : next(at, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)
