/* Memory of the host as Python's objects, without ctypes, whose calls cost microseconds where nothing of it is in a
 * cache. No memory is checked: it must be there. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stdint.h>

static PyObject *bytes_at(PyObject *module, PyObject *args)
{
    unsigned long long address;
    Py_ssize_t nbytes;
    (void)module;
    if (!PyArg_ParseTuple(args, "Kn", &address, &nbytes))
        return NULL;
    return PyBytes_FromStringAndSize((const char *)(uintptr_t)address, nbytes);
}

static PyObject *memory_at(PyObject *module, PyObject *args)
{
    unsigned long long address;
    Py_ssize_t nbytes;
    (void)module;
    if (!PyArg_ParseTuple(args, "Kn", &address, &nbytes))
        return NULL;
    return PyMemoryView_FromMemory((char *)(uintptr_t)address, nbytes, 0x100 /* PyBUF_READ */);
}

static PyMethodDef METHODS[] = {
    {"bytes_at", bytes_at, METH_VARARGS, "bytes_at(address, nbytes)\n\nReturn a copy of memory."},
    {"memory_at", memory_at, METH_VARARGS, "memory_at(address, nbytes)\n\nReturn a view of memory, to be read."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_host_memory", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__host_memory(void)
{
    return PyModule_Create(&MODULE);
}
