/* Elements of strided memory, copied in row-major order. No torch, no numpy: an address, the bytes of an element, a shape
 * and strides come in, a copy goes out, and the GIL is released meanwhile. Several threads take stretches in turn.
 *
 * A long row is written around the caches, where the processor can: nobody reads the copy soon, and what the program and
 * the recorder are about to read stays in them.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stdint.h>

#if defined(__SSE2__) && defined(__GNUC__)
#include <emmintrin.h>
#endif

#include "../_torch_threads.h"
#include "_strided_memory.h"

#define LONG_ROW (1 << 18) /* bytes */

typedef struct {
    const Layout *all;
    const char *from;
    int64_t first, past, stretch, next; /* elements; the next stretch that no thread has taken */
    char *to;
} Work;

/* Copy a part of a long row. */
static void copy_around_caches(const char *from, int64_t nbytes, char *to)
{
#if defined(__SSE2__) && defined(__GNUC__)
    const int64_t head = least(-(intptr_t)to & (LINE - 1), nbytes);
    memcpy(to, from, (size_t)head);
    for (from += head, to += head, nbytes -= head; nbytes >= LINE; from += LINE, to += LINE, nbytes -= LINE)
        for (int i = 0; i < LINE / 16; i++)
            _mm_stream_si128((__m128i *)to + i, _mm_loadu_si128((const __m128i *)from + i));
    _mm_sfence();
#endif
    memcpy(to, from, (size_t)nbytes);
}

static int is_long_row(const Work *work)
{
    const Layout *all = work->all;
    return all->count == 1 && all->of[0].stride == all->item && work->past - work->first >= LONG_ROW / all->item;
}

static void copy_stretches(void *argument)
{
    Work *work = argument;
    const int item = work->all->item, is_long = is_long_row(work);
    for (int64_t first; (first = work->first + take_piece(&work->next) * work->stretch) < work->past;) {
        const int64_t past = least(first + work->stretch, work->past);
        char *to = work->to + (first - work->first) * item;
        if (is_long)
            copy_around_caches(work->from + first * item, (past - first) * item, to);
        else
            copy_range(work->all, 0, work->from, first, past, to);
    }
}

static PyObject *copy(PyObject *self, PyObject *args)
{
    unsigned long long from, to;
    long long first, past;
    int item, threads = 1;
    PyObject *shape, *strides;
    Layout all;
    if (!PyArg_ParseTuple(args, "KiO!O!LLK|i", &from, &item, &PyTuple_Type, &shape, &PyTuple_Type, &strides, &first,
                          &past, &to, &threads))
        return NULL;
    const int64_t elements = read_layout(item, shape, strides, &all);
    if (elements < 0)
        return NULL;
    if (first < 0 || first > past || past > elements) {
        PyErr_Format(PyExc_ValueError, "a tensor of %lld elements has none from %lld to %lld", (long long)elements,
                     first, past);
        return NULL;
    }
    if (first == past)
        Py_RETURN_NONE;
    const char *memory = (const char *)(uintptr_t)from;
    char *target = (char *)(uintptr_t)to;
    merge(&all);
    if (past - first < UNLOCKED / item)
        copy_range(&all, 0, memory, first, past, target);
    else {
        Py_BEGIN_ALLOW_THREADS
        run_on_team(copy_stretches, &(Work){&all, memory, first, past, best_stretch(&all), 0, target}, threads);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static PyObject *stretch(PyObject *self, PyObject *args)
{
    int item;
    PyObject *shape, *strides;
    Layout all;
    if (!PyArg_ParseTuple(args, "iO!O!", &item, &PyTuple_Type, &shape, &PyTuple_Type, &strides))
        return NULL;
    const int64_t elements = read_layout(item, shape, strides, &all);
    if (elements < 0)
        return NULL;
    if (elements <= STRETCH / item)
        return PyLong_FromLongLong(elements);
    merge(&all);
    return PyLong_FromLongLong(least(best_stretch(&all), elements));
}

static PyMethodDef METHODS[] = {
    {"copy", copy, METH_VARARGS,
     "copy(address, item, shape, strides, first, past, to, threads=1)\n\n"
     "Copy elements `first` to `past` of a tensor, counted in row-major order, from its memory at `address` to that at\n"
     "`to`. An element has `item` bytes; strides count elements. No memory is checked: it must be there."},
    {"stretch", stretch, METH_VARARGS,
     "stretch(item, shape, strides)\n\n"
     "Return how many elements are best copied at once where each copy is read before the next is made."},
    USE_TEAM,
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_gather", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__gather(void)
{
    return PyModule_Create(&MODULE);
}
