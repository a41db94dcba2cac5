/* Finds the value of a tensor that was seen before, or tells where a new one lies: asked through DLPack
 * (https://dmlc.github.io/dlpack/latest/c_api.html), one call in place of five that each make an object.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MOST_DIMS 8
#define MAJOR 1 /* of DLPack: what is below holds for all its minor versions */

typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef int (*FromPyObject)(void *tensor, DLTensor *out);

typedef struct {
    uint32_t major, minor;
    void *previous, *allocator, *managed_from, *managed_to;
    FromPyObject from; /* may be missing */
    void *stream;
} ExchangeAPI;

/* Where a tensor lies, as bytes. */
typedef struct {
    int64_t storage_nbytes;
    void *data;
    uint8_t code, bits;
    uint16_t lanes;
    int32_t ndim;
    int64_t lengths[2 * MOST_DIMS]; /* shape, strides */
} Key;

static FromPyObject from;
/* Functions of torch, and the dtypes whose tensors have keys. */
static PyObject *untyped_storage, *nbytes, *is_neg, *storage_offset, *is_functional, *keyed_dtypes;
static PyObject *CDATA, *PLACE, *VALUE, *OTHERS, *DTYPE, *IS_CPU, *IS_CUDA; /* names */

static PyObject *none(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *use(PyObject *module, PyObject *args)
{
    PyObject *capsule, *of[6];
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOOOO", &capsule, &of[0], &of[1], &of[2], &of[3], &of[4], &of[5]))
        return NULL;
    ExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (api == NULL)
        return NULL;
    if (api->major != MAJOR || api->from == NULL)
        return PyBool_FromLong(0);
    for (int i = 0; i < 6; i++)
        Py_INCREF(of[i]);
    untyped_storage = of[0];
    nbytes = of[1];
    is_neg = of[2];
    storage_offset = of[3];
    is_functional = of[4];
    keyed_dtypes = of[5];
    from = api->from;
    return PyBool_FromLong(1);
}

/* 1 where a question about an object is answered by True; -1 with an error set. */
static int is_true(PyObject *answer)
{
    Py_XDECREF(answer);
    return answer == NULL ? -1 : answer == Py_True;
}

/* Fill `key`; return its bytes, 0 where there is none, -1 with an error set. */
static Py_ssize_t fill(Key *key, PyObject *tensor, PyObject *storage)
{
    DLTensor found;
    int negative = is_true(PyObject_CallOneArg(is_neg, tensor));
    if (negative)
        return negative < 0 ? -1 : 0;
    PyObject *answer = PyObject_CallOneArg(nbytes, storage);
    if (answer == NULL)
        return -1;
    key->storage_nbytes = PyLong_AsLongLong(answer);
    Py_DECREF(answer);
    if (key->storage_nbytes == -1 || from(tensor, &found) != 0)
        return -1;
    if (found.data == NULL || found.ndim > MOST_DIMS)
        return 0;
    key->data = (char *)found.data + found.byte_offset;
    key->code = found.code;
    key->bits = found.bits;
    key->lanes = found.lanes;
    key->ndim = found.ndim;
    size_t half = (size_t)found.ndim * sizeof(int64_t);
    if (half) {
        memcpy(key->lengths, found.shape, half);
        memcpy(key->lengths + found.ndim, found.strides, half);
    }
    return (Py_ssize_t)(offsetof(Key, lengths) + 2 * half);
}

/* Return the value that a state has at a key, but its first: NULL where there is none. */
static PyObject *other_at(PyObject *state, const Key *key, Py_ssize_t size)
{
    PyObject *value = NULL;
    PyObject *others = PyObject_GetAttr(state, OTHERS);
    if (others != NULL && others != Py_None) {
        PyObject *bytes = PyBytes_FromStringAndSize((const char *)key, size);
        if (bytes != NULL)
            value = PyDict_GetItemWithError(others, bytes);
        Py_XINCREF(value);
        Py_XDECREF(bytes);
    }
    Py_XDECREF(others);
    return value;
}

/* 1 where torch's DLPack functions can be asked of a tensor, as far as is known: an error of theirs takes long. */
static int may_ask(PyObject *tensor, PyObject *dtype)
{
    int has = PySet_Contains(keyed_dtypes, dtype);
    if (has <= 0)
        return has;
    has = is_true(PyObject_GetAttr(tensor, IS_CPU));
    if (has == 0)
        has = is_true(PyObject_GetAttr(tensor, IS_CUDA)) ? 2 : 0;
    if (has <= 0)
        return has;
    int functional = is_true(PyObject_CallOneArg(is_functional, tensor));
    return functional ? (functional < 0 ? -1 : 0) : has;
}

static PyObject *lengths(const int64_t *from_here, Py_ssize_t n)
{
    PyObject *found = PyTuple_New(n);
    for (Py_ssize_t i = 0; found != NULL && i < n; i++) {
        PyObject *one = PyLong_FromLongLong(from_here[i]);
        if (one == NULL)
            Py_CLEAR(found);
        else
            PyTuple_SET_ITEM(found, i, one);
    }
    return found;
}

/* Return a tuple, whose items' references it takes over; NULL where one of them is, or there is no memory. */
static PyObject *tuple_of(int n, PyObject *const *items)
{
    int is_whole = 1;
    for (int i = 0; i < n; i++)
        is_whole &= items[i] != NULL;
    PyObject *found = is_whole ? PyTuple_New(n) : NULL;
    for (int i = 0; i < n; i++)
        if (found != NULL)
            PyTuple_SET_ITEM(found, i, items[i]);
        else
            Py_XDECREF(items[i]);
    return found;
}

/* Count the elements of a tensor; tell whether they lie in a row. */
static int lie_in_a_row(const Key *key, int64_t *count)
{
    const int64_t *shape = key->lengths, *strides = shape + key->ndim;
    int found = 1;
    *count = 1;
    for (int i = key->ndim - 1; i >= 0; i--) {
        found &= shape[i] == 1 || strides[i] == *count;
        *count *= shape[i];
    }
    return found;
}

/* Return dtype, first byte in the storage, bytes, and address of elements in host memory, and None where they lie in a
 * row, else shape and strides; None where there are none. `geometry` begins with offset, shape and strides.
 */
static PyObject *elements(PyObject *dtype, PyObject *const *geometry, const Key *key, int is_cpu)
{
    int64_t count;
    const int is_row = lie_in_a_row(key, &count), item = key->bits / 8 * key->lanes;
    const long long start = PyLong_AsLongLong(geometry[0]);
    if (start == -1 && PyErr_Occurred())
        return NULL;
    if (!is_cpu || !count)
        return none();
    PyObject *layout = is_row ? none() : NULL;
    if (!is_row && geometry[1] != NULL && geometry[2] != NULL)
        layout = PyTuple_Pack(2, geometry[1], geometry[2]);
    PyObject *items[] = {Py_NewRef(dtype), PyLong_FromLongLong(start * item), PyLong_FromLongLong(count * item),
                         PyLong_FromVoidPtr(key->data), layout};
    return tuple_of(5, items);
}

/* Return storage, its address, its bytes, geometry, key, whether it is in host memory, where the elements are there. */
static PyObject *description(
    PyObject *tensor, PyObject *storage, PyObject *address, PyObject *dtype, const Key *key, Py_ssize_t size, int is_cpu)
{
    PyObject *offset = PyObject_CallOneArg(storage_offset, tensor);
    if (offset == NULL)
        return NULL;
    PyObject *geometry[] = {offset, lengths(key->lengths, key->ndim), lengths(key->lengths + key->ndim, key->ndim),
                            Py_NewRef(dtype), Py_NewRef(Py_False), Py_NewRef(Py_False)};
    PyObject *found = elements(dtype, geometry, key, is_cpu);
    PyObject *items[] = {Py_NewRef(storage), Py_NewRef(address), PyLong_FromLongLong(key->storage_nbytes),
                         tuple_of(6, geometry), PyBytes_FromStringAndSize((const char *)key, size),
                         PyBool_FromLong(is_cpu), found};
    return tuple_of(7, items);
}

/* Return the value of a tensor on a storage, or its description; NULL where there is no key, with or without an error. */
static PyObject *value_or_description(PyObject *tensor, PyObject *storage, PyObject *address, PyObject *state)
{
    Key key;
    Py_ssize_t size = 0;
    int is_filled = 0, asked = 0;
    PyObject *found = NULL;
    if (state != NULL) {
        PyObject *place = PyObject_GetAttr(state, PLACE);
        PyObject *value = place == NULL ? NULL : PyObject_GetAttr(state, VALUE);
        if (value != NULL && PyBytes_Check(place)) { /* the first value on it has a key, so this tensor may be asked */
            is_filled = 1;
            size = fill(&key, tensor, storage);
            if (size > 0 && PyBytes_GET_SIZE(place) == size && !memcmp(PyBytes_AS_STRING(place), &key, (size_t)size)) {
                Py_INCREF(value);
                found = value;
            }
        }
        Py_XDECREF(value);
        Py_XDECREF(place);
        if (found != NULL || value == NULL || (is_filled && size <= 0))
            return found;
    }
    PyObject *dtype = PyObject_GetAttr(tensor, DTYPE);
    if (dtype != NULL && (asked = may_ask(tensor, dtype)) > 0) {
        if (!is_filled)
            size = fill(&key, tensor, storage);
        if (size > 0 && state != NULL)
            found = other_at(state, &key, size);
        if (size > 0 && found == NULL && !PyErr_Occurred())
            found = description(tensor, storage, address, dtype, &key, size, asked == 1);
    }
    Py_XDECREF(dtype);
    return found;
}

static PyObject *look(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "look takes 2 arguments, got %zd", count);
    PyObject *storage = PyObject_CallOneArg(untyped_storage, args[0]);
    if (storage == NULL)
        return NULL;
    PyObject *address = PyObject_GetAttr(storage, CDATA);
    PyObject *state = address == NULL ? NULL : PyDict_GetItemWithError(args[1], address);
    Py_XINCREF(state); /* the questions may let other threads run */
    PyObject *found = NULL;
    if (address != NULL && !PyErr_Occurred())
        found = value_or_description(args[0], storage, address, state);
    Py_XDECREF(state);
    Py_XDECREF(address);
    Py_DECREF(storage);
    if (found != NULL)
        return found;
    PyErr_Clear(); /* who asks next says what it was */
    return none();
}

static PyMethodDef METHODS[] = {
    {"use", use, METH_VARARGS, "Take torch's functions; False where those for DLPack are of another version."},
    {"look", (PyCFunction)(void (*)(void))look, METH_FASTCALL, "Return the value of a tensor, a tuple of seven that "
                                                               "describes a new one, or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_known_value", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__known_value(void)
{
    CDATA = PyUnicode_InternFromString("_cdata");
    PLACE = PyUnicode_InternFromString("place");
    VALUE = PyUnicode_InternFromString("value");
    OTHERS = PyUnicode_InternFromString("others");
    DTYPE = PyUnicode_InternFromString("dtype");
    IS_CPU = PyUnicode_InternFromString("is_cpu");
    IS_CUDA = PyUnicode_InternFromString("is_cuda");
    return CDATA && PLACE && VALUE && OTHERS && DTYPE && IS_CPU && IS_CUDA ? PyModule_Create(&MODULE) : NULL;
}
