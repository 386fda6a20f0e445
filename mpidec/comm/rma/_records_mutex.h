/* Mutexes of ranks, and words that are changed by compare-and-swap. */
#ifndef MPIDEC_RECORDS_MUTEX_H
#define MPIDEC_RECORDS_MUTEX_H
#include <Python.h>
#include "../runtime/_wait.h"
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* A mutex: its owner plus one, when it was taken, how many wait, and for each rank whether it waits.  Who releases it hands it to
 * the next waiting rank, in the order of the ranks, so that none waits for more than one turn of each other one. */
typedef struct {
    _Atomic uint64_t owner;
    _Atomic double since;                                /* CLOCK_MONOTONIC */
    _Atomic uint64_t waiting;
    uint64_t unused[5];
    _Atomic uint64_t waits[];
} Mutex;

static Mutex *mutex_of(PyObject *const *args, Py_ssize_t nargs, Py_buffer *view, uint64_t *rank)
{
    if (nargs != 2 || PyObject_GetBuffer(args[0], view, PyBUF_WRITABLE))
        return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_TypeError, "expected the memory of a mutex and a rank"), NULL);
    *rank = PyLong_AsUnsignedLongLong(args[1]);
    if (!PyErr_Occurred() && (Py_ssize_t)(sizeof(Mutex) + (*rank + 1) * sizeof(uint64_t)) <= view->len)
        return view->buf;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_IndexError, "there is no rank %llu", (unsigned long long)*rank);
    PyBuffer_Release(view);
    return NULL;
}

/* try_mutex(memory, rank): -1 if the rank has it now, else its owner. */
static PyObject *try_mutex(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    uint64_t rank, owner = 0;
    Mutex *mutex = mutex_of(args, nargs, &view, &rank);
    if (!mutex)
        return NULL;
    if (atomic_load(&mutex->owner) == rank + 1 || atomic_compare_exchange_strong(&mutex->owner, &owner, rank + 1)) {
        uint64_t waits = 1;
        if (atomic_compare_exchange_strong(&mutex->waits[rank], &waits, 0))
            atomic_fetch_sub(&mutex->waiting, 1);
        atomic_store(&mutex->since, seconds());
        owner = 0;
    }
    PyBuffer_Release(&view);
    return PyLong_FromLongLong((long long)owner - 1);
}

/* await_mutex(memory, rank): ask to be handed it. */
static PyObject *await_mutex(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    uint64_t rank, waits = 0;
    Mutex *mutex = mutex_of(args, nargs, &view, &rank);
    if (!mutex)
        return NULL;
    if (atomic_compare_exchange_strong(&mutex->waits[rank], &waits, 1))
        atomic_fetch_add(&mutex->waiting, 1);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

/* leave_mutex(memory, rank): do not wait any more; False if it has been handed over in the meantime. */
static PyObject *leave_mutex(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    uint64_t rank, waits = 1;
    Mutex *mutex = mutex_of(args, nargs, &view, &rank);
    if (!mutex)
        return NULL;
    int left = atomic_compare_exchange_strong(&mutex->waits[rank], &waits, 0);
    if (left)
        atomic_fetch_sub(&mutex->waiting, 1);
    PyBuffer_Release(&view);
    return PyBool_FromLong(left);
}

/* release_mutex(memory, rank): hand it to the next rank that waits; False if the rank does not have it. */
static PyObject *release_mutex(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    uint64_t rank, next = 0;
    Mutex *mutex = mutex_of(args, nargs, &view, &rank);
    if (!mutex)
        return NULL;
    int had = atomic_load(&mutex->owner) == rank + 1;
    if (had) {
        uint64_t ranks = (view.len - sizeof(Mutex)) / sizeof(uint64_t);
        for (uint64_t step = 1; step < ranks && atomic_load(&mutex->waiting); step++) {
            uint64_t waits = 1, other = (rank + step) % ranks;
            if (atomic_compare_exchange_strong(&mutex->waits[other], &waits, 0)) {
                atomic_fetch_sub(&mutex->waiting, 1);
                next = other + 1;
                break;
            }
        }
        if (next)
            atomic_store(&mutex->since, seconds());
        atomic_store(&mutex->owner, next);
#ifdef __linux__
        if (next)
            syscall(SYS_futex, (uint32_t *)&mutex->waits[next - 1], FUTEX_WAKE, 1, NULL, NULL, 0);
#endif
    }
    PyBuffer_Release(&view);
    return PyBool_FromLong(had);
}

/* doze_mutex(memory, rank): let others run for half a millisecond, or until the rank is handed the mutex. */
static PyObject *doze_mutex(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    uint64_t rank;
    Mutex *mutex = mutex_of(args, nargs, &view, &rank);
    if (!mutex)
        return NULL;
    struct timespec most = {0, 500000};
    Py_BEGIN_ALLOW_THREADS
#ifdef __linux__
    syscall(SYS_futex, (uint32_t *)&mutex->waits[rank], FUTEX_WAIT, 1, &most, NULL, 0);
#else
    nanosleep(&most, NULL);
#endif
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

/* held(memory, rank): seconds since the mutex was taken. */
static PyObject *held_mutex(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    uint64_t rank;
    Mutex *mutex = mutex_of(args, nargs, &view, &rank);
    if (!mutex)
        return NULL;
    double held = seconds() - atomic_load(&mutex->since);
    PyBuffer_Release(&view);
    return PyFloat_FromDouble(held);
}

/* swap(memory, k, before, after): set the k-th word to `after` if it is `before`; whether it was. */
static PyObject *swap(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    if (nargs != 4 || PyObject_GetBuffer(args[0], &view, PyBUF_WRITABLE))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "swap takes memory, a number and two words");
    size_t k = PyLong_AsSize_t(args[1]);
    uint64_t before = PyLong_AsUnsignedLongLong(args[2]), after = PyLong_AsUnsignedLongLong(args[3]);
    PyObject *swapped = NULL;
    if (!PyErr_Occurred() && k < view.len / sizeof(uint64_t))
        swapped = PyBool_FromLong(atomic_compare_exchange_strong((_Atomic uint64_t *)view.buf + k, &before, after));
    else if (!PyErr_Occurred())
        PyErr_Format(PyExc_IndexError, "there is no word %zu", k);
    PyBuffer_Release(&view);
    return swapped;
}
#endif
