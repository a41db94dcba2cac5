/* Memory of the host as Python's objects, without ctypes, whose calls cost microseconds where nothing of it is in a
 * cache. No memory is checked: it must be there. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stdint.h>

/* Read the arguments of both functions; 0 with an exception set where they are not two numbers. */
static int two_numbers(PyObject *const *args, Py_ssize_t count, char **address, Py_ssize_t *nbytes)
{
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "expected an address and a number of bytes, got %zd arguments", count);
        return 0;
    }
    *address = (char *)(uintptr_t)PyLong_AsUnsignedLongLong(args[0]);
    *nbytes = PyLong_AsSsize_t(args[1]);
    return !PyErr_Occurred();
}

static PyObject *bytes_at(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    char *address;
    Py_ssize_t nbytes;
    (void)module;
    return two_numbers(args, count, &address, &nbytes) ? PyBytes_FromStringAndSize(address, nbytes) : NULL;
}

static PyObject *memory_at(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    char *address;
    Py_ssize_t nbytes;
    (void)module;
    if (!two_numbers(args, count, &address, &nbytes))
        return NULL;
    return PyMemoryView_FromMemory(address, nbytes, 0x100 /* PyBUF_READ */);
}

/* A cast by way of a function without arguments: its type is the one that compilers let any other be. */
#define FUNCTION(name) (PyCFunction)(void (*)(void))(name), METH_FASTCALL

static PyMethodDef METHODS[] = {
    {"bytes_at", FUNCTION(bytes_at), "bytes_at(address, nbytes)\n\nReturn a copy of memory."},
    {"memory_at", FUNCTION(memory_at), "memory_at(address, nbytes)\n\nReturn a view of memory, to be read."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_host_memory", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__host_memory(void)
{
    return PyModule_Create(&MODULE);
}
