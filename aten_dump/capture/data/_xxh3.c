/* The 64-bit XXH3 hash of elements in row-major order, taken by several threads. No torch, no numpy: an address, the
 * bytes of an element, a shape and strides come in, a hash goes out, and the GIL is released meanwhile.
 *
 * Theory of operation
 *     XXH3 (seed 0, its default secret, more than 240 bytes; github.com/Cyan4973/xxHash, doc/xxhash_spec.md) keeps eight
 *     lanes of 64 bits. To these it adds a function of each stripe of 64 bytes and of the stripe's place in its block of
 *     1,024 bytes; after a block it scrambles them. What a block adds depends on nothing before it: so threads find the
 *     sums of blocks, in any order, and one of them then adds and scrambles, which is a sixteenth of the bytes.
 *
 *     Elements that do not lie in a row are copied, a stretch at a time, into memory of the thread's own, and read from
 *     there while its cache still has them. Those that do may be copied elsewhere while they are read, around the caches
 *     (`_gather.c` says why): each byte is loaded once, so that the hash is that of the copy, whoever writes meanwhile.
 *
 *     Compilers do not find the one instruction that multiplies halves of lanes, so it is named: for x86-64 with AVX2.
 *     On other processors the module cannot be imported, and xxhash hashes as without it.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#include <immintrin.h>

#include "../_torch_threads.h"
#include "_strided_memory.h"

#define LANES 8
#define STRIPE 64
#define STRIPES 16
#define BLOCK (STRIPES * STRIPE)
#define LEAST 241 /* bytes; of fewer, XXH3 is another function */
#define ROUND 4096 /* blocks whose sums are kept at a time */

typedef uint64_t Lanes[LANES];

static const uint8_t SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
#define PRIME32_1 0x9E3779B1U
#define PRIME32_2 0x85EBCA77U
#define PRIME32_3 0xC2B2AE3DU
#define PRIME64_1 0x9E3779B185EBCA87ULL
#define PRIME64_2 0xC2B2AE3D27D4EB4FULL
#define PRIME64_3 0x165667B19E3779F9ULL
#define PRIME64_4 0x85EBCA77C2B2AE63ULL
#define PRIME64_5 0x27D4EB2F165667C5ULL
#define AVALANCHE 0x165667919E3779F9ULL

/* -- sums */

#define WITH_AVX2 __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    __m256i low, high; /* four lanes each */
} Sum;

INLINE WITH_AVX2 __m256i load(const void *from)
{
    return _mm256_loadu_si256(from);
}

INLINE WITH_AVX2 void store(Sum sum, void *to)
{
    _mm256_storeu_si256(to, sum.low);
    _mm256_storeu_si256((__m256i *)to + 1, sum.high);
}

/* Return the products of the low and the high halves of four lanes. */
INLINE WITH_AVX2 __m256i multiply_halves(__m256i lanes)
{
    return _mm256_mul_epu32(lanes, _mm256_srli_epi64(lanes, 32));
}

/* Return what stripes add to the lanes, the first of them with the secret from byte `place` on; where `to` is not NULL,
 * it is a place in memory that whole vectors fit, and they are copied there.
 */
INLINE WITH_AVX2 Sum sum_stripes(const char *from, int stripes, int place, char *to)
{
    Sum products = {_mm256_setzero_si256(), _mm256_setzero_si256()}, data = products;
    for (int i = 0; i < stripes; i++) {
        const uint8_t *key = SECRET + place + i * 8;
        __m256i low = load(from + i * STRIPE), high = load(from + i * STRIPE + STRIPE / 2);
        if (to != NULL) {
            __asm__("" : "+x"(low), "+x"(high)); /* so that no compiler loads them twice */
            _mm256_stream_si256((__m256i *)(to + i * STRIPE), low);
            _mm256_stream_si256((__m256i *)(to + i * STRIPE + STRIPE / 2), high);
        }
        data.low = _mm256_add_epi64(data.low, low);
        data.high = _mm256_add_epi64(data.high, high);
        products.low = _mm256_add_epi64(products.low, multiply_halves(_mm256_xor_si256(low, load(key))));
        products.high = _mm256_add_epi64(products.high, multiply_halves(_mm256_xor_si256(high, load(key + STRIPE / 2))));
    }
    /* The data go to the other lane of each two. */
    return (Sum){_mm256_add_epi64(products.low, _mm256_shuffle_epi32(data.low, 0x4E)),
                 _mm256_add_epi64(products.high, _mm256_shuffle_epi32(data.high, 0x4E))};
}

static WITH_AVX2 void sum_blocks(const char *from, int64_t blocks, Lanes *sums)
{
    for (int64_t block = 0; block < blocks; block++, from += BLOCK) {
        for (int ahead = 4 * BLOCK; ahead < 5 * BLOCK; ahead += LINE)
            FETCH(from + ahead);
        store(sum_stripes(from, STRIPES, 0, NULL), sums[block]);
    }
}

static WITH_AVX2 void copy_and_sum_blocks(const char *from, int64_t blocks, Lanes *sums, char *to)
{
    for (int64_t block = 0; block < blocks; block++, from += BLOCK, to += BLOCK)
        store(sum_stripes(from, STRIPES, 0, to), sums[block]);
    _mm_sfence();
}

static WITH_AVX2 void add(const char *from, int stripes, int place, uint64_t *lanes)
{
    const Sum sum = sum_stripes(from, stripes, place, NULL);
    store((Sum){_mm256_add_epi64(load(lanes), sum.low), _mm256_add_epi64(load(lanes + 4), sum.high)}, lanes);
}

INLINE WITH_AVX2 __m256i scramble(__m256i lanes, const uint8_t *key)
{
    const __m256i prime = _mm256_set1_epi64x((int64_t)PRIME32_1);
    lanes = _mm256_xor_si256(lanes, _mm256_xor_si256(_mm256_srli_epi64(lanes, 47), load(key)));
    const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(lanes, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(lanes, prime), _mm256_slli_epi64(high, 32));
}

static WITH_AVX2 void add_and_scramble(uint64_t *lanes, const Lanes *sums, int64_t blocks)
{
    const uint8_t *key = SECRET + sizeof SECRET - STRIPE;
    Sum now = {load(lanes), load(lanes + 4)};
    for (int64_t block = 0; block < blocks; block++) {
        now.low = scramble(_mm256_add_epi64(now.low, load(sums[block])), key);
        now.high = scramble(_mm256_add_epi64(now.high, load(sums[block] + 4)), key + STRIPE / 2);
    }
    store(now, lanes);
}

/* Return the hash of `nbytes` bytes, when all has been added. */
static uint64_t merged(const uint64_t *lanes, uint64_t nbytes)
{
    uint64_t hash = nbytes * PRIME64_1;
    for (int i = 0; i < LANES; i += 2) {
        uint64_t key[2];
        memcpy(key, SECRET + 11 + 8 * i, sizeof key);
        const uint64_t a = lanes[i] ^ key[0], b = lanes[i + 1] ^ key[1];
        const uint64_t low = (a & UINT32_MAX) * (b & UINT32_MAX), high = (a >> 32) * (b >> 32);
        const uint64_t inner = (a >> 32) * (b & UINT32_MAX), outer = (a & UINT32_MAX) * (b >> 32);
        const uint64_t middle = (low >> 32) + (inner & UINT32_MAX) + outer;
        hash += ((middle << 32) | (low & UINT32_MAX)) ^ (high + (inner >> 32) + (middle >> 32));
    }
    hash ^= hash >> 37;
    hash *= AVALANCHE;
    return hash ^ (hash >> 32);
}

/* -- threads */

typedef struct {
    const Layout *all;
    const char *from;
    char *to; /* where a row is copied to; NULL for nowhere */
    int64_t first, past, piece, next; /* blocks of this round; blocks that are copied at once; the next piece */
    Lanes *sums;
    int lacks_memory;
} Work;

static int lies_in_a_row(const Layout *all)
{
    return all->count == 1 && all->of[0].stride == all->item;
}

/* Copy bytes, counted in row-major order. */
static void copy_bytes(const Layout *all, const char *from, int64_t first, int64_t past, char *to)
{
    if (lies_in_a_row(all))
        memcpy(to, from + first, (size_t)(past - first));
    else
        copy_range(all, 0, from, first / all->item, past / all->item, to);
}

static void sum_pieces(void *argument)
{
    Work *work = argument;
    const int is_row = lies_in_a_row(work->all);
    char *copy = NULL;
    if (!is_row && (copy = malloc((size_t)(least(work->piece, work->past - work->first) * BLOCK))) == NULL) {
        work->lacks_memory = 1;
        return;
    }
    for (int64_t first; (first = work->first + take_piece(&work->next) * work->piece) < work->past;) {
        const int64_t past = least(first + work->piece, work->past);
        Lanes *sums = work->sums + (first - work->first);
        if (work->to != NULL) {
            copy_and_sum_blocks(work->from + first * BLOCK, past - first, sums, work->to + first * BLOCK);
            continue;
        }
        if (!is_row)
            copy_bytes(work->all, work->from, first * BLOCK, past * BLOCK, copy);
        sum_blocks(is_row ? work->from + first * BLOCK : copy, past - first, sums);
    }
    free(copy);
}

/* Take the hash of `nbytes` bytes, which are copied to `to` if they lie in a row and that is not NULL; return 0 where
 * there is no memory for it.
 */
static int take_hash(const Layout *all, const char *from, int64_t nbytes, char *to, int threads, uint64_t *hash)
{
    Lanes lanes = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    const int64_t blocks = (nbytes - 1) / BLOCK, stretch = best_stretch(all) * all->item / BLOCK;
    const int64_t piece = stretch < 1 ? 1 : stretch, pieces = ROUND / piece < threads ? threads : ROUND / piece;
    const int64_t round = least(pieces * piece, blocks);
    Lanes *sums = blocks ? malloc((size_t)round * sizeof(Lanes)) : NULL;
    if (blocks && sums == NULL)
        return 0;
    Work work = {all, from, to, 0, 0, piece, 0, sums, 0};
    for (; work.first < blocks && !work.lacks_memory; work.first = work.past) {
        work.past = least(work.first + round, blocks);
        work.next = 0;
        run_on_team(sum_pieces, &work, threads);
        add_and_scramble(lanes, (const Lanes *)sums, work.past - work.first);
    }
    free(sums);
    char rest[BLOCK], last[STRIPE];
    copy_bytes(all, from, blocks * BLOCK, nbytes, rest);
    if (to != NULL) {
        memcpy(to + blocks * BLOCK, rest, (size_t)(nbytes - blocks * BLOCK));
        memcpy(last, to + nbytes - STRIPE, STRIPE);
    } else
        copy_bytes(all, from, nbytes - STRIPE, nbytes, last);
    add(rest, (int)((nbytes - 1 - blocks * BLOCK) / STRIPE), 0, lanes);
    add(last, 1, (int)sizeof SECRET - STRIPE - 7, lanes);
    *hash = merged(lanes, (uint64_t)nbytes);
    return !work.lacks_memory;
}

/* -- Python's side */

/* Return the hash as xxhash's digest; `to` as for `take_hash`. */
static PyObject *new_digest(const Layout *all, unsigned long long from, int64_t nbytes, unsigned long long to, int threads)
{
    const char *memory = (const char *)(uintptr_t)from;
    char *copy = (char *)(uintptr_t)to;
    int has_memory;
    uint64_t hash;
    uint8_t bytes[8];
    if (nbytes < LEAST) {
        PyErr_Format(PyExc_ValueError, "%lld bytes are hashed here, at least %d must be", (long long)nbytes, LEAST);
        return NULL;
    }
    if (nbytes < UNLOCKED)
        has_memory = take_hash(all, memory, nbytes, copy, 1, &hash);
    else {
        Py_BEGIN_ALLOW_THREADS
        has_memory = take_hash(all, memory, nbytes, copy, threads, &hash);
        Py_END_ALLOW_THREADS
    }
    if (!has_memory)
        return PyErr_NoMemory();
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(hash >> (56 - 8 * i));
    return PyBytes_FromStringAndSize((const char *)bytes, sizeof bytes);
}

static PyObject *digest(PyObject *self, PyObject *args)
{
    unsigned long long from;
    int item, threads = 1;
    PyObject *shape, *strides;
    Layout all;
    (void)self;
    if (!PyArg_ParseTuple(args, "KiO!O!|i", &from, &item, &PyTuple_Type, &shape, &PyTuple_Type, &strides, &threads))
        return NULL;
    const int64_t elements = read_layout(item, shape, strides, &all);
    if (elements < 0)
        return NULL;
    merge(&all);
    return new_digest(&all, from, elements * item, 0, threads);
}

static PyObject *copy_and_digest(PyObject *self, PyObject *args)
{
    unsigned long long from, to;
    long long nbytes;
    int threads = 1;
    (void)self;
    if (!PyArg_ParseTuple(args, "KLK|i", &from, &nbytes, &to, &threads))
        return NULL;
    if (to == 0 || to % sizeof(__m256i)) {
        PyErr_Format(PyExc_ValueError, "a copy to %llu was asked for; the address must be a multiple of %d", to,
                     (int)sizeof(__m256i));
        return NULL;
    }
    const Layout row = {1, 1, {{nbytes, 1, 1}}};
    return new_digest(&row, from, nbytes, to, threads);
}

static PyMethodDef METHODS[] = {
    {"digest", digest, METH_VARARGS,
     "digest(address, item, shape, strides, threads=1)\n\n"
     "Return xxh3_64 of the elements of a tensor in row-major order, big endian as xxhash's digest. An element has\n"
     "`item` bytes; strides count elements; at least 241 bytes. No memory is checked: it must be there."},
    {"copy_and_digest", copy_and_digest, METH_VARARGS,
     "copy_and_digest(address, nbytes, to, threads=1)\n\n"
     "Copy bytes to the memory at `to`, a multiple of 32, and return xxh3_64 of the copy as `digest` does."},
    USE_TEAM,
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_xxh3", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

static PyObject *make_module(void)
{
    return __builtin_cpu_supports("avx2") ? PyModule_Create(&MODULE) : NULL;
}

#else

static PyObject *make_module(void)
{
    return NULL;
}

#endif

PyMODINIT_FUNC PyInit__xxh3(void)
{
    PyObject *module = make_module();
    if (module == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ImportError, "this is for x86-64 with AVX2");
    return module;
}
