/* A bell for which a thread waits together with the other threads of its team (`_torch_threads.h`), so that none of them
 * spins on a core that whoever is waited for could use.
 *
 * A bell is a number that its owner keeps in memory: 0 until it is rung. One lock and one condition serve all bells.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "_torch_threads.h"

#if defined(__linux__)
#define CLOCK CLOCK_MONOTONIC
#else
#define CLOCK CLOCK_REALTIME /* macOS waits by no other */
#endif

static pthread_mutex_t lock;
static pthread_cond_t is_rung;

typedef struct {
    const int64_t *bell;
    struct timespec until;
} Wait;

static void wait_for_bell(void *argument)
{
    const Wait *wait = argument;
    pthread_mutex_lock(&lock);
    while (!*wait->bell && pthread_cond_timedwait(&is_rung, &lock, &wait->until) == 0)
        ;
    pthread_mutex_unlock(&lock);
}

static void set_bell(int64_t *bell, int64_t number)
{
    pthread_mutex_lock(&lock);
    *bell = number;
    if (number)
        pthread_cond_broadcast(&is_rung);
    pthread_mutex_unlock(&lock);
}

static PyObject *wait(PyObject *self, PyObject *args)
{
    unsigned long long address;
    double seconds;
    int threads;
    Wait one;
    (void)self;
    if (!PyArg_ParseTuple(args, "Kdi", &address, &seconds, &threads))
        return NULL;
    int64_t *bell = (int64_t *)(uintptr_t)address;
    one.bell = bell;
    clock_gettime(CLOCK, &one.until);
    const int64_t end = one.until.tv_nsec + (int64_t)(seconds * 1e9);
    one.until.tv_sec += (time_t)(end / 1000000000);
    one.until.tv_nsec = (long)(end % 1000000000);
    Py_BEGIN_ALLOW_THREADS
    run_on_team(wait_for_bell, &one, threads);
    set_bell(bell, 0);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *ring(PyObject *self, PyObject *address)
{
    const unsigned long long number = PyLong_AsUnsignedLongLong(address);
    (void)self;
    if (PyErr_Occurred())
        return NULL;
    set_bell((int64_t *)(uintptr_t)number, 1);
    Py_RETURN_NONE;
}

/* A forked child has no threads that could hold the lock, and may be a copy of a moment in which one did. */
static void make_lock(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#if defined(__linux__)
    pthread_condattr_setclock(&attributes, CLOCK);
#endif
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&is_rung, &attributes);
    pthread_condattr_destroy(&attributes);
}

static PyMethodDef METHODS[] = {
    {"wait", wait, METH_VARARGS,
     "wait(bell, seconds, threads)\n\n"
     "Return when the bell at that address is rung, or after so many seconds, and set it back. So many threads wait."},
    {"ring", ring, METH_O, "ring(bell)\n\nWake who waits, or will wait next."},
    USE_TEAM,
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_team_bell", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__team_bell(void)
{
    make_lock();
    pthread_atfork(NULL, NULL, make_lock);
    return PyModule_Create(&MODULE);
}
