/* Hides objects from Python's collector. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

static PyObject *hide(PyObject *module, PyObject *objects)
{
    (void)module;
    for (Py_ssize_t i = 0; i < PyTuple_Size(objects); i++) {
        PyObject *one = PyTuple_GetItem(objects, i);
        if (PyObject_GC_IsTracked(one))
            PyObject_GC_UnTrack(one);
    }
    Py_INCREF(Py_None);
    return Py_None;
}

static PyMethodDef METHODS[] = {
    {"hide", hide, METH_VARARGS, "Have Python's collector pass over these objects."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_collector", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__collector(void)
{
    return PyModule_Create(&MODULE);
}
