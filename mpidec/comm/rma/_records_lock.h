/* Records and AgentRecords as they lie in memory, and the locks of records; see _records.c. */
#ifndef MPIDEC_RECORDS_LOCK_H
#define MPIDEC_RECORDS_LOCK_H
#include <Python.h>
#include "../runtime/_wait.h"
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { HEADER = 64, SPINS = 200, TURNS = 64, LARGE = 1 << 16 };    /* LARGE: bytes from which Python's lock is given back */

typedef struct {
    _Atomic uint64_t lock;                               /* 0, or the number of the holder plus one */
    uint64_t transfers;                                  /* into this slot since it was last taken */
    double p;
    uint64_t replaced;                                   /* whether one of them replaced the row instead of adding to it */
    uint64_t filled;                                     /* whether the row or p may differ from zero */
    uint64_t fresh;                                      /* of a value of 16-bit numbers: whether the row is newer than they are */
    uint64_t unused[2];
    char row[];
} Record;
_Static_assert(sizeof(Record) == HEADER && ATOMIC_LLONG_LOCK_FREE == 2, "records are shared between processes");

typedef struct {
    PyObject_HEAD
    Py_ssize_t nin, nout, count;
    int single;                                          /* float32 instead of float64 */
    uint64_t me;
    double patience;                                     /* seconds that a lock is waited for */
    char *held;                                          /* whether `update` holds the lock of a slot */
    Py_buffer *buffers;                                  /* value, scratch, ins, outs, sources (those without memory: NULL) */
} AgentRecords;

static PyTypeObject AgentRecordsType;

static int try_lock(Record *record, uint64_t me)
{
    uint64_t free = 0;
    return atomic_load_explicit(&record->lock, memory_order_relaxed) == 0
           && atomic_compare_exchange_strong_explicit(&record->lock, &free, me + 1, memory_order_acquire, memory_order_relaxed);
}

static void unlock(Record *record) { atomic_store_explicit(&record->lock, 0, memory_order_release); }

/* Take a lock; 0, or -1 with an exception.  Python's lock is given back while yielding; `unlocked` is the state to restore. */
static int lock(const AgentRecords *agent, Record *record, PyThreadState **unlocked)
{
    for (int look = 0; look < SPINS; look++) {
        if (try_lock(record, agent->me))
            return 0;
        relax();
    }
    if (!*unlocked)
        *unlocked = PyEval_SaveThread();
    double since = seconds(), looked = since;
    for (long turn = 1; !try_lock(record, agent->me); turn++) {
        sched_yield();
        if (turn % TURNS)
            continue;
        double now = seconds();
        if (now - looked > 0.1) {
            looked = now;
            PyEval_RestoreThread(*unlocked);
            *unlocked = NULL;
            if (PyErr_CheckSignals())
                return -1;
            if (now - since > agent->patience) {
                unsigned long long holder = atomic_load(&record->lock);
                PyErr_Format(PyExc_RuntimeError, "a slot of the window has been locked by rank %llu for %d s: that process is "
                             "stopped, or gone", holder ? holder - 1 : 0, (int)(now - since));
                return -1;
            }
            *unlocked = PyEval_SaveThread();
        }
    }
    return 0;
}

static void relock(PyThreadState **unlocked)
{
    if (*unlocked)
        PyEval_RestoreThread(*unlocked);
    *unlocked = NULL;
}

static Record *value_of(const AgentRecords *agent) { return agent->buffers[0].buf; }
static char *scratch_of(const AgentRecords *agent) { return agent->buffers[1].buf; }
static Record *in_of(const AgentRecords *agent, Py_ssize_t k) { return agent->buffers[2 + k].buf; }
static Record *out_of(const AgentRecords *agent, Py_ssize_t k) { return agent->buffers[2 + agent->nin + k].buf; }
static Record *source_of(const AgentRecords *agent, Py_ssize_t k) { return agent->buffers[2 + agent->nin + agent->nout + k].buf; }
static size_t bytes_of(const AgentRecords *agent) { return agent->count * (agent->single ? sizeof(float) : sizeof(double)); }
#endif
