/* Finds the value of a tensor that was seen before, or returns the place of a new one.
 *
 * Theory of operation
 *     This is asked for each tensor of each op, so it reads what torch has in memory, instead of making calls that each
 *     create an object: a Python tensor points to a TensorImpl, which points to a StorageImpl and has a set of dispatch
 *     keys; the storage has its bytes. The words of each that hold these are found when the module is first used, by
 *     looking for values that torch returns for samples. If that is not one word, the same in all samples, nothing is
 *     read from memory and torch is asked. What the set of keys decides, as the device and the negative bit, is asked
 *     once for each set.
 *     Address, shape, strides and dtype come through DLPack (https://dmlc.github.io/dlpack/latest/c_api.html).
 *     DLPack would give a copy-on-write tensor memory of its own. Samples of such storages have words in common that
 *     others lack (one is torch's function that frees them); of their tensors Python is asked, and the key is the same.
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
    int64_t start; /* the first byte in the storage, whose memory may become another */
    uint8_t code, bits;
    uint16_t lanes;
    int32_t ndim;
    int64_t lengths[2 * MOST_DIMS]; /* shape, strides */
} Key;

/* What torch has of a tensor. */
typedef struct {
    const char *storage; /* its StorageImpl */
    int64_t storage_nbytes;
    uint64_t keys; /* dispatch keys, which decide the device and more */
} Parts;

#define MOST_WORDS 64
#define TENSOR_WORDS 22 /* no more than TensorImpl and StorageImpl have, some 180 and 100 bytes */
#define STORAGE_WORDS 8
#define MOST_KEY_SETS 32

static FromPyObject from;
/* Functions of torch; one that returns the device of tensors that have keys, and one their layout; the dtypes of
 * those; what a class has for three attributes of its storages' states.
 */
static PyObject *untyped_storage, *storage_offset, *keyed_device, *layout_of, *keyed_dtypes, *place_of, *value_of,
    *others_of;
static PyTypeObject *tensor_type;
static PyObject *DTYPE; /* a name */
static int at_impl, at_storage, at_keys, at_nbytes, at_data; /* bytes from the beginning of what has them */
static uint64_t cow_words[STORAGE_WORDS]; /* what a copy-on-write storage begins with */
static uint64_t cow_mask;                 /* a bit for each of these words that all such storages have, and no others */
static struct {
    uint64_t keys;
    int device;
} key_sets[MOST_KEY_SETS];
static int key_set_count;

static PyObject *none(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

static uint64_t word_at(const void *object, int byte)
{
    uint64_t word;
    memcpy(&word, (const char *)object + byte, sizeof word);
    return word;
}

static const void *pointer_at(const void *object, int byte)
{
    return (const void *)(uintptr_t)word_at(object, byte);
}

/* Return a bit for each of the first words of an object that has the value. */
static uint64_t words_with(const void *object, Py_ssize_t words, uint64_t value)
{
    uint64_t found = 0;
    for (int i = 0; i < words && i < MOST_WORDS; i++)
        if (word_at(object, i * 8) == value)
            found |= (uint64_t)1 << i;
    return found;
}

/* Set `byte` to where the one word lies that is left; return whether it is one. */
static int is_one_word(uint64_t words, int *byte)
{
    for (*byte = 0; words && !(words & 1); words >>= 1)
        *byte += 8;
    return words == 1;
}

/* Compare one more sample, to find the words that copy-on-write storages alone have. The first is such a storage. */
static void compare_words(int number, int is_cow, const void *storage)
{
    if (number == 0)
        cow_mask = is_cow ? ((uint64_t)1 << STORAGE_WORDS) - 1 : 0;
    for (int i = 0; i < STORAGE_WORDS; i++) {
        const uint64_t word = word_at(storage, i * 8);
        if (number == 0)
            cow_words[i] = word;
        else if ((word == cow_words[i]) != is_cow)
            cow_mask &= ~((uint64_t)1 << i);
    }
}

/* Find where torch has what it has, by samples: each a tensor, whether it is copy-on-write, the addresses of its
 * TensorImpl and StorageImpl, its dispatch keys, the bytes of the storage and their address. Return 1 where all was
 * found, else 0; -1 with an error set.
 */
static int find_parts(PyObject *samples)
{
    uint64_t impl = ~(uint64_t)0, storage = impl, keys = impl, nbytes = impl, data = impl;
    if (sizeof(void *) != 8)
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(samples); i++) {
        PyObject *tensor;
        int is_cow;
        unsigned long long told[5];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(samples, i), "OpKKKKK", &tensor, &is_cow, &told[0], &told[1], &told[2],
                              &told[3], &told[4]))
            return -1;
        const void *tensor_impl = (const void *)(uintptr_t)told[0], *storage_impl = (const void *)(uintptr_t)told[1];
        if (i == 0)
            tensor_type = Py_TYPE(tensor);
        impl &= words_with(tensor, Py_TYPE(tensor)->tp_basicsize / 8, told[0]);
        storage &= words_with(tensor_impl, TENSOR_WORDS, told[1]);
        keys &= words_with(tensor_impl, TENSOR_WORDS, told[2]);
        nbytes &= words_with(storage_impl, STORAGE_WORDS, told[3]);
        data &= words_with(storage_impl, STORAGE_WORDS, told[4]);
        compare_words((int)i, is_cow, storage_impl);
    }
    return is_one_word(impl, &at_impl) && is_one_word(storage, &at_storage) && is_one_word(keys, &at_keys) &&
        is_one_word(nbytes, &at_nbytes) && is_one_word(data, &at_data) && cow_mask;
}

static PyObject *use(PyObject *module, PyObject *args)
{
    PyObject *capsule, *samples, *of[8];
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!OOOOO(OOO)", &capsule, &PyTuple_Type, &samples, &of[0], &of[1], &of[2], &of[3],
                          &of[4], &of[5], &of[6], &of[7]))
        return NULL;
    ExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (api == NULL)
        return NULL;
    int is_found = api->major != MAJOR || api->from == NULL ? 0 : find_parts(samples);
    if (is_found <= 0)
        return is_found < 0 ? NULL : PyBool_FromLong(0);
    for (int i = 5; i < 8; i++)
        if (Py_TYPE(of[i])->tp_descr_get == NULL)
            return PyErr_Format(PyExc_TypeError, "%R is no attribute of a class", of[i]);
    Py_INCREF(tensor_type);
    for (int i = 0; i < 8; i++)
        Py_INCREF(of[i]);
    untyped_storage = of[0];
    storage_offset = of[1];
    keyed_device = of[2];
    layout_of = of[3];
    keyed_dtypes = of[4];
    place_of = of[5];
    value_of = of[6];
    others_of = of[7];
    from = api->from;
    return PyBool_FromLong(1);
}

/* Read what torch has of a tensor; return whether it has a storage of a known size. */
static int read_parts(Parts *parts, PyObject *tensor)
{
    const void *impl = pointer_at(tensor, at_impl);
    if (impl == NULL || (parts->storage = pointer_at(impl, at_storage)) == NULL)
        return 0;
    parts->keys = word_at(impl, at_keys);
    parts->storage_nbytes = (int64_t)word_at(parts->storage, at_nbytes);
    return parts->storage_nbytes >= 0; /* a symbolic one is below */
}

/* Return 1 for tensors of host memory that have keys, 2 for those of CUDA, 0 for others; -1 with an error set. */
static int device_of(PyObject *tensor, uint64_t keys)
{
    for (int i = 0; i < key_set_count; i++)
        if (key_sets[i].keys == keys)
            return key_sets[i].device;
    PyObject *answer = PyObject_CallOneArg(keyed_device, tensor);
    if (answer == NULL)
        return -1;
    int device = (int)PyLong_AsLong(answer);
    Py_DECREF(answer);
    if (device >= 0 && key_set_count < MOST_KEY_SETS) {
        key_sets[key_set_count].keys = keys;
        key_sets[key_set_count++].device = device;
    }
    return device;
}

static int has_cow_word(const char *storage)
{
    for (int i = 0; i < STORAGE_WORDS; i++)
        if ((cow_mask >> i & 1) && word_at(storage, i * 8) == cow_words[i])
            return 1;
    return 0;
}

static Py_ssize_t key_bytes(const Key *key)
{
    return (Py_ssize_t)(offsetof(Key, lengths) + 2 * (size_t)key->ndim * sizeof(int64_t));
}

/* Fill `key` as `fill` does, by asking Python. */
static Py_ssize_t fill_by_asking(Key *key, PyObject *tensor)
{
    long long start;
    PyObject *halves[2]; /* shape, strides */
    Py_ssize_t size = 0;
    PyObject *told = PyObject_CallOneArg(layout_of, tensor);
    if (told != NULL && PyArg_ParseTuple(told, "LbbO!O!", &start, &key->code, &key->bits, &PyTuple_Type, &halves[0],
                                         &PyTuple_Type, &halves[1])) {
        const Py_ssize_t ndim = PyTuple_GET_SIZE(halves[0]);
        key->start = start;
        key->lanes = 1;
        key->ndim = (int32_t)ndim;
        if (ndim <= MOST_DIMS && PyTuple_GET_SIZE(halves[1]) == ndim)
            size = key_bytes(key);
        for (Py_ssize_t i = 0; size && i < 2 * ndim; i++) {
            key->lengths[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(halves[i / ndim], i % ndim));
            if (i < ndim && key->lengths[i] == 0) /* without elements it has no key */
                size = 0;
        }
    }
    Py_XDECREF(told);
    return PyErr_Occurred() ? -1 : size;
}

/* Fill `key`; return its bytes, 0 where there is none, -1 with an error set. */
static Py_ssize_t fill(Key *key, PyObject *tensor, const Parts *parts)
{
    DLTensor found;
    key->storage_nbytes = parts->storage_nbytes;
    if (has_cow_word(parts->storage))
        return fill_by_asking(key, tensor);
    if (from(tensor, &found) != 0)
        return -1;
    if (found.data == NULL || found.ndim > MOST_DIMS)
        return 0;
    key->start = (const char *)found.data + found.byte_offset - (const char *)pointer_at(parts->storage, at_data);
    key->code = found.code;
    key->bits = found.bits;
    key->lanes = found.lanes;
    key->ndim = found.ndim;
    size_t half = (size_t)found.ndim * sizeof(int64_t);
    if (half) {
        memcpy(key->lengths, found.shape, half);
        memcpy(key->lengths + found.ndim, found.strides, half);
    }
    return key_bytes(key);
}

/* Read an attribute, by what the class has for it: not looked for each time. */
static PyObject *attribute(PyObject *state, PyObject *of_class)
{
    return Py_TYPE(of_class)->tp_descr_get(of_class, state, (PyObject *)Py_TYPE(state));
}

/* Return the value that a state has at a key, but its first: NULL where there is none. */
static PyObject *other_at(PyObject *state, const Key *key, Py_ssize_t size)
{
    PyObject *value = NULL;
    PyObject *others = attribute(state, others_of);
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

/* Count the elements of a tensor; return 1 if they are contiguous. */
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

/* Return dtype, first byte in the storage and bytes of elements, the address of those in host memory, and None where
 * they lie in a row, else shape and strides; None where there are none. `geometry` begins with offset, shape and
 * strides; `data` is the memory of the storage, NULL where that is of a device.
 */
static PyObject *elements(PyObject *dtype, PyObject *const *geometry, const Key *key, const char *data)
{
    int64_t count;
    const int is_row = lie_in_a_row(key, &count), item = key->bits / 8 * key->lanes;
    const long long start = PyLong_AsLongLong(geometry[0]);
    if (start == -1 && PyErr_Occurred())
        return NULL;
    if (!count)
        return none();
    PyObject *layout = is_row ? none() : NULL;
    if (!is_row && geometry[1] != NULL && geometry[2] != NULL)
        layout = PyTuple_Pack(2, geometry[1], geometry[2]);
    PyObject *items[] = {Py_NewRef(dtype), PyLong_FromLongLong(start * item), PyLong_FromLongLong(count * item),
                         data ? PyLong_FromVoidPtr((void *)(data + key->start)) : none(), layout};
    return tuple_of(5, items);
}

/* Return storage, its address, its bytes, geometry, key, whether it is in host memory, where the elements are. */
static PyObject *description(PyObject *tensor, const Parts *parts, PyObject *address, PyObject *dtype, const Key *key,
                             Py_ssize_t size, int is_cpu)
{
    PyObject *offset = PyObject_CallOneArg(storage_offset, tensor);
    if (offset == NULL)
        return NULL;
    PyObject *geometry[] = {offset, lengths(key->lengths, key->ndim), lengths(key->lengths + key->ndim, key->ndim),
                            Py_NewRef(dtype), Py_NewRef(Py_False), Py_NewRef(Py_False)};
    PyObject *found = elements(dtype, geometry, key, is_cpu ? pointer_at(parts->storage, at_data) : NULL);
    PyObject *items[] = {PyObject_CallOneArg(untyped_storage, tensor), Py_NewRef(address),
                         PyLong_FromLongLong(key->storage_nbytes), tuple_of(6, geometry),
                         PyBytes_FromStringAndSize((const char *)key, size), PyBool_FromLong(is_cpu), found};
    return tuple_of(7, items);
}

/* Return the value of a tensor on a storage, or its description; NULL where there is no key, with or without an error. */
static PyObject *value_or_description(PyObject *tensor, const Parts *parts, PyObject *address, PyObject *state, int is_cpu)
{
    Key key;
    Py_ssize_t size = 0;
    int is_filled = 0;
    PyObject *found = NULL;
    if (state != NULL) {
        PyObject *place = attribute(state, place_of);
        PyObject *value = place == NULL ? NULL : attribute(state, value_of);
        if (value != NULL && PyBytes_Check(place)) { /* the first value on it has a key, so this tensor may be asked */
            is_filled = 1;
            size = fill(&key, tensor, parts);
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
    if (dtype != NULL && PySet_Contains(keyed_dtypes, dtype) == 1) { /* DLPack has no others; an error takes it long */
        if (!is_filled)
            size = fill(&key, tensor, parts);
        if (size > 0 && state != NULL)
            found = other_at(state, &key, size);
        if (size > 0 && found == NULL && !PyErr_Occurred())
            found = description(tensor, parts, address, dtype, &key, size, is_cpu);
    }
    Py_XDECREF(dtype);
    return found;
}

static PyObject *look(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Parts parts;
    int device;
    (void)module;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "look takes 2 arguments, got %zd", count);
    if (tensor_type == NULL || !PyObject_TypeCheck(args[0], tensor_type)) /* else it is no tensor that is read */
        return PyErr_Format(PyExc_TypeError, "look takes a tensor, got %.100s", Py_TYPE(args[0])->tp_name);
    PyObject *found = NULL;
    if (read_parts(&parts, args[0]) && (device = device_of(args[0], parts.keys)) > 0) {
        PyObject *address = PyLong_FromVoidPtr((void *)parts.storage);
        PyObject *state = address == NULL ? NULL : PyDict_GetItemWithError(args[1], address);
        Py_XINCREF(state); /* the questions may let other threads run */
        if (address != NULL && !PyErr_Occurred())
            found = value_or_description(args[0], &parts, address, state, device == 1);
        Py_XDECREF(state);
        Py_XDECREF(address);
    }
    if (found != NULL)
        return found;
    PyErr_Clear(); /* who asks next says what it was */
    return none();
}

static PyMethodDef METHODS[] = {
    {"use", use, METH_VARARGS, "Take torch's functions; False where it has what it has of a tensor elsewhere."},
    {"look", (PyCFunction)(void (*)(void))look, METH_FASTCALL, "Return the value of a tensor, a tuple of seven that "
                                                               "describes a new one, or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_known_value", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__known_value(void)
{
    DTYPE = PyUnicode_InternFromString("dtype");
    return DTYPE ? PyModule_Create(&MODULE) : NULL;
}
