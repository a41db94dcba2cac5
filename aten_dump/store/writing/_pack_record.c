/* Packs a record as msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md), as msgpack's own packer does: each
 * number and length in its shortest form, text as str, bytes as bin.
 *
 * Only None and exact bool, int, float, str, bytes, dict, and lists and tuples of any class, are packed here. For all
 * else, for integers beyond 64 bits, text with surrogates and what is nested too deeply, None is returned: msgpack's
 * packer then does it, or says why it cannot. No Python code runs meanwhile, so one record is packed at a time.
 *
 * What `adder` returns packs a record and appends it to a list, in one call from C.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DEEPEST 64
#define MOST 0xFFFFFFFFu /* bytes of a text, entries of a list: what msgpack can say */

typedef struct {
    unsigned char *data;
    size_t used, size;
    unsigned char first[1024]; /* most records need no more */
} Buffer;

static int grow(Buffer *out, size_t more)
{
    size_t size = 2 * out->size + more;
    unsigned char *data = out->data == out->first ? malloc(size) : realloc(out->data, size);
    if (data == NULL)
        return 0;
    if (out->data == out->first)
        memcpy(data, out->first, out->used);
    out->data = data;
    out->size = size;
    return 1;
}

/* Have room for so many bytes more; 0 where there is no memory. */
static inline int room(Buffer *out, size_t more)
{
    return out->size - out->used >= more || grow(out, more);
}

/* Append a head byte and a number of so many bytes, the most significant first; there is room for nine bytes. */
static inline void number(Buffer *out, unsigned char head, uint64_t value, int nbytes)
{
    unsigned char *at = out->data + out->used;
    *at = head;
    for (int i = nbytes; i > 0; i--, value >>= 8)
        at[i] = (unsigned char)value;
    out->used += (size_t)nbytes + 1;
}

static void integer(Buffer *out, int64_t value)
{
    if (value >= 0) {
        uint64_t u = (uint64_t)value;
        if (u < 0x80)
            number(out, (unsigned char)u, 0, 0);
        else if (u <= 0xFF)
            number(out, 0xCC, u, 1);
        else if (u <= 0xFFFF)
            number(out, 0xCD, u, 2);
        else if (u <= 0xFFFFFFFFu)
            number(out, 0xCE, u, 4);
        else
            number(out, 0xCF, u, 8);
    } else if (value >= -32)
        number(out, (unsigned char)value, 0, 0);
    else if (value >= INT8_MIN)
        number(out, 0xD0, (uint64_t)value, 1);
    else if (value >= INT16_MIN)
        number(out, 0xD1, (uint64_t)value, 2);
    else if (value >= INT32_MIN)
        number(out, 0xD2, (uint64_t)value, 4);
    else
        number(out, 0xD3, (uint64_t)value, 8);
}

/* Append the head of what has a length: `fixed` | length below `most_fixed`, else a head for 8 (0: none), 16, 32 bits. */
static void length(Buffer *out, size_t n, unsigned char fixed, size_t most_fixed, unsigned char head8,
                   unsigned char head16)
{
    if (n < most_fixed)
        number(out, (unsigned char)(fixed | n), 0, 0);
    else if (head8 && n <= 0xFF)
        number(out, head8, n, 1);
    else if (n <= 0xFFFF)
        number(out, head16, n, 2);
    else
        number(out, (unsigned char)(head16 + 1), n, 4);
}

static int bytes(Buffer *out, const char *data, Py_ssize_t n)
{
    if (!room(out, (size_t)n))
        return 0;
    memcpy(out->data + out->used, data, (size_t)n);
    out->used += (size_t)n;
    return 1;
}

/* Append an object; 0 where that cannot be done here. */
static int pack(Buffer *out, PyObject *item, int depth)
{
    if (depth > DEEPEST || !room(out, 9))
        return 0;
    PyTypeObject *type = Py_TYPE(item);
    if (type == &PyLong_Type) {
        int is_too_large;
        long long value = PyLong_AsLongLongAndOverflow(item, &is_too_large);
        if (is_too_large)
            return 0;
        integer(out, value);
        return 1;
    }
    if (item == Py_None) {
        number(out, 0xC0, 0, 0);
        return 1;
    }
    int is_tuple = type == &PyTuple_Type;
    if (is_tuple || type == &PyList_Type || PyTuple_Check(item) || PyList_Check(item)) {
        is_tuple = is_tuple || PyTuple_Check(item);
        Py_ssize_t n = is_tuple ? PyTuple_GET_SIZE(item) : PyList_GET_SIZE(item);
        if (n < 0 || (size_t)n > MOST)
            return 0;
        length(out, (size_t)n, 0x90, 16, 0, 0xDC);
        for (Py_ssize_t i = 0; i < n; i++)
            if (!pack(out, is_tuple ? PyTuple_GET_ITEM(item, i) : PyList_GET_ITEM(item, i), depth + 1))
                return 0;
        return 1;
    }
    if (type == &PyUnicode_Type) {
        Py_ssize_t n;
        const char *text = PyUnicode_AsUTF8AndSize(item, &n);
        if (text == NULL) {
            PyErr_Clear();
            return 0;
        }
        if ((size_t)n > MOST)
            return 0;
        length(out, (size_t)n, 0xA0, 32, 0xD9, 0xDA);
        return bytes(out, text, n);
    }
    if (type == &PyBool_Type) {
        number(out, item == Py_True ? 0xC3 : 0xC2, 0, 0);
        return 1;
    }
    if (type == &PyFloat_Type) {
        double value = PyFloat_AS_DOUBLE(item);
        uint64_t bits;
        memcpy(&bits, &value, 8);
        number(out, 0xCB, bits, 8);
        return 1;
    }
    if (type == &PyBytes_Type) {
        char *data;
        Py_ssize_t n;
        if (PyBytes_AsStringAndSize(item, &data, &n) < 0 || (size_t)n > MOST) {
            PyErr_Clear();
            return 0;
        }
        if (n <= 0xFF)
            number(out, 0xC4, (uint64_t)n, 1);
        else
            length(out, (size_t)n, 0, 0, 0, 0xC5);
        return bytes(out, data, n);
    }
    if (type == &PyDict_Type) {
        PyObject *key, *value;
        Py_ssize_t at = 0, n = PyDict_Size(item);
        if (n < 0 || (size_t)n > MOST)
            return 0;
        length(out, (size_t)n, 0x80, 16, 0, 0xDE);
        while (PyDict_Next(item, &at, &key, &value))
            if (!pack(out, key, depth + 1) || !pack(out, value, depth + 1))
                return 0;
        return 1;
    }
    return 0;
}

/* Set `packed` to a record's bytes, NULL with an error set where there is no memory; 0 where it cannot be done here. */
static int pack_whole(PyObject *record, PyObject **packed)
{
    Buffer out;
    out.data = out.first;
    out.used = 0;
    out.size = sizeof out.first;
    int is_packed = pack(&out, record, 0);
    if (is_packed)
        *packed = PyBytes_FromStringAndSize((const char *)out.data, (Py_ssize_t)out.used);
    if (out.data != out.first)
        free(out.data);
    return is_packed;
}

static PyObject *none(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *pack_record(PyObject *module, PyObject *record)
{
    PyObject *packed;
    (void)module;
    return pack_whole(record, &packed) ? packed : none();
}

/* `self` is a tuple: the list, and what is called with it and a record that is not for this packer. */
static PyObject *add(PyObject *self, PyObject *record)
{
    PyObject *packed, *waiting = PyTuple_GET_ITEM(self, 0);
    Py_ssize_t n = PyTuple_Check(record) ? PyTuple_GET_SIZE(record) : 0;
    if (n > 0 && PyTuple_GET_ITEM(record, n - 1) != Py_None && pack_whole(record, &packed)) {
        int failed = packed == NULL || PyList_Append(waiting, packed) < 0;
        Py_XDECREF(packed);
        return failed ? NULL : none();
    }
    return PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(self, 1), waiting, record, NULL);
}

static PyMethodDef ADD = {"add", add, METH_O, "Pack a record and append it to the list."};

static PyObject *adder(PyObject *module, PyObject *args)
{
    PyObject *waiting, *otherwise;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &waiting, &otherwise))
        return NULL;
    return PyCFunction_NewEx(&ADD, args, NULL);
}

static PyMethodDef METHODS[] = {
    {"adder", adder, METH_VARARGS, "Return what packs a record and appends it to a list; others go to a function."},
    {"pack_record", pack_record, METH_O, "Return a record as msgpack; None where that is not for this packer."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_pack_record", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__pack_record(void)
{
    return PyModule_Create(&MODULE);
}
