/* Rows in the memory that the ranks of a node share: publish where one's rows lie, sum up the neighbours' where they lie.
 *
 * Each rank has a header of SLOTS slots, written by it alone and read by its neighbours.  Mixing number `seq` uses the slot
 * seq % SLOTS:
 *
 *     post     block, offset and tag of the own rows (or of a copy of them), then posted = seq
 *     finish   wait until posted == seq at all in-neighbours; sum; done = seq; and, if the rows were not copied, wait until
 *              done >= seq at all out-neighbours, so that they may be changed when finish returns
 *     drained  whether done >= seq at all out-neighbours, so that a copy may be overwritten
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include "_rows.h"

enum { SLOTS = 64, BLOCKS = 1024 };
enum { READY, LATE_POST, LATE_DONE, OTHER_TAG, UNMAPPED };

typedef struct {
    _Atomic uint64_t posted, done;
    uint64_t block, offset, tag, unused[3];
} Slot;                                                  /* a cache line */

typedef struct { uint64_t block; const char *address; } Map;
typedef struct { const char *start, *end; uint64_t block; } Own;

static Slot *slot(const int64_t *heads, int64_t rank, uint64_t seq) { return (Slot *)(intptr_t)heads[rank] + seq % SLOTS; }

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Wait until *flag >= seq: `spins` looks, then yielding; false when the time `until` has passed. */
static int await(_Atomic uint64_t *flag, uint64_t seq, long spins, double until)
{
    for (long look = 0;; look++) {
        if (atomic_load_explicit(flag, memory_order_acquire) >= seq)
            return 1;
        if (look < spins) {
            relax();
            continue;
        }
        if (look % 64 == 0 && seconds() > until)
            return 0;
        sched_yield();
    }
}

#define DEFINE_GATHER(TYPE, T)                                                                                           \
    static void gather_##T(ptrdiff_t m, ptrdiff_t d, const int64_t *indptr, const int32_t *source, const int32_t *row,   \
                           const TYPE *w, const TYPE *v, const char *const *base, TYPE *out)                             \
    {                                                                                                                    \
        const TYPE *rows[NEAR], *x = (const TYPE *)base[0];                                                              \
        for (ptrdiff_t i = 0; i < m; i++) {                                                                              \
            int64_t begin = indptr[i], end = indptr[i + 1];                                                              \
            if (begin == end)                                                                                            \
                memcpy(out + i * d, x + i * d, d * sizeof(TYPE));                                                        \
            for (int64_t from = begin; from < end; from += NEAR) {                                                       \
                ptrdiff_t k = end - from < NEAR ? end - from : NEAR;                                                     \
                for (ptrdiff_t j = 0; j < k; j++)                                                                        \
                    rows[j] = (const TYPE *)base[source[from + j]] + row[from + j] * d;                                  \
                row_##T(x + i * d, rows, w + from, v + from, k, d, out + i * d, from == begin, from + k == end);         \
            }                                                                                                            \
        }                                                                                                                \
    }
DEFINE_GATHER(double, d)
DEFINE_GATHER(float, f)

/* post(head, own, blocks, seq, tag, x, copy) -> whether x, or the block `copy` that x is copied to unless it is None, lies in
 * one of the own blocks; if so, it is published. */
static PyObject *post(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 7) {
        PyErr_SetString(PyExc_TypeError, "post takes seven arguments");
        return NULL;
    }
    Slot *head = (Slot *)PyLong_AsSize_t(args[0]);
    long blocks = PyLong_AsLong(args[2]);
    uint64_t seq = PyLong_AsUnsignedLongLong(args[3]), tag = PyLong_AsUnsignedLongLongMask(args[4]);
    Py_buffer own, x;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[1], &own, PyBUF_C_CONTIGUOUS))
        return NULL;
    if (PyObject_GetBuffer(args[5], &x, PyBUF_C_CONTIGUOUS)) {
        PyBuffer_Release(&own);
        return NULL;
    }
    Py_buffer copy = {0};
    if (args[6] != Py_None && (PyObject_GetBuffer(args[6], &copy, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) || copy.len < x.len)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the copy is too small");
        PyBuffer_Release(&copy);
        PyBuffer_Release(&x);
        PyBuffer_Release(&own);
        return NULL;
    }
    const Own *mine = own.buf;
    const char *at = copy.buf ? memcpy(copy.buf, x.buf, x.len) : x.buf;
    int found = 0;
    for (long i = 0; i < blocks && !found; i++)
        if (mine[i].start <= at && at + x.len <= mine[i].end) {
            Slot *s = head + seq % SLOTS;
            s->block = mine[i].block;
            s->offset = at - mine[i].start;
            s->tag = tag;
            atomic_store_explicit(&s->posted, seq, memory_order_release);
            found = 1;
        }
    PyBuffer_Release(&copy);
    PyBuffer_Release(&x);
    PyBuffer_Release(&own);
    return PyBool_FromLong(found);
}

/* drained(heads, outs, seq, timeout) -> -1 if the ranks `outs` have read mixing seq by then, else one that has not. */
static PyObject *drained(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "drained takes four arguments");
        return NULL;
    }
    uint64_t seq = PyLong_AsUnsignedLongLong(args[2]);
    double timeout = PyFloat_AsDouble(args[3]);
    Py_buffer heads, outs;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &heads, PyBUF_C_CONTIGUOUS))
        return NULL;
    if (PyObject_GetBuffer(args[1], &outs, PyBUF_C_CONTIGUOUS)) {
        PyBuffer_Release(&heads);
        return NULL;
    }
    int64_t late = -1;
    Py_BEGIN_ALLOW_THREADS
    double until = timeout > 0 ? seconds() + timeout : 0;
    for (ptrdiff_t i = 0; i < outs.len / 8 && late < 0; i++) {
        int64_t rank = ((int64_t *)outs.buf)[i];
        if (!await(&slot(heads.buf, rank, seq)->done, seq, 0, until))
            late = rank;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&outs);
    PyBuffer_Release(&heads);
    return PyLong_FromLongLong(late);
}

/* finish(heads, maps, me, ins, outs (waited for), seq, tag, spins, timeout, indptr, source, row, w, v, x, halo, out)
 *     -> 0, or what is wrong * 2**32 + the rank in question.  `source` 0 is x, 1.. the in-neighbours, the last one the halo. */
static PyObject *finish(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    enum { HEADS, MAPS, INS, OUTS, INDPTR, SOURCE, ROW, W, V, X, HALO, OUT, BUFFERS };
    static const int place[BUFFERS] = {0, 1, 3, 4, 9, 10, 11, 12, 13, 14, 15, 16};
    if (count != 17) {
        PyErr_SetString(PyExc_TypeError, "finish takes seventeen arguments");
        return NULL;
    }
    int64_t me = PyLong_AsLongLong(args[2]);
    uint64_t seq = PyLong_AsUnsignedLongLong(args[5]), tag = PyLong_AsUnsignedLongLongMask(args[6]);
    long spins = PyLong_AsLong(args[7]);
    double timeout = PyFloat_AsDouble(args[8]);
    if (PyErr_Occurred())
        return NULL;
    Py_buffer b[BUFFERS];
    int held = 0;
    for (; held < BUFFERS; held++)
        if (PyObject_GetBuffer(args[place[held]], &b[held],
                               held == OUT ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS))
            goto failed;
    ptrdiff_t m = b[INDPTR].len / 8 - 1, size = b[W].itemsize, d = m > 0 ? b[OUT].len / m / size : 0;
    ptrdiff_t nin = b[INS].len / 8, nout = b[OUTS].len / 8;
    if (m < 0 || (size != 4 && size != 8) || b[OUT].len != m * d * size || b[X].len != b[OUT].len || b[V].len != b[W].len
        || b[OUT].itemsize != size || b[X].itemsize != size || b[SOURCE].len != b[ROW].len || b[SOURCE].itemsize != 4) {
        PyErr_SetString(PyExc_ValueError, "the buffers of finish do not fit together");
        goto failed;
    }
    const char **base = malloc((nin + 2) * sizeof *base);
    if (!base) {
        PyErr_NoMemory();
        goto failed;
    }
    const int64_t *heads = b[HEADS].buf, *ins = b[INS].buf, *outs = b[OUTS].buf;
    const Map *maps = b[MAPS].buf;
    int64_t state = READY;
    Py_BEGIN_ALLOW_THREADS
    double until = seconds() + timeout;
    base[0] = b[X].buf;
    base[nin + 1] = b[HALO].buf;
    for (ptrdiff_t i = 0; i < nin && state == READY; i++) {
        Slot *s = slot(heads, ins[i], seq);
        if (!await(&s->posted, seq, spins, until))
            state = (int64_t)LATE_POST << 32 | ins[i];
        else if (s->tag != tag)
            state = (int64_t)OTHER_TAG << 32 | ins[i];
        else {
            const Map *map = maps + ins[i] * BLOCKS + s->block % BLOCKS;
            if (map->block != s->block || !map->address)
                state = (int64_t)UNMAPPED << 32 | ins[i];
            else
                base[i + 1] = map->address + s->offset;
        }
    }
    if (state == READY) {
        if (size == 8)
            gather_d(m, d, b[INDPTR].buf, b[SOURCE].buf, b[ROW].buf, b[W].buf, b[V].buf, base, b[OUT].buf);
        else
            gather_f(m, d, b[INDPTR].buf, b[SOURCE].buf, b[ROW].buf, b[W].buf, b[V].buf, base, b[OUT].buf);
        atomic_store_explicit(&slot(heads, me, seq)->done, seq, memory_order_release);
        for (ptrdiff_t i = 0; i < nout && state == READY; i++)
            if (!await(&slot(heads, outs[i], seq)->done, seq, spins, until))
                state = (int64_t)LATE_DONE << 32 | outs[i];
    }
    Py_END_ALLOW_THREADS
    free(base);
    while (held--)
        PyBuffer_Release(&b[held]);
    return PyLong_FromLongLong(state);
failed:
    while (held--)
        PyBuffer_Release(&b[held]);
    return NULL;
}

static PyMethodDef methods[] = {
    {"post", (PyCFunction)(void (*)(void))post, METH_FASTCALL, "Publish where the own rows lie; see stack.py."},
    {"drained", (PyCFunction)(void (*)(void))drained, METH_FASTCALL, "Whether a copy has been read; see stack.py."},
    {"finish", (PyCFunction)(void (*)(void))finish, METH_FASTCALL, "Sum up the neighbours' rows where they lie; see stack.py."},
    {0},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_shared", "Rows in the shared memory of a node.", 0, methods};

PyMODINIT_FUNC PyInit__shared(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made && (PyModule_AddIntMacro(made, SLOTS) || PyModule_AddIntMacro(made, BLOCKS)))
        Py_CLEAR(made);
    return made;
}
