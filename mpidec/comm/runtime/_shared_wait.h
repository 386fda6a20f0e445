/* Shared rows: waits for another rank, and what ends them. */
#ifndef MPIDEC_SHARED_WAIT_H
#define MPIDEC_SHARED_WAIT_H
#include "_shared_types.h"

static int reached(_Atomic uint64_t *flag, uint64_t seq) { return atomic_load_explicit(flag, memory_order_acquire) >= seq; }

/* Wait until *flag >= seq; whether that came within `patience` seconds.  Python's lock is given back while yielding. */
static int wait_for(_Atomic uint64_t *flag, uint64_t seq, int64_t spins, PyThreadState **unlocked)
{
    if (reached(flag, seq))
        return 1;
    for (int64_t look = 0; !*unlocked && look < spins; look++) {
        relax();
        if (reached(flag, seq))
            return 1;
    }
    if (!*unlocked)
        *unlocked = PyEval_SaveThread();
    double until = 0;
    for (long look = 1; !reached(flag, seq); look++) {
        if (look % 64 == 0) {
            double now = seconds();
            if (until == 0)
                until = now + patience;
            else if (now > until)
                return 0;
        }
        sched_yield();
    }
    return 1;
}

static void relock(PyThreadState **unlocked)
{
    if (*unlocked)
        PyEval_RestoreThread(*unlocked);
    *unlocked = NULL;
}

static Slot *slot(const Node *node, int64_t rank, uint64_t seq) { return node->heads[rank] + seq % SLOTS; }
static Published *published(Node *node, uint64_t seq) { return &node->published[seq % SLOTS]; }

static Header *header(const Node *node, int64_t rank) { return (Header *)node->heads[rank]; }

/* Refuse all further mixings, and let the other ranks know; the first reason (a reference to it is taken over) stays. */
static void refuse_mixings(Node *node, PyObject *reason)
{
    if (!node->broken && reason && !node->closed) {
        const char *text = PyUnicode_AsUTF8(reason);
        snprintf(header(node, node->me)->reason, sizeof header(node, node->me)->reason, "%s", text ? text : "an exception");
        atomic_store_explicit(&header(node, node->me)->out_of_step, 1, memory_order_release);
        node->broken = Py_NewRef(reason);
    }
    PyErr_Clear();
    Py_XDECREF(reason);
}

/* The exception that is set ends mixing `seq`, and this rank may be one mixing apart from the others. */
static void out_of_step(Node *node, uint64_t seq)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    refuse_mixings(node, PyUnicode_FromFormat("%s in mixing %llu", ((PyTypeObject *)kind)->tp_name, (unsigned long long)seq));
    PyErr_Restore(kind, error, trace);
}

/* Make progress elsewhere, and raise what is wrong: 0, or -1 with an exception, after which the network is out of step. */
static int report(Reader *r, int64_t answer, uint64_t seq)
{
    PyObject *reply = PyObject_CallFunction(r->report, "LK", (long long)answer, (unsigned long long)seq);
    if (reply) {
        Py_DECREF(reply);
        return 0;
    }
    if (answer >> 32 == LATE_POST || answer >> 32 == LATE_DONE)
        out_of_step(r->node, seq);
    return -1;
}

/* Handle signals at the end of mixing `seq`: 0, or -1 with the exception of a handler, after which the network is out of step. */
static int interrupted(Node *node, uint64_t seq)
{
    if (!PyErr_CheckSignals())
        return 0;
    out_of_step(node, seq);
    return -1;
}
#endif
