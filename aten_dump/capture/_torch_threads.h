/* Runs a job on the threads that torch's own ops run on: the team of the OpenMP runtime that it was built with.
 *
 * Theory of operation
 *     After an op of torch's the other threads of the team spin for milliseconds, each on a core, until the next one
 *     begins: threads of our own would have to share these cores with them. GOMP_parallel, which libgomp has and LLVM's
 *     and Intel's runtimes on Linux have too, calls a job on all of them, and the calling thread, within microseconds.
 *     The job takes its pieces from a counter that all share, so that it is right on any number of threads. They do not
 *     survive a fork: a child that asked for them would wait for ever, and does without.
 */

#ifndef ATEN_DUMP_TORCH_THREADS_H
#define ATEN_DUMP_TORCH_THREADS_H

#include <Python.h>
#include <pthread.h>
#include <stdint.h>

typedef void (*Job)(void *);

static void (*team_parallel)(Job, void *, unsigned, unsigned); /* GOMP_parallel; NULL where there is none */

static void run_on_team(Job job, void *argument, int threads)
{
#ifdef __GNUC__
    if (threads > 1 && team_parallel != NULL) {
        team_parallel(job, argument, (unsigned)threads, 0);
        return;
    }
#endif
    job(argument);
}

/* Return the number of the next piece that nobody has taken. */
static inline int64_t take_piece(int64_t *counter)
{
#ifdef __GNUC__
    return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
#else
    return (*counter)++;
#endif
}

static void forget_team(void)
{
    team_parallel = NULL;
}

static PyObject *use_team(PyObject *self, PyObject *address)
{
    const unsigned long long number = PyLong_AsUnsignedLongLong(address);
    (void)self;
    if (PyErr_Occurred())
        return NULL;
    if (team_parallel == NULL && number != 0)
        pthread_atfork(NULL, NULL, forget_team);
    team_parallel = (void (*)(Job, void *, unsigned, unsigned))(uintptr_t)number;
    Py_RETURN_NONE;
}

#define USE_TEAM                                                                                                       \
    {"use_team", use_team, METH_O,                                                                                     \
     "use_team(address)\n\nHave several threads be those that the GOMP_parallel at `address` has; 0 for none."}

#endif
