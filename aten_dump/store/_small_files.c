/* Makes folders and small files in one call each: between the calls of the system Python's lock is not asked for. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

static int open_again(int folder, const char *name, int flags)
{
    int fd;
    do
        fd = openat(folder, name, flags, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

static int write_all(int fd, const char *data, Py_ssize_t left)
{
    while (left) {
        ssize_t written = write(fd, data, (size_t)left);
        if (written < 0 && errno != EINTR)
            return -1;
        if (written > 0) {
            data += written;
            left -= written;
        }
    }
    return 0;
}

static PyObject *make_folder(PyObject *module, PyObject *args)
{
    const char *outer, *name, *failed;
    int fd = -1, inside, number;
    (void)module;
    if (!PyArg_ParseTuple(args, "yy", &outer, &name))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    failed = outer;
    if (mkdir(outer, 0777) == 0 || errno == EEXIST) {
        inside = open_again(AT_FDCWD, outer, FOLDER);
        if (inside >= 0) {
            failed = name;
            if (mkdirat(inside, name, 0777) == 0)
                fd = open_again(inside, name, FOLDER);
            number = errno;
            close(inside);
            errno = number;
        }
    }
    Py_END_ALLOW_THREADS
    return fd < 0 ? PyErr_SetFromErrnoWithFilename(PyExc_OSError, failed) : PyLong_FromLong(fd);
}

static PyObject *make_file(PyObject *module, PyObject *args)
{
    const char *partial, *name, *data;
    Py_ssize_t nbytes;
    int folder, flags, fd, is_made, number = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "iyyiy#", &folder, &partial, &name, &flags, &data, &nbytes))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    fd = open_again(folder, partial, flags | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC);
    is_made = fd >= 0;
    if (!is_made || write_all(fd, data, nbytes) < 0)
        number = errno;
    else {
        if (close(fd) < 0 || renameat(folder, partial, folder, name) < 0)
            number = errno;
        fd = -1; /* closed also where that fails */
    }
    Py_END_ALLOW_THREADS
    return Py_BuildValue("iiO", fd, number, is_made ? Py_True : Py_False);
}

static PyMethodDef METHODS[] = {
    {"make_folder", make_folder, METH_VARARGS, "Make a folder in another, which is made if need be; open it."},
    {"make_file", make_file, METH_VARARGS, "Make a file in an open folder, write all of it, rename and close it."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_small_files", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__small_files(void)
{
    return PyModule_Create(&MODULE);
}
