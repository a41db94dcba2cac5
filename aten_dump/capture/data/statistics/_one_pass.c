/* Statistics of elements in one pass over their memory. No torch, no numpy: pointers, lengths and codes of dtypes come
 * in, numbers go out, and the GIL is released meanwhile (but for a few short tensors).
 *
 * Theory of operation
 *     Elements are taken in blocks of BLOCK, which stay in the first-level cache. A block is read once from memory
 *     (widened to float or double where its dtype is narrower), and twice from the cache: for min, max, sum and signs,
 *     then for the sums of x - c and (x - c)^2 around c, the block's mean rounded to its type. From these follow, in
 *     double, the block's sum, its sum of squares, and its sum of squares around its own mean; two blocks are joined
 *     by Chan, Golub and LeVeque's formula ("Updating formulae and a pairwise algorithm for computing sample
 *     variances", 1979). So neither a mean far from zero nor the size of a tensor costs digits: at most BLOCK / 16 = 32
 *     floats are added up as floats, each off by 2^-24 of itself, so that a sum is off by less than 2e-6 of the sum
 *     of |x|. Short tensors are widened to double. A block with an element that is not finite, or whose squares its
 *     type cannot hold, is widened to double too; there NaN and Inf are counted, and sums are what IEEE 754 has them.
 *
 *     Floats are compared as integers: their bits, with those below the sign turned over where it is set, are in the
 *     order of the numbers, and compilers make vectors of a minimum of integers. WIDE makes versions for wider vectors
 *     beside the plain one where the compiler and the loader can choose.
 *
 *     Long tensors are taken in parts of PART elements, by several threads if asked for, and joined in order: the
 *     numbers are the same for any number of threads. A thread may be set to flush tiny numbers to zero, and
 *     the next one not: while it measures it computes as IEEE 754 has it.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../_torch_threads.h"

#define BLOCK 512
#define SHORT (1 << 14) /* elements that are added up in double, as torch and numpy do here */
#define PART (1 << 15)
#define CACHE_LINE 64
#define FEW (1 << 14) /* elements that are measured without letting go of Python's lock: some 10 us */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__) && defined(__GLIBC__)
#define WIDE __attribute__((target_clones("avx2", "avx512f", "default")))
#else
#define WIDE
#endif

/* The statistics of a tensor, by the names of one_pass.py. Counts are exact up to 2^53. */
typedef struct {
    double min, max;    /* of floats: NaN if an element is; of integers: exact up to 2^53, see whole_min */
    double sum, squares, deviations; /* deviations: sum of (x - mean)^2; all three NaN or Inf as IEEE 754 has it */
    double nan, posinf, neginf, zero, negative;
    double whole_sum; /* of integers: exact where each is below 2^31 and the sum below 2^53 */
    int64_t whole_min, whole_max; /* of integers; of uint64 the same bits */
} Numbers;

/* What is known of the elements so far. */
typedef struct {
    double count, sum, squares, deviations;
} Moments;

static void join(Moments *all, double count, double sum, double squares, double deviations)
{
    if (all->count > 0) {
        double apart = sum / count - all->sum / all->count;
        all->deviations += apart * apart * (all->count * count / (all->count + count));
    }
    all->deviations += deviations;
    all->count += count;
    all->sum += sum;
    all->squares += squares;
}

/* -- a block of floats or doubles: where all are finite and not extreme, sums are right; the rest always is */

typedef struct {
    double min, max, zero, negative, around, apart, center;
} Block;

#define DEFINE_BLOCK(NAME, REAL, INT)                                                                                  \
    WIDE static void NAME(const REAL *x, int n, Block *out)                                                            \
    {                                                                                                                  \
        const int top = 8 * (int)sizeof(INT) - 1;                                                                      \
        const INT rest = (INT)(((uint64_t)1 << top) - 1);                                                              \
        const INT *bits = (const INT *)(const void *)x;                                                                \
        INT low = rest, high = -rest - 1, zero = 0, negative = 0;                                                      \
        REAL sum = 0;                                                                                                  \
        for (int i = 0; i < n; i++) {                                                                                  \
            INT key = bits[i] ^ ((bits[i] >> top) & rest); /* in the order of the numbers */                           \
            low = key < low ? key : low;                                                                               \
            high = key > high ? key : high;                                                                            \
            zero -= x[i] == 0;                                                                                         \
            negative -= x[i] < 0;                                                                                      \
            sum += x[i];                                                                                               \
        }                                                                                                              \
        const REAL center = sum / (REAL)n;                                                                             \
        const int part = n / 4;                                                                                        \
        REAL a0 = 0, a1 = 0, a2 = 0, a3 = 0, s0 = 0, s1 = 0, s2 = 0, s3 = 0;          \
        for (int i = 0; i < part; i++) {                                                                               \
            REAL d0 = x[i] - center, d1 = x[i + part] - center;                                                        \
            REAL d2 = x[i + 2 * part] - center, d3 = x[i + 3 * part] - center;                                         \
            a0 += d0, a1 += d1, a2 += d2, a3 += d3;                                                                    \
            s0 += d0 * d0, s1 += d1 * d1, s2 += d2 * d2, s3 += d3 * d3;                                                \
        }                                                                                                              \
        for (int i = 4 * part; i < n; i++) {                                                                           \
            REAL d = x[i] - center;                                                                                    \
            a0 += d;                                                                                                   \
            s0 += d * d;                                                                                               \
        }                                                                                                              \
        low ^= (low >> top) & rest; /* from keys back to bits */                                                       \
        high ^= (high >> top) & rest;                                                                                  \
        REAL least, most;                                                                                              \
        memcpy(&least, &low, sizeof least);                                                                            \
        memcpy(&most, &high, sizeof most);                                                                             \
        *out = (Block){least, most, -(double)zero, -(double)negative, (double)a0 + a1 + a2 + a3,                       \
                       (double)s0 + s1 + s2 + s3, center};                                                             \
    }

DEFINE_BLOCK(block_of_floats, float, int32_t)
DEFINE_BLOCK(block_of_doubles, double, int64_t)

/* -- blocks, taken into what is known */

/* How far from zero elements of a type may be for its sums of squares to keep their digits. */
typedef struct {
    double least, greatest, least_apart;
} Bounds;

static const Bounds OF_FLOATS = {1e-15, 1e15, 1e-30}, OF_DOUBLES = {1e-150, 1e150, 1e-300};

static int is_plain(const Block *b, const Bounds *bounds)
{
    double greatest = -b->min > b->max ? -b->min : b->max;
    /* `around` and `apart` are NaN where an element is NaN or Inf. */
    return b->apart == b->apart && b->apart - b->apart == 0 && greatest < bounds->greatest &&
           (greatest == 0 || greatest > bounds->least) && (b->min == b->max || b->apart > bounds->least_apart);
}

static void take_signs(const Block *b, Numbers *out)
{
    out->min = b->min < out->min ? b->min : out->min; /* false where out->min is NaN */
    out->max = b->max > out->max ? b->max : out->max;
    out->zero += b->zero;
    out->negative += b->negative;
}

WIDE static void count_nonfinite(const double *x, int n, Numbers *out)
{
    int64_t nan = 0, posinf = 0, neginf = 0;
    for (int i = 0; i < n; i++) {
        nan -= x[i] != x[i];
        posinf -= x[i] > DBL_MAX;
        neginf -= x[i] < -DBL_MAX;
    }
    out->nan -= (double)nan;
    out->posinf -= (double)posinf;
    out->neginf -= (double)neginf;
    if (nan)
        out->min = out->max = NAN;
}

WIDE static void sum_as_they_are(const double *x, int n, Moments *moments)
{
    double sum = 0, squares = 0, apart = 0;
    for (int i = 0; i < n; i++) {
        sum += x[i];
        squares += x[i] * x[i];
    }
    const double mean = sum / n;
    for (int i = 0; i < n; i++)
        apart += (x[i] - mean) * (x[i] - mean);
    join(moments, n, sum, squares, apart);
}

/* Take a block of doubles with NaN, Inf or numbers beyond the bounds. NaN is the least or the greatest of its keys. */
static void take_odd_block(const double *x, const Block *b, int n, Numbers *out, Moments *moments)
{
    take_signs(b, out);
    if (!(b->min - b->min == 0 && b->max - b->max == 0))
        count_nonfinite(x, n, out);
    sum_as_they_are(x, n, moments);
}

static void take_block(const Block *b, int n, Numbers *out, Moments *moments)
{
    take_signs(b, out);
    double sum = n * b->center + b->around;
    double squares = b->apart + 2 * b->center * b->around + n * b->center * b->center;
    double deviations = b->apart - b->around * b->around / n;
    join(moments, n, sum, squares, deviations > 0 ? deviations : 0);
}

static void doubles(const double *x, int n, Numbers *out, Moments *moments)
{
    Block block;
    block_of_doubles(x, n, &block);
    if (is_plain(&block, &OF_DOUBLES))
        take_block(&block, n, out, moments);
    else
        take_odd_block(x, &block, n, out, moments);
}

static void floats(const float *x, int n, int is_short, Numbers *out, Moments *moments)
{
    Block block;
    if (!is_short) {
        block_of_floats(x, n, &block);
        if (is_plain(&block, &OF_FLOATS)) {
            take_block(&block, n, out, moments);
            return;
        }
    }
    double wide[BLOCK];
    for (int i = 0; i < n; i++)
        wide[i] = x[i];
    doubles(wide, n, out, moments);
}

/* -- dtypes: each widens a block */

WIDE static void widen_half(const uint16_t *raw, int n, float *out)
{
    for (int i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)(raw[i] & 0x7fff) << 13, sign = (uint32_t)(raw[i] & 0x8000) << 16;
        union { uint32_t u; float f; } magic = {0x77800000}, value = {bits}; /* 2^112: the difference of the biases */
        value.f *= magic.f;
        value.u |= bits >= 0x0f800000 ? 0x7f800000 : 0; /* Inf and NaN keep their exponent of ones */
        value.u |= sign;
        out[i] = value.f;
    }
}

WIDE static void widen_bfloat(const uint16_t *raw, int n, float *out)
{
    uint32_t *bits = (uint32_t *)(void *)out;
    for (int i = 0; i < n; i++)
        bits[i] = (uint32_t)raw[i] << 16;
}

#define DEFINE_WHOLE(NAME, INT, WIDEST)                                                                                \
    WIDE static void NAME(const INT *x, int n, double *wide, Numbers *out, int first)                                  \
    {                                                                                                                  \
        INT low = x[0], high = x[0];                                                                                   \
        uint64_t sum = 0;                                                                                              \
        for (int i = 0; i < n; i++) {                                                                                  \
            low = x[i] < low ? x[i] : low;                                                                             \
            high = x[i] > high ? x[i] : high;                                                                          \
            wide[i] = (double)x[i];                                                                                    \
            sum += (uint64_t)x[i];                                                                                     \
        }                                                                                                              \
        out->whole_sum += (double)(int64_t)sum;                                                                        \
        if (first || low < (WIDEST)out->whole_min)                                                                     \
            out->whole_min = (int64_t)low;                                                                             \
        if (first || high > (WIDEST)out->whole_max)                                                                    \
            out->whole_max = (int64_t)high;                                                                            \
    }

DEFINE_WHOLE(whole_int8, int8_t, int64_t)
DEFINE_WHOLE(whole_int16, int16_t, int64_t)
DEFINE_WHOLE(whole_int32, int32_t, int64_t)
DEFINE_WHOLE(whole_int64, int64_t, int64_t)
DEFINE_WHOLE(whole_uint8, uint8_t, int64_t)
DEFINE_WHOLE(whole_uint16, uint16_t, int64_t)
DEFINE_WHOLE(whole_uint32, uint32_t, int64_t)
DEFINE_WHOLE(whole_uint64, uint64_t, uint64_t)

/* Codes of dtypes, as one_pass.py has them. */
enum { F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, CODES };
static const int ITEM_BYTES[CODES] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8};

static void block_of(int code, const char *data, int64_t start, int n, int is_short, Numbers *out, Moments *moments)
{
    float narrow[BLOCK];
    double wide[BLOCK];
    switch (code) {
    case F32: floats((const float *)data + start, n, is_short, out, moments); return;
    case F64: doubles((const double *)data + start, n, out, moments); return;
    case F16: widen_half((const uint16_t *)data + start, n, narrow); floats(narrow, n, is_short, out, moments); return;
    case BF16: widen_bfloat((const uint16_t *)data + start, n, narrow); floats(narrow, n, is_short, out, moments); return;
    case I8: whole_int8((const int8_t *)data + start, n, wide, out, start == 0); break;
    case I16: whole_int16((const int16_t *)data + start, n, wide, out, start == 0); break;
    case I32: whole_int32((const int32_t *)data + start, n, wide, out, start == 0); break;
    case I64: whole_int64((const int64_t *)data + start, n, wide, out, start == 0); break;
    case U8: whole_uint8((const uint8_t *)data + start, n, wide, out, start == 0); break;
    case U16: whole_uint16((const uint16_t *)data + start, n, wide, out, start == 0); break;
    case U32: whole_uint32((const uint32_t *)data + start, n, wide, out, start == 0); break;
    case U64: whole_uint64((const uint64_t *)data + start, n, wide, out, start == 0); break;
    }
    doubles(wide, n, out, moments);
}

/* -- tensors: parts of them, joined */

typedef struct {
    int code;
    const char *data;
    int64_t count, next; /* the next part that no thread has taken */
    Numbers *numbers;    /* of each part */
    Moments *moments;
} Work;

/* Ask for the block that begins at an element, while the one before it is measured: what no cache holds is measured in
 * three quarters of the time. Past the end of the elements there may be no memory: to ask for it does no harm. */
static void ask_for_block(int code, const char *data, int64_t start)
{
#ifdef __GNUC__
    uintptr_t block = (uintptr_t)data + (uintptr_t)(start * ITEM_BYTES[code]);
    for (int at = 0; at < BLOCK * ITEM_BYTES[code]; at += CACHE_LINE)
        __builtin_prefetch((const void *)(block + (uintptr_t)at));
#else
    (void)code, (void)data, (void)start;
#endif
}

static void measure_part(int code, const char *data, int64_t count, Numbers *out, Moments *moments)
{
    memset(out, 0, sizeof *out);
    memset(moments, 0, sizeof *moments);
    out->min = INFINITY;
    out->max = -INFINITY;
    for (int64_t start = 0; start < count; start += BLOCK) {
        int n = count - start < BLOCK ? (int)(count - start) : BLOCK;
        ask_for_block(code, data, start + BLOCK);
        block_of(code, data, start, n, count <= SHORT, out, moments);
    }
}

static void measure_parts(void *argument)
{
    Work *work = argument;
    fenv_t kept;
    fegetenv(&kept);
    fesetenv(FE_DFL_ENV);
    for (int64_t part; (part = take_piece(&work->next)) * PART < work->count;) {
        int64_t rest = work->count - part * PART;
        measure_part(work->code, work->data + part * PART * ITEM_BYTES[work->code], rest < PART ? rest : PART,
                     work->numbers + part, work->moments + part);
    }
    fesetenv(&kept);
}

static void join_numbers(int code, Numbers *all, const Numbers *more)
{
    all->min = more->min < all->min || more->min != more->min ? more->min : all->min;
    all->max = more->max > all->max || more->max != more->max ? more->max : all->max;
    all->nan += more->nan;
    all->posinf += more->posinf;
    all->neginf += more->neginf;
    all->zero += more->zero;
    all->negative += more->negative;
    all->whole_sum += more->whole_sum;
    if (code == U64 ? (uint64_t)more->whole_min < (uint64_t)all->whole_min : more->whole_min < all->whole_min)
        all->whole_min = more->whole_min;
    if (code == U64 ? (uint64_t)more->whole_max > (uint64_t)all->whole_max : more->whole_max > all->whole_max)
        all->whole_max = more->whole_max;
}

static void finish(Numbers *out, const Moments *moments)
{
    out->sum = moments->sum;
    out->squares = moments->squares;
    out->deviations = moments->deviations;
}

/* Measure a long tensor on so many threads; 0 where there is no memory for it. */
static int measure_long(int code, const char *data, int64_t count, int threads, Numbers *out)
{
    int64_t parts = (count + PART - 1) / PART;
    Numbers *numbers = malloc((size_t)parts * sizeof *numbers);
    Moments *moments = malloc((size_t)parts * sizeof *moments);
    if (numbers == NULL || moments == NULL) {
        free(numbers);
        free(moments);
        return 0;
    }
    run_on_team(measure_parts, &(Work){code, data, count, 0, numbers, moments}, threads);
    *out = numbers[0];
    for (int64_t part = 1; part < parts; part++) {
        join_numbers(code, out, numbers + part);
        join(moments, moments[part].count, moments[part].sum, moments[part].squares, moments[part].deviations);
    }
    finish(out, moments);
    free(numbers);
    free(moments);
    return 1;
}

static int measure(int code, const char *data, int64_t count, int threads, Numbers *out)
{
    Moments moments;
    if (count > PART)
        return measure_long(code, data, count, threads, out);
    measure_part(code, data, count, out, &moments);
    finish(out, &moments);
    return 1;
}

/* The elements of a tensor. */
typedef struct {
    const char *data;
    int64_t count;
} Elements;

/* Measure tensors; 0 where there is no memory for a long one. */
static int measure_many(int code, Py_ssize_t tensors, const Elements *elements, int threads, Numbers *numbers)
{
    int is_done = 1;
    fenv_t kept;
    fegetenv(&kept);
    fesetenv(FE_DFL_ENV);
    for (Py_ssize_t i = 0; i < tensors && is_done; i++)
        is_done = measure(code, elements[i].data, elements[i].count, threads, numbers + i);
    fesetenv(&kept);
    return is_done;
}

/* -- Python's side */

static int is_code(int code)
{
    if (code >= 0 && code < CODES)
        return 1;
    PyErr_Format(PyExc_ValueError, "code %d of a dtype is not one of 0 to %d", code, CODES - 1);
    return 0;
}

/* In the order of config.STATISTICS. */
enum { COUNT, MIN, MAX, MEAN, L2NORM, STD, NANS, POSINF, NEGINF, ZERO, NEGATIVE, POSITIVE, STATISTICS };

static PyObject *whole_number(int code, int64_t bits)
{
    return code == U64 ? PyLong_FromUnsignedLongLong((uint64_t)bits) : PyLong_FromLongLong(bits);
}

/* Return 1 if the sum of integers is exact. */
static int is_exact(int code, const Numbers *n)
{
    const int64_t bound = (int64_t)1 << 31;
    if (code == U64)
        return (uint64_t)n->whole_max < (uint64_t)bound;
    return n->whole_min > -bound && n->whole_max < bound;
}

static PyObject *statistic(int which, int code, const Numbers *n, int64_t count)
{
    const int is_float = code <= BF16;
    switch (which) {
    case COUNT: return PyLong_FromLongLong(count);
    case MIN: return is_float ? PyFloat_FromDouble(n->min) : whole_number(code, n->whole_min);
    case MAX: return is_float ? PyFloat_FromDouble(n->max) : whole_number(code, n->whole_max);
    case MEAN:
        return PyFloat_FromDouble((!is_float && is_exact(code, n) ? n->whole_sum : n->sum) / (double)count);
    case L2NORM: return PyFloat_FromDouble(sqrt(n->squares));
    case STD:
        if (count < 2)
            Py_RETURN_NONE;
        return PyFloat_FromDouble(sqrt(n->deviations / (double)(count - 1)));
    case NANS: return PyLong_FromDouble(n->nan);
    case POSINF: return PyLong_FromDouble(n->posinf);
    case NEGINF: return PyLong_FromDouble(n->neginf);
    case ZERO: return PyLong_FromDouble(n->zero);
    case NEGATIVE: return PyLong_FromDouble(n->negative);
    case POSITIVE: return PyLong_FromDouble((double)count - n->zero - n->negative - n->nan);
    }
    return PyErr_Format(PyExc_ValueError, "statistic %d is not one of 0 to %d", which, STATISTICS - 1);
}

static PyObject *statistic_list(const char *wanted, Py_ssize_t length, int code, const Numbers *n, int64_t count)
{
    PyObject *found = PyList_New(length);
    for (Py_ssize_t i = 0; found != NULL && i < length; i++) {
        PyObject *one = statistic(wanted[i], code, n, count);
        if (one == NULL)
            Py_CLEAR(found);
        else
            PyList_SetItem(found, i, one);
    }
    return found;
}

static PyObject *of_one(PyObject *self, PyObject *args)
{
    int code, threads, is_done;
    unsigned long long address;
    long long count;
    const char *wanted;
    Py_ssize_t length;
    Numbers numbers;
    if (!PyArg_ParseTuple(args, "iKLiy#", &code, &address, &count, &threads, &wanted, &length) || !is_code(code))
        return NULL;
    if (count < 1) {
        PyErr_SetString(PyExc_ValueError, "a tensor without elements has no statistics");
        return NULL;
    }
    const Elements elements = {(const char *)(uintptr_t)address, count};
    if (count <= FEW) { /* to get Python's lock back would take longer */
        is_done = measure_many(code, 1, &elements, 1, &numbers);
    } else {
        Py_BEGIN_ALLOW_THREADS
        is_done = measure_many(code, 1, &elements, threads, &numbers);
        Py_END_ALLOW_THREADS
    }
    return is_done ? statistic_list(wanted, length, code, &numbers, count) : PyErr_NoMemory();
}

/* Find the elements of tensors in a list of bytes; how many these are, or -1 with an exception set. */
static int64_t find_elements(PyObject *list, Py_ssize_t tensors, int64_t item_bytes, Elements *elements)
{
    int64_t all = 0;
    for (Py_ssize_t i = 0; i < tensors; i++) {
        char *data;
        Py_ssize_t nbytes;
        if (PyBytes_AsStringAndSize(PyList_GetItem(list, i), &data, &nbytes))
            return -1;
        if (nbytes < item_bytes || nbytes % item_bytes) {
            PyErr_Format(PyExc_ValueError, "%zd bytes are not those of one element or more of %d bytes each", nbytes,
                         (int)item_bytes);
            return -1;
        }
        elements[i].data = data;
        all += elements[i].count = nbytes / item_bytes;
    }
    return all;
}

static PyObject *of_many(PyObject *self, PyObject *args)
{
    int code, is_done;
    const char *wanted;
    Py_ssize_t length;
    PyObject *list, *found = NULL;
    if (!PyArg_ParseTuple(args, "iO!y#", &code, &PyList_Type, &list, &wanted, &length) || !is_code(code))
        return NULL;
    Py_ssize_t tensors = PyList_Size(list);
    Elements *elements = malloc((size_t)(tensors + 1) * sizeof *elements);
    Numbers *numbers = malloc((size_t)(tensors + 1) * sizeof *numbers);
    if (elements == NULL || numbers == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    int64_t all = find_elements(list, tensors, ITEM_BYTES[code], elements);
    if (all < 0)
        goto done;
    if (all <= FEW) { /* to get Python's lock back would take longer */
        is_done = measure_many(code, tensors, elements, 1, numbers);
    } else {
        Py_BEGIN_ALLOW_THREADS
        is_done = measure_many(code, tensors, elements, 1, numbers);
        Py_END_ALLOW_THREADS
    }
    if (!is_done) {
        PyErr_NoMemory();
        goto done;
    }
    found = PyList_New(tensors);
    for (Py_ssize_t i = 0; found != NULL && i < tensors; i++) {
        PyObject *one = statistic_list(wanted, length, code, numbers + i, elements[i].count);
        if (one == NULL)
            Py_CLEAR(found);
        else
            PyList_SetItem(found, i, one);
    }
done:
    free(elements);
    free(numbers);
    return found;
}

static PyMethodDef METHODS[] = {
    {"of_one", of_one, METH_VARARGS,
     "of_one(code, address, count, threads, wanted)\n\n"
     "Return the statistics of the `count` elements at `address` whose places in config.STATISTICS are the bytes of\n"
     "`wanted`. Nothing is checked: the memory must be there."},
    {"of_many", of_many, METH_VARARGS,
     "of_many(code, parts, wanted)\n\n"
     "Return a list for each of the tensors whose elements are the bytes in the list `parts`; see `of_one`."},
    USE_TEAM,
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_one_pass", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__one_pass(void)
{
    return PyModule_Create(&MODULE);
}
