/* Records: arrays with a push-sum weight in memory that other processes write to, each behind a lock.
 *
 * A record is a header of 64 bytes and a row of numbers.  Whoever reads or writes a record holds its lock, for about one pass over
 * the row, so that nobody ever sees a row and a weight of different moments, and nothing is lost or counted twice.  Records are
 * locked in one order: a value before slots.  Who holds the lock of a slot waits for nothing, but for an agent that updates its value:
 * it holds all its own slots, so that it updates with all of them or not at all, and waits for those that are being written to.
 *
 * A Port is all that one agent does with records: its own value; `ins`, the slots that its in-neighbours write to; `outs`, its
 * slots at the out-neighbours (or, for a neighbour on another node, an outbox of the same form that a message empties); `sources`,
 * the values of the in-neighbours on this node.
 *
 * Products are computed and rounded in double precision.  With `rest`, the value becomes what is left of it, value - sum of what
 * was sent, so that a sum over all agents survives millions of transfers up to unbiased rounding: 1/3 is a little less than a third.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "../runtime/_wait.h"
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { HEADER = 64, SPINS = 200, TURNS = 64, LARGE = 1 << 16 };    /* LARGE: bytes from which Python's lock is given back */

typedef struct {
    _Atomic uint64_t lock;                               /* 0, or the number of the holder plus one */
    uint64_t transfers;                                  /* into this slot since it was last taken */
    double p;
    uint64_t replaced;                                   /* whether one of them replaced the row instead of adding to it */
    uint64_t filled;                                     /* whether the row or p may differ from zero */
    uint64_t unused[3];
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
} Port;

static PyTypeObject PortType;

static int try_lock(Record *record, uint64_t me)
{
    uint64_t free = 0;
    return atomic_load_explicit(&record->lock, memory_order_relaxed) == 0
           && atomic_compare_exchange_strong_explicit(&record->lock, &free, me + 1, memory_order_acquire, memory_order_relaxed);
}

static void unlock(Record *record) { atomic_store_explicit(&record->lock, 0, memory_order_release); }

/* Take a lock; 0, or -1 with an exception.  Python's lock is given back while yielding; `unlocked` is the state to restore. */
static int lock(const Port *port, Record *record, PyThreadState **unlocked)
{
    for (int look = 0; look < SPINS; look++) {
        if (try_lock(record, port->me))
            return 0;
        relax();
    }
    if (!*unlocked)
        *unlocked = PyEval_SaveThread();
    double since = seconds(), looked = since;
    for (long turn = 1; !try_lock(record, port->me); turn++) {
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
            if (now - since > port->patience) {
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

static Record *value_of(const Port *port) { return port->buffers[0].buf; }
static char *scratch_of(const Port *port) { return port->buffers[1].buf; }
static Record *in_of(const Port *port, Py_ssize_t k) { return port->buffers[2 + k].buf; }
static Record *out_of(const Port *port, Py_ssize_t k) { return port->buffers[2 + port->nin + k].buf; }
static Record *source_of(const Port *port, Py_ssize_t k) { return port->buffers[2 + port->nin + port->nout + k].buf; }
static size_t bytes_of(const Port *port) { return port->count * (port->single ? sizeof(float) : sizeof(double)); }

/* ------------------------------------------------------------------------------------------------------------- arithmetic */

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define VECTOR __attribute__((target_clones("avx2", "default"), optimize("O3", "fp-contract=off")))
#else
#define VECTOR
#endif

#define DEFINE(T, TYPE)                                                                                                  \
    /* to = w x, or to + w x; the same is added to `sent`, if given */                                                   \
    VECTOR static void put_##T(TYPE *restrict to, const TYPE *restrict x, double w, ptrdiff_t n)                         \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < n; t++)                                                                                \
            to[t] = (TYPE)(w * x[t]);                                                                                    \
    }                                                                                                                    \
    VECTOR static void add_##T(TYPE *restrict to, const TYPE *restrict x, double w, ptrdiff_t n)                         \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < n; t++)                                                                                \
            to[t] += (TYPE)(w * x[t]);                                                                                   \
    }                                                                                                                    \
    VECTOR static void put_sent_##T(TYPE *restrict to, const TYPE *restrict x, double w, ptrdiff_t n, TYPE *restrict sent) \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < n; t++) {                                                                              \
            TYPE part = (TYPE)(w * x[t]);                                                                                \
            to[t] = part;                                                                                                \
            sent[t] += part;                                                                                             \
        }                                                                                                                \
    }                                                                                                                    \
    VECTOR static void add_sent_##T(TYPE *restrict to, const TYPE *restrict x, double w, ptrdiff_t n, TYPE *restrict sent) \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < n; t++) {                                                                              \
            TYPE part = (TYPE)(w * x[t]);                                                                                \
            to[t] += part;                                                                                               \
            sent[t] += part;                                                                                             \
        }                                                                                                                \
    }                                                                                                                    \
    VECTOR static void leave_##T(TYPE *restrict x, const TYPE *restrict sent, ptrdiff_t n)                               \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < n; t++)                                                                                \
            x[t] -= sent[t];                                                                                             \
    }                                                                                                                    \
    VECTOR static void scale_##T(TYPE *x, double w, ptrdiff_t n)                                                         \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < n; t++)                                                                                \
            x[t] = (TYPE)(w * x[t]);                                                                                     \
    }                                                                                                                    \
    VECTOR static void take_##T(TYPE *restrict x, const TYPE *restrict slot, double w, ptrdiff_t n)                      \
    {                                                                                                                    \
        if (w == 1.0)                                                                                                    \
            for (ptrdiff_t t = 0; t < n; t++)                                                                            \
                x[t] += slot[t];                                                                                         \
        else                                                                                                             \
            for (ptrdiff_t t = 0; t < n; t++)                                                                            \
                x[t] = (TYPE)(x[t] + w * slot[t]);                                                                       \
    }
DEFINE(d, double)
DEFINE(f, float)
#define AS(T, p) ((T *)(p))

/* Write w x into a slot whose lock is held. */
static void write_slot(const Port *port, Record *slot, const char *x, double w, double p, int add, char *sent)
{
    ptrdiff_t n = port->count;
    int replace = !add;
    if (port->single) {
        float *to = AS(float, slot->row);
        if (sent)
            (add ? add_sent_f : put_sent_f)(to, AS(const float, x), w, n, AS(float, sent));
        else if (replace && w == 1.0)
            memcpy(to, x, bytes_of(port));
        else
            (add ? add_f : put_f)(to, AS(const float, x), w, n);
    } else {
        double *to = AS(double, slot->row);
        if (sent)
            (add ? add_sent_d : put_sent_d)(to, AS(const double, x), w, n, AS(double, sent));
        else if (replace && w == 1.0)
            memcpy(to, x, bytes_of(port));
        else
            (add ? add_d : put_d)(to, AS(const double, x), w, n);
    }
    slot->p = add ? slot->p + p : p;
    slot->replaced |= replace;
    slot->filled = 1;
    slot->transfers++;
}

static void scale(const Port *port, char *x, double w)
{
    if (w == 0.0)
        memset(x, 0, bytes_of(port));
    else if (w != 1.0 && port->single)
        scale_f(AS(float, x), w, port->count);
    else if (w != 1.0)
        scale_d(AS(double, x), w, port->count);
}

static void take(const Port *port, char *x, const char *slot, double w)
{
    if (port->single)
        take_f(AS(float, x), AS(const float, slot), w, port->count);
    else
        take_d(AS(double, x), AS(const double, slot), w, port->count);
}

/* ---------------------------------------------------------------------------------------------------------------- methods */

/* The k-th entry of a list of weights, which are floats or None: whether there is one; -1 with an exception. */
static int weight_of(PyObject *weights, Py_ssize_t k, double *weight)
{
    PyObject *entry = PyList_GET_ITEM(weights, k);
    if (entry == Py_None)
        return 0;
    if (!PyFloat_Check(entry)) {
        PyErr_SetString(PyExc_TypeError, "weights are floats or None");
        return -1;
    }
    *weight = PyFloat_AS_DOUBLE(entry);
    return 1;
}

/* Read a list of `count` weights; the sum of those given, NaN with an exception. */
static double total_of(PyObject *weights, Py_ssize_t count)
{
    double total = 0.0, weight;
    if (!PyList_Check(weights) || PyList_GET_SIZE(weights) != count) {
        PyErr_Format(PyExc_TypeError, "expected a list of %zd weights", count);
        return NAN;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        int given = weight_of(weights, k, &weight);
        if (given < 0)
            return NAN;
        total += given ? weight : 0.0;
    }
    return total;
}

static int row_of(const Port *port, PyObject *given, Py_buffer *view, int flags)
{
    if (PyObject_GetBuffer(given, view, flags))
        return -1;
    if ((size_t)view->len == bytes_of(port))
        return 0;
    PyErr_Format(PyExc_ValueError, "the row has %zd bytes, expected %zu", view->len, bytes_of(port));
    PyBuffer_Release(view);
    return -1;
}

static int number_of(PyObject *given, Py_ssize_t count, Py_ssize_t *number)
{
    *number = PyLong_AsSsize_t(given);
    if (PyErr_Occurred())
        return -1;
    if (*number >= 0 && *number < count)
        return 0;
    PyErr_Format(PyExc_IndexError, "there is no record %zd", *number);
    return -1;
}

static PyThreadState *begin(const Port *port) { return bytes_of(port) >= LARGE ? PyEval_SaveThread() : NULL; }

static PyObject *end(PyThreadState **unlocked, int failed)
{
    relock(unlocked);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* send(x, weights, own, add): slot_k = w_k x, or slot_k + w_k x, for every weight that is not None; x: a row, or None for the value.
 * own: None, or the factor of the value afterwards; if x is the value, and the factors sum to one, the value becomes the rest.
 *
 * The value is locked first: then nothing that can fail comes after the first slot but the next one.  After a failure the value
 * has lost what was sent, if the factors sum to one, and nothing otherwise. */
static PyObject *port_send(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Port *port = (Port *)self;
    if (nargs != 4)
        return PyErr_Format(PyExc_TypeError, "send takes a row, weights, a factor and whether to add");
    Record *value = value_of(port);
    int add = args[3] == Py_True, scales = args[2] != Py_None;
    double own = scales ? PyFloat_AsDouble(args[2]) : 1.0, total = total_of(args[1], port->nout), w = 0.0;
    if (PyErr_Occurred())
        return NULL;
    Py_buffer view = {0};
    const char *x = value->row;
    if (args[0] != Py_None) {
        if (row_of(port, args[0], &view, PyBUF_SIMPLE))
            return NULL;
        x = view.buf;
    }
    int shares = scales && fabs(own + total - 1.0) < 1e-12, rest = shares && x == value->row;
    char *sent = rest ? scratch_of(port) : NULL;
    double gone = 0.0, weights = 0.0;
    PyThreadState *unlocked = begin(port);
    int locked = scales && !lock(port, value, &unlocked), failed = scales && !locked;
    double p = value->p;
    if (rest && !failed)
        memset(sent, 0, bytes_of(port));
    for (Py_ssize_t k = 0; k < port->nout && !failed; k++)
        if (weight_of(args[1], k, &w) && !(failed = lock(port, out_of(port, k), &unlocked))) {
            write_slot(port, out_of(port, k), x, w, w * p, add, sent);
            unlock(out_of(port, k));
            gone += w * p;
            weights += w;
        }
    if (locked) {
        if (failed)
            own = shares ? 1.0 - weights : 1.0;
        if (rest && port->single)
            leave_f(AS(float, value->row), AS(const float, sent), port->count);
        else if (rest)
            leave_d(AS(double, value->row), AS(const double, sent), port->count);
        else
            scale(port, value->row, own);
        value->p = rest ? p - gone : p * own;
        unlock(value);
    }
    relock(&unlocked);
    if (view.obj)
        PyBuffer_Release(&view);
    return end(&unlocked, failed);
}

/* update(own, weights, reset): value = own value + sum of w_k slot_k over the weights that are not None; all of it, or, if a lock
 * cannot be had, nothing. */
static PyObject *port_update(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Port *port = (Port *)self;
    if (nargs != 3)
        return PyErr_Format(PyExc_TypeError, "update takes a factor, weights and whether to empty the slots");
    double own = PyFloat_AsDouble(args[0]), w = 0.0;
    total_of(args[1], port->nin);
    if (PyErr_Occurred())
        return NULL;
    int reset = args[2] == Py_True;
    Record *value = value_of(port);
    PyThreadState *unlocked = begin(port);
    int failed = lock(port, value, &unlocked);
    if (failed)
        return end(&unlocked, failed);
    for (Py_ssize_t k = 0; k < port->nin; k++) {
        port->held[k] = !failed && __atomic_load_n(&in_of(port, k)->filled, __ATOMIC_ACQUIRE);
        if (port->held[k] && (failed = lock(port, in_of(port, k), &unlocked)))
            port->held[k] = 0;
    }
    if (!failed) {
        scale(port, value->row, own);
        value->p *= own;
    }
    for (Py_ssize_t k = 0; k < port->nin; k++) {
        Record *slot = in_of(port, k);
        if (!port->held[k])
            continue;
        if (!failed && weight_of(args[1], k, &w)) {
            take(port, value->row, slot->row, w);
            value->p += w * slot->p;
            if (reset) {
                memset(slot->row, 0, bytes_of(port));
                slot->p = 0.0, slot->replaced = slot->filled = 0;
            }
        }
        if (!failed)
            slot->transfers = 0;
        unlock(slot);
    }
    unlock(value);
    return end(&unlocked, failed);
}

/* get(k, w): slot_k = w times the value of that neighbour, which is on this node. */
static PyObject *port_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Port *port = (Port *)self;
    Py_ssize_t k;
    if (nargs != 2 || number_of(args[0], port->nin, &k) || !source_of(port, k))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "get takes the number of a neighbour on this node, and a factor");
    double w = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred())
        return NULL;
    Record *source = source_of(port, k), *slot = in_of(port, k);
    PyThreadState *unlocked = begin(port);
    int failed = lock(port, source, &unlocked);
    if (!failed) {
        if (!(failed = lock(port, slot, &unlocked))) {
            write_slot(port, slot, source->row, w, w * source->p, 0, NULL);
            unlock(slot);
        }
        unlock(source);
    }
    return end(&unlocked, failed);
}

/* arrive(k, row, w, p, transfers, replaced): put or add w times a row and p, which a message has brought, into slot k. */
static PyObject *port_arrive(PyObject *self, PyObject *args)
{
    Port *port = (Port *)self;
    PyObject *row;
    Py_ssize_t k;
    double w, p;
    unsigned long long transfers;
    int replaced;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "nOddKp", &k, &row, &w, &p, &transfers, &replaced))
        return NULL;
    if (k < 0 || k >= port->nin)
        return PyErr_Format(PyExc_IndexError, "there is no slot %zd", k);
    if (row_of(port, row, &view, PyBUF_SIMPLE))
        return NULL;
    Record *slot = in_of(port, k);
    PyThreadState *unlocked = begin(port);
    int failed = lock(port, slot, &unlocked);
    if (!failed) {
        write_slot(port, slot, view.buf, w, w * p, !replaced, NULL);
        slot->transfers += transfers - 1;
        unlock(slot);
    }
    relock(&unlocked);
    PyBuffer_Release(&view);
    return end(&unlocked, failed);
}

/* Copy a record into a row; (p, transfers, whether it replaces), and empty it if `emptied`. */
static PyObject *copy_record(Port *port, Record *record, PyObject *into, int emptied)
{
    Py_buffer view;
    if (row_of(port, into, &view, PyBUF_WRITABLE))
        return NULL;
    PyThreadState *unlocked = begin(port);
    double p = 0.0;
    unsigned long long transfers = 0;
    int replaced = 0, failed = lock(port, record, &unlocked);
    if (!failed) {
        memcpy(view.buf, record->row, bytes_of(port));
        p = record->p, transfers = record->transfers, replaced = (int)record->replaced;
        if (emptied) {
            memset(record->row, 0, bytes_of(port));
            record->p = 0.0, record->transfers = record->replaced = record->filled = 0;
        }
        unlock(record);
    }
    relock(&unlocked);
    PyBuffer_Release(&view);
    return failed ? NULL : Py_BuildValue("dKi", p, transfers, replaced);
}

/* leave(k, into): empty the outbox of out-neighbour k into a row: (p, transfers, whether it replaces). */
static PyObject *port_leave(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Port *port = (Port *)self;
    Py_ssize_t k;
    if (nargs != 2 || number_of(args[0], port->nout, &k))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "leave takes a number and a row");
    return copy_record(port, out_of(port, k), args[1], 1);
}

/* read(k, into): copy slot k, or the value for k = -1, into a row: (p, transfers, whether it replaces). */
static PyObject *port_read(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Port *port = (Port *)self;
    Py_ssize_t k;
    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "read takes a number and a row");
    if ((k = PyLong_AsSsize_t(args[0])) == -1 && !PyErr_Occurred())
        return copy_record(port, value_of(port), args[1], 0);
    return number_of(args[0], port->nin, &k) ? NULL : copy_record(port, in_of(port, k), args[1], 0);
}

/* take(k, into): copy slot k into a row and empty it: (p, transfers, whether it replaces). */
static PyObject *port_take(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Port *port = (Port *)self;
    Py_ssize_t k;
    if (nargs != 2 || number_of(args[0], port->nin, &k))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "take takes a number and a row");
    return copy_record(port, in_of(port, k), args[1], 1);
}

/* set(row): the value becomes a row. */
static PyObject *port_set(PyObject *self, PyObject *row)
{
    Port *port = (Port *)self;
    Py_buffer view;
    if (row_of(port, row, &view, PyBUF_SIMPLE))
        return NULL;
    PyThreadState *unlocked = begin(port);
    int failed = lock(port, value_of(port), &unlocked);
    if (!failed) {
        memmove(value_of(port)->row, view.buf, bytes_of(port));
        unlock(value_of(port));
    }
    relock(&unlocked);
    PyBuffer_Release(&view);
    return end(&unlocked, failed);
}

/* fill(): every slot becomes a copy of the value, with p 0. */
static PyObject *port_fill(PyObject *self, PyObject *unused)
{
    Port *port = (Port *)self;
    for (Py_ssize_t k = 0; k < port->nin; k++) {
        memcpy(in_of(port, k)->row, value_of(port)->row, bytes_of(port));
        in_of(port, k)->filled = 1;
    }
    Py_RETURN_NONE;
}

static PyObject *port_versions(PyObject *self, PyObject *unused)
{
    Port *port = (Port *)self;
    PyObject *list = PyList_New(port->nin);
    for (Py_ssize_t k = 0; list && k < port->nin; k++)
        PyList_SET_ITEM(list, k, PyLong_FromUnsignedLongLong(__atomic_load_n(&in_of(port, k)->transfers, __ATOMIC_ACQUIRE)));
    return list;
}

/* waiting(k): the transfers in the outbox of out-neighbour k. */
static PyObject *port_waiting(PyObject *self, PyObject *number)
{
    Port *port = (Port *)self;
    Py_ssize_t k;
    return number_of(number, port->nout, &k) ? NULL : PyLong_FromUnsignedLongLong(out_of(port, k)->transfers);
}

static PyObject *port_get_p(PyObject *self, void *unused) { return PyFloat_FromDouble(value_of((Port *)self)->p); }

static int port_set_p(PyObject *self, PyObject *given, void *unused)
{
    Port *port = (Port *)self;
    double p = given ? PyFloat_AsDouble(given) : 0.0;
    if (PyErr_Occurred())
        return -1;
    PyThreadState *unlocked = NULL;
    if (lock(port, value_of(port), &unlocked)) {
        relock(&unlocked);
        return -1;
    }
    value_of(port)->p = p;
    unlock(value_of(port));
    relock(&unlocked);
    return 0;
}

/* Port(me, count, single, patience, value, scratch, ins, outs, sources): records are writable buffers; a source may be None. */
static PyObject *port_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    unsigned long long me;
    Py_ssize_t count;
    int single;
    double patience;
    PyObject *value, *scratch, *ins, *outs, *sources;
    if (!PyArg_ParseTuple(args, "KnpdOOO!O!O!", &me, &count, &single, &patience, &value, &scratch, &PyList_Type, &ins, &PyList_Type,
                          &outs, &PyList_Type, &sources))
        return NULL;
    Port *port = (Port *)type->tp_alloc(type, 0);
    if (!port)
        return NULL;
    port->me = me, port->count = count, port->single = single, port->patience = patience;
    port->nin = PyList_GET_SIZE(ins), port->nout = PyList_GET_SIZE(outs);
    Py_ssize_t all = 2 + 2 * port->nin + port->nout;
    port->buffers = PyMem_Calloc(all, sizeof *port->buffers);
    port->held = PyMem_Calloc(port->nin, 1);
    if (!port->buffers || !port->held || PyList_GET_SIZE(sources) != port->nin) {
        Py_DECREF(port);
        return PyErr_Format(PyExc_ValueError, "the arguments of Port do not fit together");
    }
    for (Py_ssize_t k = 0; k < all; k++) {
        PyObject *record = k == 0 ? value : k == 1 ? scratch : k < 2 + port->nin ? PyList_GET_ITEM(ins, k - 2)
                           : k < 2 + port->nin + port->nout ? PyList_GET_ITEM(outs, k - 2 - port->nin)
                                                            : PyList_GET_ITEM(sources, k - 2 - port->nin - port->nout);
        if (record == Py_None && k >= 2 + port->nin + port->nout)
            continue;
        size_t least = bytes_of(port) + (k == 1 ? 0 : HEADER);
        if (PyObject_GetBuffer(record, &port->buffers[k], PyBUF_WRITABLE) || (size_t)port->buffers[k].len < least
            || (uintptr_t)port->buffers[k].buf % HEADER) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "a record is too short, or not aligned");
            Py_DECREF(port);
            return NULL;
        }
    }
    return (PyObject *)port;
}

static void port_dealloc(PyObject *self)
{
    Port *port = (Port *)self;
    for (Py_ssize_t k = 0; port->buffers && k < 2 + 2 * port->nin + port->nout; k++)
        if (port->buffers[k].obj)
            PyBuffer_Release(&port->buffers[k]);
    PyMem_Free(port->buffers);
    PyMem_Free(port->held);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef port_methods[] = {
    {"send", (PyCFunction)(void (*)(void))port_send, METH_FASTCALL, "Write to slots of the out-neighbours."},
    {"update", (PyCFunction)(void (*)(void))port_update, METH_FASTCALL, "Combine the value and the slots."},
    {"get", (PyCFunction)(void (*)(void))port_get, METH_FASTCALL, "Read the value of an in-neighbour into its slot."},
    {"arrive", port_arrive, METH_VARARGS, "Write what a message has brought to a slot."},
    {"leave", (PyCFunction)(void (*)(void))port_leave, METH_FASTCALL, "Empty an outbox."},
    {"read", (PyCFunction)(void (*)(void))port_read, METH_FASTCALL, "Copy a slot, or the value."},
    {"take", (PyCFunction)(void (*)(void))port_take, METH_FASTCALL, "Copy a slot and empty it."},
    {"set", port_set, METH_O, "Set the value."},
    {"fill", port_fill, METH_NOARGS, "Copy the value into all slots."},
    {"versions", port_versions, METH_NOARGS, "The transfers into each slot."},
    {"waiting", port_waiting, METH_O, "The transfers in an outbox."},
    {0},
};
static PyGetSetDef port_properties[] = {{"p", port_get_p, port_set_p, "The push-sum weight of the value.", NULL}, {0}};
static PyTypeObject PortType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "mpidec.comm.rma._records.Port",
    .tp_doc = "All that one agent does with records.",
    .tp_basicsize = sizeof(Port),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = port_new,
    .tp_dealloc = port_dealloc,
    .tp_methods = port_methods,
    .tp_getset = port_properties,
};

/* ------------------------------------------------------------------------------------------------------------------ block */

/* A file in memory.  Unlike mmap.mmap it keeps no file open, so that ulimit -n does not limit the number of blocks. */
typedef struct Block {
    PyObject_HEAD
    void *base, *copy;                                   /* copy: for a child, during a fork */
    Py_ssize_t size;
    int own;                                             /* of this process, not of another one */
    struct Block *next, **link;                          /* all blocks */
} Block;

static Block *blocks;
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

#ifdef __linux__                                         /* elsewhere no process maps the blocks of another one */
/* fork: the child gets a private copy of the own blocks, which the parent makes, and zeros in place of those of other processes. */
static void before_fork(void)
{
    pthread_mutex_lock(&blocks_lock);
    for (Block *block = blocks; block; block = block->next) {
        block->copy = block->own ? mmap(NULL, block->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
        if (block->copy != MAP_FAILED)
            memcpy(block->copy, block->base, block->size);
    }
}

static void after_fork_in_parent(void)
{
    for (Block *block = blocks; block; block = block->next)
        if (block->copy != MAP_FAILED)
            munmap(block->copy, block->size);
    pthread_mutex_unlock(&blocks_lock);
}

static void after_fork_in_child(void)
{
    static const char text[] = "mpidec: a forked child cannot copy the windows of its parent (ulimit -v)\n";
    for (Block *block = blocks; block; block = block->next) {
        void *moved = MAP_FAILED;
        if (block->copy != MAP_FAILED)
            moved = mremap(block->copy, block->size, block->size, MREMAP_MAYMOVE | MREMAP_FIXED, block->base);
        else if (!block->own)
            moved = mmap(block->base, block->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
                         -1, 0);
        if (moved == MAP_FAILED)
            _exit(write(2, text, sizeof text - 1) < 0 ? 72 : 71);
    }
    pthread_mutex_unlock(&blocks_lock);
}
#endif

static PyObject *block_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int file, own;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "inp", &file, &size, &own))
        return NULL;
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    Block *block = (Block *)type->tp_alloc(type, 0);
    if (!block) {
        munmap(base, size);
        return NULL;
    }
    block->base = base, block->size = size, block->own = own;
    pthread_mutex_lock(&blocks_lock);
    block->next = blocks, block->link = &blocks;
    if (blocks)
        blocks->link = &block->next;
    blocks = block;
    pthread_mutex_unlock(&blocks_lock);
    return (PyObject *)block;
}

static void block_dealloc(PyObject *self)
{
    Block *block = (Block *)self;
    pthread_mutex_lock(&blocks_lock);
    *block->link = block->next;
    if (block->next)
        block->next->link = block->link;
    pthread_mutex_unlock(&blocks_lock);
    munmap(block->base, block->size);
    Py_TYPE(self)->tp_free(self);
}

static int block_buffer(PyObject *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, self, ((Block *)self)->base, ((Block *)self)->size, 0, flags);
}

static PyBufferProcs block_as_buffer = {.bf_getbuffer = block_buffer};
static PyTypeObject BlockType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "mpidec.comm.rma._records.Block",
    .tp_doc = "A file in memory, which may be closed.",
    .tp_basicsize = sizeof(Block),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = block_new,
    .tp_dealloc = block_dealloc,
    .tp_as_buffer = &block_as_buffer,
};

/* ------------------------------------------------------------------------------------------------------------------ mutex */

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

static PyMethodDef functions[] = {
    {"swap", (PyCFunction)(void (*)(void))swap, METH_FASTCALL, "Set a word to another value if it has not changed."},
    {"try_mutex", (PyCFunction)(void (*)(void))try_mutex, METH_FASTCALL, "Take a mutex: -1, or its owner."},
    {"await_mutex", (PyCFunction)(void (*)(void))await_mutex, METH_FASTCALL, "Ask to be handed a mutex."},
    {"leave_mutex", (PyCFunction)(void (*)(void))leave_mutex, METH_FASTCALL, "Do not wait for a mutex any more."},
    {"release_mutex", (PyCFunction)(void (*)(void))release_mutex, METH_FASTCALL, "Hand a mutex on."},
    {"doze_mutex", (PyCFunction)(void (*)(void))doze_mutex, METH_FASTCALL, "Sleep until a mutex is handed over, or briefly."},
    {"held_mutex", (PyCFunction)(void (*)(void))held_mutex, METH_FASTCALL, "Seconds since a mutex was taken."},
    {0},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_records", "Records in the memory of a node.", -1, functions};

PyMODINIT_FUNC PyInit__records(void)
{
    PyObject *made = PyModule_Create(&module);
    if (!made || PyType_Ready(&PortType) || PyModule_AddObjectRef(made, "Port", (PyObject *)&PortType)
        || PyType_Ready(&BlockType) || PyModule_AddObjectRef(made, "Block", (PyObject *)&BlockType)) {
        Py_XDECREF(made);
        return NULL;
    }
#ifdef __linux__
    static int prepared;
    if (!prepared && (prepared = 1) && (errno = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child))) {
        Py_DECREF(made);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
#endif
    return made;
}
