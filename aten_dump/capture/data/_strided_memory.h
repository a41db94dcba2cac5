/* Copies elements of strided memory in row-major order.
 *
 * Theory of operation
 *     Dimensions that lie in a row are merged: transposed weights, heads of attention and channels_last images come
 *     down to two or three. A range of elements is cut into boxes: some of one dimension, all of those inside it.
 *
 *     In a box, the last dimension is copied run by run where it lies in a row. Else the one with the shortest stride
 *     takes part, and the two are transposed in tiles of one cache line by one cache line, so that of memory and copy
 *     whole lines are used. A tile is made of squares that fit N vectors of 16 bytes: to interleave the halves of the N
 *     log2(N) times transposes them, and compilers know instructions for that wherever there are such vectors. Lines
 *     that are a power of two apart drive each other out of the first-level cache, so that those are taken at once.
 *     The processor does not foresee strides beyond a page, so the next lines are prefetched.
 */

#ifndef ATEN_DUMP_STRIDED_MEMORY_H
#define ATEN_DUMP_STRIDED_MEMORY_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MOST_DIMENSIONS 64
#define LINE 64 /* bytes of a cache line */
#define STRETCH (1 << 17) /* bytes that are still in the second-level cache when somebody reads them */
#define MOST_STRETCH (1 << 23)
#define BAND 512 /* rows of a copy between which columns are not left */
#define AHEAD 5 /* tiles that are fetched before they are needed */
#define UNLOCKED (1 << 16) /* bytes from which on other threads of Python may run meanwhile */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__) && defined(__GLIBC__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

#if defined(__GNUC__) || defined(__clang__)
#define FETCH(address) __builtin_prefetch(address, 0, 2) /* to the second level: the first has no room for strides */
#else
#define FETCH(address)
#endif

typedef struct {
    int64_t size, stride, pitch; /* elements; bytes from one to the next in memory, and in the copy */
} Dimension;

typedef struct {
    int count, item; /* dimensions; bytes of an element */
    Dimension of[MOST_DIMENSIONS];
} Layout;

/* What is copied at once: two dimensions. */
typedef struct {
    Dimension row, column; /* columns are side by side in the copy */
    int item;
} Plane;

/* -- one by one */

typedef struct {
    uint64_t low, high;
} Pair;

#define DEFINE_PLAIN(NAME, TYPE)                                                                                       \
    static void NAME(const Plane *p, const char *from, char *to)                                                       \
    {                                                                                                                  \
        const int64_t item = (int64_t)sizeof(TYPE), stride = p->column.stride, pitch = p->column.pitch;                \
        const int64_t count = p->column.size;                                                                          \
        for (int64_t row = 0; row < p->row.size; row++, from += p->row.stride, to += p->row.pitch) {                   \
            TYPE one;                                                                                                  \
            if (pitch == item && stride == 0) {                                                                        \
                memcpy(&one, from, sizeof one);                                                                        \
                for (int64_t i = 0; i < count; i++)                                                                    \
                    memcpy(to + i * item, &one, sizeof one);                                                           \
            } else if (pitch == item && stride == 2 * item) {                                                          \
                for (int64_t i = 0; i < count; i++)                                                                    \
                    memcpy(to + i * item, from + 2 * i * item, sizeof one);                                            \
            } else {                                                                                                   \
                const char *source = from;                                                                             \
                char *target = to;                                                                                     \
                for (int64_t i = 0; i < count; i++, source += stride, target += pitch)                                 \
                    memcpy(target, source, sizeof one);                                                                \
            }                                                                                                          \
        }                                                                                                              \
    }

DEFINE_PLAIN(plain_1, uint8_t)
DEFINE_PLAIN(plain_2, uint16_t)
DEFINE_PLAIN(plain_4, uint32_t)
DEFINE_PLAIN(plain_8, uint64_t)
DEFINE_PLAIN(plain_16, Pair)

static void plain(const Plane *p, const char *from, char *to)
{
    switch (p->item) {
    case 1: plain_1(p, from, to); break;
    case 2: plain_2(p, from, to); break;
    case 4: plain_4(p, from, to); break;
    case 8: plain_8(p, from, to); break;
    case 16: plain_16(p, from, to); break;
    }
}

/* Copy a plane whose columns lie in a row. */
static void runs(const Plane *p, const char *from, char *to)
{
    const int64_t nbytes = p->column.size * p->item;
    const int is_short = nbytes <= 256 && nbytes % 16 == 0; /* a call of memcpy would take longer */
    const int64_t ahead = nbytes < 1024 ? 2048 / nbytes * p->row.stride : 0;
    for (int64_t row = 0; row < p->row.size; row++, from += p->row.stride, to += p->row.pitch) {
        for (int64_t i = 0; i < nbytes && ahead; i += LINE)
            FETCH(from + ahead + i);
        if (!is_short)
            memcpy(to, from, (size_t)nbytes);
        else
            for (int64_t i = 0; i < nbytes; i += 16)
                memcpy(to + i, from + i, 16);
    }
}

/* -- tiles */

#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE(V, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#if !defined(SHUFFLE) && defined(__GNUC__) && !defined(__clang__)
#define SHUFFLE(V, a, b, ...) __builtin_shuffle(a, b, (V){__VA_ARGS__})
#endif

#ifdef SHUFFLE
typedef uint8_t V1 __attribute__((vector_size(16)));
typedef uint16_t V2 __attribute__((vector_size(16)));
typedef uint32_t V4 __attribute__((vector_size(16)));
typedef uint64_t V8 __attribute__((vector_size(16)));
#define LOW_1(a, b) SHUFFLE(V1, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_1(a, b) SHUFFLE(V1, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define LOW_2(a, b) SHUFFLE(V2, a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH_2(a, b) SHUFFLE(V2, a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW_4(a, b) SHUFFLE(V4, a, b, 0, 4, 1, 5)
#define HIGH_4(a, b) SHUFFLE(V4, a, b, 2, 6, 3, 7)
#define LOW_8(a, b) SHUFFLE(V8, a, b, 0, 2)
#define HIGH_8(a, b) SHUFFLE(V8, a, b, 1, 3)

/* Return 1 if more than four of some lines would have one place in a first-level cache (of 64 places). */
static inline int crowd(int64_t lines, int64_t apart)
{
    return (apart & -apart) * lines > 4 * 64 * LINE;
}

/* Columns of a tile are lines in memory, `stride` apart; its rows are lines of the copy, `pitch` apart. */
#define DEFINE_TILE(ITEM, N)                                                                                           \
    static inline __attribute__((always_inline)) void square_##ITEM(const char *from, int64_t stride, char *to,        \
                                                                    int64_t pitch)                                     \
    {                                                                                                                  \
        V##ITEM a[N], b[N];                                                                                            \
        for (int i = 0; i < N; i++)                                                                                    \
            memcpy(a + i, from + i * stride, 16);                                                                      \
        for (int done = 1; done < N; done *= 2) {                                                                      \
            for (int i = 0; i < N / 2; i++) {                                                                          \
                b[2 * i] = LOW_##ITEM(a[i], a[i + N / 2]);                                                             \
                b[2 * i + 1] = HIGH_##ITEM(a[i], a[i + N / 2]);                                                        \
            }                                                                                                          \
            for (int i = 0; i < N; i++)                                                                                \
                a[i] = b[i];                                                                                           \
        }                                                                                                              \
        for (int i = 0; i < N; i++)                                                                                    \
            memcpy(to + i * pitch, a + i, 16);                                                                         \
    }                                                                                                                  \
    WIDE static void tile_##ITEM(const char *from, int64_t stride, char *to, int64_t pitch)                            \
    {                                                                                                                  \
        char source[LINE / ITEM][LINE] __attribute__((aligned(LINE)));                                                 \
        char made[N][LINE] __attribute__((aligned(LINE)));                                                             \
        const int is_apart = crowd(N, pitch);                                                                          \
        if (crowd(LINE / ITEM, stride)) {                                                                              \
            for (int i = 0; i < LINE / ITEM; i++)                                                                      \
                memcpy(source[i], from + i * stride, LINE);                                                            \
            from = source[0];                                                                                          \
            stride = LINE;                                                                                             \
        }                                                                                                              \
        for (int row = 0; row < LINE / ITEM; row += N) {                                                               \
            char *rows = is_apart ? made[0] : to + row * pitch;                                                        \
            const int64_t apart = is_apart ? LINE : pitch;                                                             \
            for (int column = 0; column < LINE / ITEM; column += N)                                                    \
                square_##ITEM(from + column * stride + row * ITEM, stride, rows + column * ITEM, apart);               \
            if (is_apart)                                                                                              \
                for (int i = 0; i < N; i++)                                                                            \
                    memcpy(to + (row + i) * pitch, made[i], LINE);                                                     \
        }                                                                                                              \
    }

DEFINE_TILE(1, 16)
DEFINE_TILE(2, 8)
DEFINE_TILE(4, 4)
DEFINE_TILE(8, 2)

static int is_whole_tile(const Plane *p)
{
    const int64_t side = LINE / p->item;
    return p->row.size == side && p->column.size == side && p->row.stride == p->item && p->item < 16;
}

static void whole_tile(const Plane *p, const char *from, char *to)
{
    switch (p->item) {
    case 1: tile_1(from, p->column.stride, to, p->row.pitch); break;
    case 2: tile_2(from, p->column.stride, to, p->row.pitch); break;
    case 4: tile_4(from, p->column.stride, to, p->row.pitch); break;
    case 8: tile_8(from, p->column.stride, to, p->row.pitch); break;
    }
}
#else
static int is_whole_tile(const Plane *p)
{
    return 0;
}

static void whole_tile(const Plane *p, const char *from, char *to)
{
}
#endif

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void copy_tile(const Plane *p, const char *from, char *to)
{
    if (is_whole_tile(p))
        whole_tile(p, from, to);
    else if (p->row.size > p->column.size && p->row.pitch < LINE)
        plain(&(Plane){p->column, p->row, p->item}, from, to);
    else
        plain(p, from, to);
}

/* Copy rows `first` to `past` of a plane whose rows' stride is shorter than that of its columns. */
static void transpose(const Plane *p, int64_t first, int64_t past, const char *from, char *to)
{
    const int64_t side = LINE / p->item;
    const int64_t high = p->row.pitch < LINE ? BAND : side, wide = p->row.size < side ? BAND : side; /* of a tile */
    int64_t next_row = first, next_column = 0, ahead = -AHEAD; /* of the tile to fetch, and how many were made */
    for (int64_t column = 0; column < p->column.size; column += wide) {
        for (int64_t row = first; row < past; row += high) {
            for (; ahead <= 0 && next_column < p->column.size; ahead++) {
                const char *next = from + next_row * p->row.stride + next_column * p->column.stride;
                for (int64_t i = 0; i < least(wide, p->column.size - next_column); i++)
                    FETCH(next + i * p->column.stride);
                next_row += high;
                if (next_row >= past) {
                    next_row = first;
                    next_column += wide;
                }
            }
            ahead--;
            Plane tile = *p;
            tile.row.size = least(high, past - row);
            tile.column.size = least(wide, p->column.size - column);
            const char *source = from + row * p->row.stride + column * p->column.stride;
            char *target = to + row * p->row.pitch + column * p->column.pitch;
            copy_tile(&tile, source, target);
        }
    }
}

static void copy_plane(const Plane *p, const char *from, char *to)
{
    if (p->column.stride == p->item)
        runs(p, from, to);
    else if (p->row.stride >= p->column.stride || p->row.size == 1)
        plain(p, from, to);
    else if (p->row.size * p->item <= LINE && p->column.size * p->item <= LINE)
        copy_tile(p, from, to);
    else
        for (int64_t row = 0; row < p->row.size; row += BAND)
            transpose(p, row, least(row + BAND, p->row.size), from, to);
}

/* -- boxes and ranges */

/* Return the dimension that is copied together with the last: that of the shortest stride, where this is not the last. */
static int partner(const Layout *box)
{
    int best = box->count - 2;
    const int64_t last = box->of[box->count - 1].stride;
    if (last == box->item || last == 0)
        return best;
    for (int i = box->count - 2; i >= 0; i--)
        if (box->of[i].stride != 0 && (box->of[best].stride == 0 || box->of[i].stride < box->of[best].stride))
            best = i;
    return best;
}

/* Copy the plane of `row` and the last dimension for each element of the others, from dimension `depth` on. */
static void copy_planes(const Layout *box, int depth, int row, const char *from, char *to)
{
    depth += depth == row;
    if (depth >= box->count - 1) {
        Plane p = {box->of[row], box->of[box->count - 1], box->item};
        copy_plane(&p, from, to);
        return;
    }
    const Dimension d = box->of[depth];
    for (int64_t i = 0; i < d.size; i++)
        copy_planes(box, depth + 1, row, from + i * d.stride, to + i * d.pitch);
}

/* Copy `size` elements of dimension `depth`, and all of those inside it. */
static void copy_box(const Layout *all, int depth, int64_t size, const char *from, char *to)
{
    Layout box;
    box.count = all->count - depth;
    box.item = all->item;
    memcpy(box.of, all->of + depth, (size_t)box.count * sizeof(Dimension));
    box.of[0].size = size;
    const Dimension last = box.of[box.count - 1];
    const int64_t run = last.stride == box.item ? last.size * box.item : 0;
    if (box.count > 1 && (run == 2 || run == 4 || run == 8 || run == 16)) {
        box.item = (int)run; /* so few that they are one element */
        box.count--;
    }
    if (box.count == 1) {
        Plane line = {{1, 0, 0}, box.of[0], box.item};
        copy_plane(&line, from, to);
    } else
        copy_planes(&box, 0, partner(&box), from, to);
}

/* Copy elements of the dimensions from `depth` on, counted in row-major order; return where the copy ends. */
static char *copy_range(const Layout *all, int depth, const char *from, int64_t first, int64_t past, char *to)
{
    const Dimension d = all->of[depth];
    const int64_t inside = d.pitch / all->item;
    int64_t top = first / inside, begin = first % inside;
    const int64_t bottom = past / inside, end = past % inside;
    if (top == bottom)
        return begin < end ? copy_range(all, depth + 1, from + top * d.stride, begin, end, to) : to;
    if (begin) {
        to = copy_range(all, depth + 1, from + top * d.stride, begin, inside, to);
        top++;
    }
    if (top < bottom) {
        copy_box(all, depth, bottom - top, from + top * d.stride, to);
        to += (bottom - top) * d.pitch;
    }
    return end ? copy_range(all, depth + 1, from + bottom * d.stride, 0, end, to) : to;
}

/* Merge dimensions that lie in a row, and say how far apart elements are in the copy. */
static void merge(Layout *all)
{
    int count = 0;
    for (int i = 0; i < all->count; i++) {
        const Dimension d = all->of[i];
        if (d.size == 1)
            continue;
        if (count > 0 && all->of[count - 1].stride == d.size * d.stride) {
            all->of[count - 1].size *= d.size;
            all->of[count - 1].stride = d.stride;
        } else
            all->of[count++] = d;
    }
    if (count == 0)
        all->of[count++] = (Dimension){1, all->item, 0};
    all->count = count;
    int64_t pitch = all->item;
    for (int i = count - 1; i >= 0; i--) {
        all->of[i].pitch = pitch;
        pitch *= all->of[i].size;
    }
}

/* Return how many elements are best copied at once where each copy is read before the next is made. */
static int64_t best_stretch(const Layout *all)
{
    const Dimension last = all->of[all->count - 1];
    const int64_t usual = STRETCH / all->item;
    if (all->count == 1 || last.stride == all->item || last.stride == 0)
        return usual;
    const Dimension row = all->of[partner(all)];
    if (row.stride >= last.stride)
        return usual;
    const int64_t inside = row.pitch / all->item, whole = inside * row.size, side = LINE / all->item;
    if (whole <= usual)
        return usual / whole * whole;
    int64_t rows = usual / inside / side * side; /* so that lines of memory are used whole */
    if (rows == 0)
        rows = least(side, MOST_STRETCH / row.pitch);
    return rows == 0 ? usual : least(rows, row.size) * inside;
}

/* -- Python's side */

static int read_sizes(PyObject *shape, PyObject *strides, Layout *all)
{
    for (Py_ssize_t i = 0; i < all->count; i++) {
        const long long size = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        const long long stride = PyErr_Occurred() ? -1 : PyLong_AsLongLong(PyTuple_GetItem(strides, i));
        if (PyErr_Occurred())
            return 0;
        if (size < 0 || stride < 0) {
            PyErr_SetString(PyExc_ValueError, "a size or a stride is negative");
            return 0;
        }
        all->of[i].size = size;
        all->of[i].stride = size > 1 ? stride * all->item : 0;
    }
    return 1;
}

/* Fill `all`; return the number of elements, -1 with an error. */
static int64_t read_layout(int item, PyObject *shape, PyObject *strides, Layout *all)
{
    int64_t elements = 1;
    const Py_ssize_t count = PyTuple_Size(shape);
    if (item < 1 || item > 16 || (item & (item - 1))) {
        PyErr_Format(PyExc_ValueError, "elements of %d bytes are not copied here", item);
        return -1;
    }
    if (count > MOST_DIMENSIONS || PyTuple_Size(strides) != count) {
        PyErr_SetString(PyExc_ValueError, "a shape has as many strides as sizes, and at most 64");
        return -1;
    }
    all->count = (int)count;
    all->item = item;
    if (!read_sizes(shape, strides, all))
        return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        elements *= all->of[i].size;
    return elements;
}

#endif
