/* Rows in the memory that the ranks of a node share: each rank publishes where its rows lie and reads its neighbours' there.
 *
 * Each rank has a header of SLOTS slots in its arena, written by it alone and read by the others.  Mixing number `seq` uses the
 * slot seq % SLOTS:
 *
 *     publish  the offset of the rows (or of a copy of them) in the arena, and their tag; then posted = seq
 *     read     wait until posted = seq at all in-neighbours and compare tags; pin = seq; a full fence; form the weighted sum, from
 *              the copy where there is one (moved); done = seq
 *     leave    the rows may change when done >= seq at all out-neighbours.  Where some are late, copy the rows, moved = the copy,
 *              a full fence: then only those with pin >= seq are still reading the rows themselves, and there is no wait between
 *              pin and done.  So no rank waits for one that has not come.
 *
 * Either a reader sees `moved` or the owner sees its `pin`, because of the two fences.  A slot is used again when its own reading
 * has ended and all out-neighbours have read it, so that `done` and `pin` never speak of a later mixing.
 *
 * The tag is a fingerprint of the operation.  A reader that finds another tag than its own sets refused = seq, so that both sides
 * know.  Rows that are published are kept alive until they have been read, also after an exception.  A rank that is out of step says
 * so behind its slots, and those that wait for it long enough to call report() find it there.
 *
 * A Node is the memory of the node seen from one rank; a Reader is what this rank reads in one phase, and calling it is a whole
 * mixing.  Every wait calls report(answer, seq) after `patience` seconds, which makes progress elsewhere and raises what is wrong.
 */
#define _GNU_SOURCE
#include "_arena.h"

#ifndef __linux__
PyMODINIT_FUNC PyInit__shared(void)
{
    PyErr_SetString(PyExc_ImportError, "reading the memory of other processes needs Linux: ranks exchange messages");
    return NULL;
}
#else
#include "../kernels/_rows.h"
#include "_wait.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <structmember.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, SPARES = 8, KEPT = 4, BATCH = 0, LARGE = 1 << 18, LATE_COPIED = 1 << 17, PROBED = 64 };
/* KEPT: mixings whose rows a solver's step leaves published.  BATCH: mixings whose copies are let go of together.  LARGE: bytes that
 * are copied without Python's lock.  LATE_COPIED: bytes up to which a solver's rows are copied where ranks share cores.  PROBED: every so many mixings it is found out again what it costs to yield. */
enum { READY, LATE_POST, LATE_DONE, OTHER_TAG, REFUSED };    /* an answer is one of these * 2**32 + the index of a rank */
#define GAVE_UP ((uint64_t)1 << 40)                      /* in a tag: more than any rows are long */
#define COPY_RATE 4e9                                    /* bytes a second: how long readers are waited for before the rows are copied */
#define ANSWER(what, rank) ((int64_t)(what) << 32 | (rank))

static double patience = 0.1;

typedef struct {
    _Atomic uint64_t posted;
    uint64_t offset, tag, table;
    _Atomic uint64_t moved;                              /* offset of a copy + 1; 0: there is none */
    uint64_t unused[3];
    _Atomic uint64_t done, pin, refused;
    uint64_t unused_too[5];
} Slot;                                                  /* a cache line as a sender, and one as a receiver */
typedef struct {
    Slot slots[SLOTS];
    _Atomic uint64_t out_of_step;
    char reason[248];                                    /* why, in words */
} Header;
_Static_assert(sizeof(Slot) == 128 && ATOMIC_LLONG_LOCK_FREE == 2, "slots are shared between processes");

typedef struct Mapped {
    struct Mapped *next;
    dev_t device;
    ino_t inode;
    size_t size;
    char *base;
    int64_t references;
} Mapped;
static Mapped *mapped;                                   /* arenas of other processes, each mapped once */

typedef struct {
    PyObject_HEAD
    unsigned long thread;
    long depth;                                          /* calls of that thread that have not ended */
    int polling;                                         /* the first of them is a poll, which waits for nothing */
} Guard;

typedef struct Reader Reader;
typedef struct {
    Reader *reader;                                      /* whose out-neighbours may not have read yet; NULL: all have */
    PyObject *rows;                                      /* the array that is read where it lies */
    char *copy, *table;
    size_t bytes, table_bytes;                           /* of the copy, and of the table */
    uint64_t seq;
    int unread, late;                                    /* this rank's own reading has not ended; the rows are left later */
} Published;

typedef struct {
    PyObject_HEAD
    int64_t size, me, spins, under_way, copies;
    uint64_t seq, released;                              /* mixings so far; those up to which all slots are free */
    int late, kept, closed, spares;
    Slot **heads;
    const char **bases;
    Mapped **maps;
    char *spare[SPARES];                                 /* free blocks of one grain for copies */
    Published published[SLOTS];
    double yielding;                                     /* seconds that it took lately to yield the processor once */
    Guard *guard;
    PyObject *array, *empty_like, *broken;
    PyObject *refusal;                                   /* a mismatch that was heard of too late to raise it where it belongs */
} Node;

typedef struct {
    PyObject_HEAD
    int64_t rounds, messages, bytes;
} Counts;

enum { INDPTR, SOURCE, ROW, W, V, W32, V32, INS, OUTS, ARRAYS };
struct Reader {
    PyObject_HEAD
    vectorcallfunc call;
    Node *node;
    Counts *counts;
    PyObject *report;                                    /* report(answer, seq) */
    uint64_t signature;
    int64_t edges;
    ptrdiff_t m, nin, nout;
    Py_buffer array[ARRAYS];                             /* without weights rows are copied as they are */
};

static PyTypeObject GuardType, NodeType, CountsType, ReaderType;

/* ---------------------------------------------------------------------------------------------------------------- waiting */

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

/* -------------------------------------------------------------------------------------------------------------- publishing */

static char *take_block(Node *node, size_t bytes)
{
    return bytes <= GRAIN && node->spares ? node->spare[--node->spares] : arena_take(bytes);
}

static void give_block(Node *node, char *block, size_t bytes)
{
    if (bytes <= GRAIN && node->spares < SPARES)
        node->spare[node->spares++] = block;
    else
        arena_give(block);
}

/* The rows themselves are not read any more. */
static void forget_rows(Node *node, Published *p)
{
    node->kept -= p->late;
    p->late = 0;
    Py_CLEAR(p->rows);
}

/* The slot is used again.  (A rank that is not among the out-neighbours may have looked at the table until now.) */
static void give_table(Node *node, Published *p)
{
    if (p->table)
        give_block(node, p->table, p->table_bytes);
    p->table = NULL;
}

/* The out-neighbours have read what a slot published. */
static void let_go(Node *node, Published *p)
{
    if (p->copy)
        give_block(node, p->copy, p->bytes);
    p->copy = NULL;
    forget_rows(node, p);
    Py_CLEAR(p->reader);
}

/* Whether the out-neighbours have read mixing `seq`: READY, LATE_DONE or REFUSED. */
static int64_t readers_of(const Reader *r, uint64_t seq)
{
    const int64_t *outs = r->array[OUTS].buf;
    int64_t answer = READY;
    Slot *mine = slot(r->node, r->node->me, seq);
    uint64_t tag = mine->tag;
    int raised = tag == (r->signature ^ GAVE_UP) || atomic_load_explicit(&mine->refused, memory_order_relaxed) == seq;
    for (ptrdiff_t i = 0; i < r->nout; i++) {
        Slot *s = slot(r->node, outs[i], seq);
        if (!reached(&s->done, seq))
            return ANSWER(LATE_DONE, outs[i]);
        if (atomic_load_explicit(&s->refused, memory_order_relaxed) == seq && s->tag != tag && !raised
            && atomic_load_explicit(&s->posted, memory_order_relaxed) == seq)
            answer = ANSWER(REFUSED, outs[i]);
    }
    return answer;
}

/* Let go of everything that has been read by now.  What neighbours have refused is raised at the end of the mixing that this rank
 * is in, so that it stays in step with the others. */
static void release(Node *node)
{
    for (uint64_t seq = node->released + 1; seq <= node->seq; seq++) {
        Published *p = published(node, seq);
        if (p->reader) {
            int64_t answer = readers_of(p->reader, seq);
            if (answer >> 32 == REFUSED) {
                PyObject *kind, *error, *trace;
                Reader *r = (Reader *)Py_NewRef((PyObject *)p->reader);
                let_go(node, p);
                report(r, answer, seq);
                Py_DECREF(r);
                PyErr_Fetch(&kind, &error, &trace);
                PyErr_NormalizeException(&kind, &error, &trace);
                if (!node->refusal)
                    node->refusal = Py_XNewRef(error);
                Py_XDECREF(kind);
                Py_XDECREF(error);
                Py_XDECREF(trace);
            } else if (answer == READY)
                let_go(node, p);
        }
        if (!p->reader && !p->unread && seq == node->released + 1)
            node->released = seq;
    }
}

/* Raise what neighbours have refused: 0, or -1 with an exception. */
static int raise_refusal(Node *node)
{
    if (!node->refusal)
        return 0;
    PyErr_SetObject((PyObject *)Py_TYPE(node->refusal), node->refusal);
    Py_CLEAR(node->refusal);
    return -1;
}

/* Wait until the out-neighbours have read mixing `seq`. */
static int wait_for_readers(Node *node, uint64_t seq)
{
    while (published(node, seq)->reader && published(node, seq)->seq == seq) {
        Reader *r = (Reader *)Py_NewRef((PyObject *)published(node, seq)->reader);
        const int64_t *outs = r->array[OUTS].buf;
        PyThreadState *unlocked = NULL;
        int64_t answer = READY;
        for (ptrdiff_t i = 0; i < r->nout && answer == READY; i++)
            if (!wait_for(&slot(node, outs[i], seq)->done, seq, node->spins, &unlocked))
                answer = ANSWER(LATE_DONE, outs[i]);
        relock(&unlocked);
        int failed = 0;
        if (answer == READY)
            release(node);
        else
            failed = report(r, answer, seq) < 0;
        Py_DECREF(r);
        if (failed)
            return -1;
    }
    return 0;
}

static int usable(const Node *node)
{
    if (arena_forked)
        PyErr_SetString(PyExc_RuntimeError, "this process is a forked child, and the network belongs to its parent: mix in the parent only");
    else if (node->closed)
        PyErr_SetString(PyExc_RuntimeError, "the network is closed: make a new one");
    else if (node->broken)
        PyErr_Format(PyExc_RuntimeError, "the network is out of step (%U): close it and make a new one", node->broken);
    else
        return 1;
    return 0;
}

/* Publish `len` bytes of rows at x, of the array X, and a table: 1 if they are read where they lie, 0 if they were copied, -1 with an
 * exception. */
static int publish(Reader *r, PyObject *X, const char *x, Py_ssize_t len, const void *table, size_t table_bytes, uint64_t tag,
                   uint64_t *seq)
{
    Node *node = r->node;
    if (!usable(node))
        return -1;
    if (node->kept || node->seq - node->released > BATCH)
        release(node);
    Published *p = published(node, node->seq + 1);
    if (p->reader && wait_for_readers(node, node->seq + 1 - SLOTS) < 0)
        return -1;
    if (p->unread) {
        PyErr_SetString(PyExc_RuntimeError, "a mixing is under way that began 64 mixings ago: wait for it");
        return -1;
    }
    int in_place = r->nout && len > 0 && !(node->late && !node->spins && len <= LATE_COPIED) && arena_holds(x) && arena_holds(x + len - 1);
    char *copy = NULL;
    if (r->nout && len > 0 && !in_place) {
        if (!(copy = take_block(node, len))) {
            PyErr_Format(PyExc_MemoryError, "no shared memory for %zd bytes of rows: keep fewer results, raise the limits (ulimit -v, "
                                            "ulimit -f, the memory of the job), or set MPIDEC_TRANSPORT=p2p", len);
            return -1;
        }
        if (len > LARGE) {
            PyThreadState *unlocked = PyEval_SaveThread();
            memcpy(copy, x, len);
            PyEval_RestoreThread(unlocked);
        } else
            memcpy(copy, x, len);
        x = copy;
        node->copies++;
    }
    give_table(node, p);
    if (table && table_bytes) {
        if (!(p->table = take_block(node, table_bytes))) {
            if (copy)
                give_block(node, copy, len);
            PyErr_NoMemory();
            return -1;
        }
        memcpy(p->table, table, table_bytes);
        p->table_bytes = table_bytes;
    }
    *seq = ++node->seq;
    if (r->nout)
        p->reader = (Reader *)Py_NewRef((PyObject *)r);
    if (in_place)
        p->rows = Py_NewRef(X);
    p->seq = *seq, p->copy = copy, p->bytes = len, p->unread = 1;
    Slot *s = slot(node, node->me, *seq);
    s->offset = in_place || copy ? arena_offset(x) : 0;
    s->tag = tag;
    s->table = p->table ? arena_offset(p->table) : 0;
    atomic_store_explicit(&s->moved, 0, memory_order_relaxed);
    atomic_store_explicit(&s->posted, *seq, memory_order_release);
    return in_place;
}

/* Return when the rows at x, which mixing `seq` has published where they lie, may be changed. */
static int leave(Reader *r, uint64_t seq, const char *x, size_t len)
{
    Node *node = r->node;
    Published *p = published(node, seq);
    const int64_t *outs = r->array[OUTS].buf;
    if (!p->rows || p->seq != seq)                       /* they were copied, or have been read already */
        return 0;
    PyThreadState *unlocked = NULL;
    int64_t answer = readers_of(r, seq);
    for (int64_t look = 0; look < node->spins && answer >> 32 == LATE_DONE; look++) {
        relax();
        answer = readers_of(r, seq);
    }
    /* To yield costs little where the cores are this program's, and a time slice where they are not: then it costs less to copy. */
    double copying = len / COPY_RATE, begun = 0, now = 0;
    if (answer >> 32 == LATE_DONE && (node->yielding < copying || seq % PROBED == 0)) {
        unlocked = PyEval_SaveThread();
        begun = now = seconds();
        do {
            double before = now;
            sched_yield();
            now = seconds();
            node->yielding += (now - before - node->yielding) / 4;
        } while ((answer = readers_of(r, seq)) >> 32 == LATE_DONE && now - begun < copying);
        relock(&unlocked);
    }
    char *copy = answer >> 32 == LATE_DONE ? take_block(node, len) : NULL;
    if (!copy)
        return wait_for_readers(node, seq);
    if (len > LARGE)
        unlocked = PyEval_SaveThread();
    memcpy(copy, x, len);
    p->copy = copy, p->bytes = len;
    node->copies++;
    atomic_store_explicit(&slot(node, node->me, seq)->moved, arena_offset(copy) + 1, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    for (ptrdiff_t i = 0; i < r->nout; i++) {
        Slot *s = slot(node, outs[i], seq);
        if (reached(&s->done, seq) || !reached(&s->pin, seq))
            continue;
        while (!wait_for(&s->done, seq, node->spins, &unlocked)) {      /* it is reading the rows, and waits for nobody */
            relock(&unlocked);
            if (report(r, ANSWER(LATE_DONE, outs[i]), seq) < 0)
                return -1;
        }
    }
    relock(&unlocked);
    forget_rows(node, p);
    return 0;
}

/* Leave rows that a solver's step has kept, the oldest first, until `most` mixings keep some. */
static int leave_kept(Node *node, int most)
{
    for (uint64_t seq = node->released + 1; node->kept > most && seq <= node->seq; seq++) {
        Published *p = published(node, seq);
        if (!p->late)
            continue;
        Reader *r = (Reader *)Py_NewRef((PyObject *)p->reader);
        int failed = leave(r, seq, arena_base + slot(node, node->me, seq)->offset, p->bytes);
        Py_DECREF(r);
        if (failed)
            return -1;
    }
    return 0;
}

/* ----------------------------------------------------------------------------------------------------------------- reading */

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

/* All that is to be read: x, the in-neighbours' rows, the halo. */
static void gather(const Reader *r, const char **base, char *out, Py_ssize_t d, Py_ssize_t itemsize)
{
    const Py_buffer *a = r->array;
    const int32_t *source = a[SOURCE].buf, *row = a[ROW].buf;
    if (!a[W].buf)
        for (ptrdiff_t i = 0; i < r->m; i++)
            memcpy(out + i * d * itemsize, base[source[i]] + row[i] * d * itemsize, d * itemsize);
    else if (itemsize == 8)
        gather_d(r->m, d, a[INDPTR].buf, source, row, a[W].buf, a[V].buf, base, (double *)out);
    else
        gather_f(r->m, d, a[INDPTR].buf, source, row, a[W32].buf, a[V32].buf, base, (float *)out);
}

/* `shape` is 0 for plain rows of d numbers, and a fingerprint of other shapes. */
static uint64_t tag_of(const Reader *r, Py_ssize_t d, Py_ssize_t itemsize, uint64_t shape)
{
    return r->signature ^ shape ^ ((uint64_t)d * 2 + (itemsize == 8));
}

/* Wait until all in-neighbours have published mixing `seq`, and compare tags: READY, OTHER_TAG, or -1 with an exception. */
static int64_t meet(Reader *r, uint64_t seq, uint64_t tag, PyThreadState **unlocked)
{
    Node *node = r->node;
    const int64_t *ins = r->array[INS].buf;
    for (ptrdiff_t i = 0; i < r->nin; i++) {
        Slot *s = slot(node, ins[i], seq);
        while (!wait_for(&s->posted, seq, node->spins, unlocked)) {
            relock(unlocked);
            if (report(r, ANSWER(LATE_POST, ins[i]), seq) < 0)
                return -1;
        }
        if (atomic_load_explicit(&s->posted, memory_order_relaxed) != seq || s->tag != tag)
            return ANSWER(OTHER_TAG, ins[i]);
    }
    atomic_store_explicit(&slot(node, node->me, seq)->pin, seq, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    return READY;
}

/* This rank's own reading of mixing `seq` has ended. */
static void has_read(Node *node, uint64_t seq)
{
    atomic_store_explicit(&slot(node, node->me, seq)->done, seq, memory_order_release);
    published(node, seq)->unread = 0;
}

/* End mixing `seq`, in which a neighbour mixes something else, with an exception on both sides. */
static int refuse(Reader *r, int64_t answer, uint64_t seq)
{
    atomic_store_explicit(&slot(r->node, r->node->me, seq)->refused, seq, memory_order_relaxed);
    report(r, answer, seq);
    has_read(r->node, seq);
    return -1;
}

/* Where the rows lie that another rank has published. */
static const char *rows_at(const Node *node, int64_t rank, uint64_t seq)
{
    Slot *s = slot(node, rank, seq);
    uint64_t moved = atomic_load_explicit(&s->moved, memory_order_acquire);
    return node->bases[rank] + (moved ? moved - 1 : s->offset);
}

/* Wait for the in-neighbours, and read their rows of d numbers: 0, or -1 with an exception. */
static int read_rows(Reader *r, uint64_t seq, uint64_t tag, const char *x, const char *halo, char *out, Py_ssize_t d,
                     Py_ssize_t itemsize)
{
    Node *node = r->node;
    const char *few[NEAR + 2], **base = r->nin <= NEAR ? few : malloc((r->nin + 2) * sizeof *base);
    const int64_t *ins = r->array[INS].buf;
    if (!base) {
        PyErr_NoMemory();
        return -1;
    }
    PyThreadState *unlocked = NULL;
    int64_t answer = meet(r, seq, tag, &unlocked);
    if (answer == READY) {
        base[0] = x;
        base[r->nin + 1] = halo;
        for (ptrdiff_t i = 0; i < r->nin; i++)
            base[i + 1] = rows_at(node, ins[i], seq);
        if (!unlocked && r->m * d > 2048)
            unlocked = PyEval_SaveThread();
        gather(r, base, out, d, itemsize);
        atomic_store_explicit(&slot(node, node->me, seq)->done, seq, memory_order_release);
    }
    relock(&unlocked);
    if (base != few)
        free(base);
    if (answer > 0)
        return refuse(r, answer, seq);
    if (answer == READY)
        published(node, seq)->unread = 0;
    return (int)answer;
}

/* One entry of a table: to whom an array is sent, times what (NaN: it is not), and whether something is taken from there (NaN: no).
 * Entry 0 has the number of the others in place of a rank; a note, in words, comes after the last one. */
typedef struct { int64_t rank; double weight, takes; } Edge;

static const Edge *table_of(const Node *node, int64_t rank, uint64_t seq)
{
    uint64_t table = slot(node, rank, seq)->table;
    return table ? (const Edge *)(node->bases[rank] + table) : NULL;
}

static const Edge *edge_to(const Node *node, int64_t from, int64_t to, uint64_t seq)
{
    const Edge *table = table_of(node, from, seq);
    for (int64_t i = 1; table && i <= table[0].rank && i <= node->size; i++)
        if (table[i].rank == to)
            return &table[i];
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------------------ Guard */

/* Keep other threads out of the calls of a network: 1 if this one is in, 0 if another one is, -1 if that one only polls.  Python's
 * lock is held. */
static int enter(Guard *guard, int polling)
{
    unsigned long me = PyThread_get_thread_ident();
    if (guard->depth && guard->thread != me)
        return guard->polling ? -1 : 0;
    if (!guard->depth)
        guard->polling = polling;
    guard->thread = me;
    guard->depth++;
    return 1;
}

static PyObject *guard_acquire(PyObject *self, PyObject *polling) { return PyLong_FromLong(enter((Guard *)self, polling == Py_True)); }

static PyObject *guard_release(PyObject *self, PyObject *unused)
{
    ((Guard *)self)->depth--;
    Py_RETURN_NONE;
}

static PyMethodDef guard_methods[] = {
    {"acquire", guard_acquire, METH_O, "1 if this thread may go on, 0 if another one is in, -1 if that one only polls."},
    {"release", guard_release, METH_NOARGS, "End what acquire began."},
    {0},
};
static PyMemberDef guard_members[] = {
    {"thread", T_ULONG, offsetof(Guard, thread), READONLY, "The thread of the last call."},
    {0},
};
static PyTypeObject GuardType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.comm.runtime._shared.Guard",
    .tp_basicsize = sizeof(Guard),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Re-entrant lock of the calls of a network, as threading.RLock, that nobody waits for.",
    .tp_new = PyType_GenericNew,
    .tp_methods = guard_methods,
    .tp_members = guard_members,
};

/* ------------------------------------------------------------------------------------------------------------------- Node */

/* Node(me, size, spins, ndarray, empty_like, guard) */
static PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    long long me, size, spins;
    PyObject *array, *empty_like, *guard;
    if (!PyArg_ParseTuple(args, "LLLOOO!", &me, &size, &spins, &array, &empty_like, &GuardType, &guard))
        return NULL;
    if (me < 0 || me >= size) {
        PyErr_SetString(PyExc_ValueError, "the arguments of Node do not fit together");
        return NULL;
    }
    Node *node = (Node *)type->tp_alloc(type, 0);
    if (!node)
        return NULL;
    node->size = size, node->me = me, node->spins = spins;
    node->array = Py_NewRef(array), node->empty_like = Py_NewRef(empty_like);
    node->guard = (Guard *)Py_NewRef(guard);
    node->heads = calloc(size, sizeof *node->heads);
    node->bases = calloc(size, sizeof *node->bases);
    node->maps = calloc(size, sizeof *node->maps);
    char *block = arena_take(sizeof(Header));
    if (!block || !node->heads || !node->bases || !node->maps) {
        if (block)
            arena_give(block);
        Py_DECREF(node);
        return PyErr_NoMemory();
    }
    node->heads[me] = memset(block, 0, sizeof(Header));
    node->bases[me] = arena_base;
    return (PyObject *)node;
}

static int node_traverse(PyObject *self, visitproc visit, void *arg)
{
    Node *node = (Node *)self;
    Py_VISIT(node->array);
    Py_VISIT(node->empty_like);
    for (int i = 0; i < SLOTS; i++) {
        Py_VISIT(node->published[i].reader);
        Py_VISIT(node->published[i].rows);
    }
    return 0;
}

static int node_clear(PyObject *self)
{
    Node *node = (Node *)self;
    Py_CLEAR(node->array);
    Py_CLEAR(node->empty_like);
    for (int i = 0; i < SLOTS; i++) {
        Py_CLEAR(node->published[i].reader);
        if (node->closed)
            Py_CLEAR(node->published[i].rows);           /* else somebody may still read it: it is never freed */
    }
    return 0;
}

static void unmap(Mapped *map)
{
    if (!map || --map->references)
        return;
    for (Mapped **at = &mapped; *at; at = &(*at)->next)
        if (*at == map) {
            *at = map->next;
            break;
        }
    munmap(map->base, map->size);
    free(map);
}

static void disconnect(Node *node)
{
    for (int64_t rank = 0; node->maps && rank < node->size; rank++) {
        unmap(node->maps[rank]);
        node->maps[rank] = NULL;
        if (rank != node->me)
            node->heads[rank] = NULL, node->bases[rank] = NULL;
    }
}

static void node_dealloc(PyObject *self)
{
    Node *node = (Node *)self;
    PyObject_GC_UnTrack(self);
    node_clear(self);
    disconnect(node);
    free(node->heads);                                   /* the header itself stays where it is unless close() has given it back */
    free(node->bases);
    free(node->maps);
    Py_XDECREF(node->guard);
    Py_XDECREF(node->broken);
    Py_XDECREF(node->refusal);
    Py_TYPE(self)->tp_free(self);
}

/* connect(index, path, inode, size, offset): read the arena of another rank, whose header lies at `offset`. */
static PyObject *node_connect(PyObject *self, PyObject *args)
{
    Node *node = (Node *)self;
    long long index;
    const char *path;
    unsigned long long inode, size, offset;
    if (!PyArg_ParseTuple(args, "LsKKK", &index, &path, &inode, &size, &offset))
        return NULL;
    if (index < 0 || index >= node->size || index == node->me || node->maps[index] || offset + sizeof(Header) > size)
        return PyErr_Format(PyExc_ValueError, "rank %lld cannot be connected", index);
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (opened < 0 || fstat(opened, &about)) {
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
        if (opened >= 0)
            close(opened);
        return NULL;
    }
    Mapped *map = mapped;
    while (map && (map->device != about.st_dev || map->inode != about.st_ino))
        map = map->next;
    if ((uint64_t)about.st_ino != inode || (uint64_t)about.st_size != size)
        PyErr_Format(PyExc_OSError, "%s is another file: the ranks have process numbers of their own (pid namespaces)", path);
    else if (!map && (map = calloc(1, sizeof *map))) {
        map->base = mmap(NULL, size, PROT_READ, MAP_SHARED | MAP_NORESERVE, opened, 0);
        if (map->base == MAP_FAILED) {
            PyErr_SetFromErrno(PyExc_OSError);
            free(map);
        } else {
            madvise(map->base, size, MADV_DONTDUMP);
            map->device = about.st_dev, map->inode = about.st_ino, map->size = size, map->next = mapped;
            mapped = map;
        }
    } else if (!map)
        PyErr_NoMemory();
    close(opened);
    if (PyErr_Occurred())
        return NULL;
    map->references++;
    node->maps[index] = map;
    node->bases[index] = map->base;
    node->heads[index] = (Slot *)(map->base + offset);
    Py_RETURN_NONE;
}

/* close(): give everything back; all ranks have come here. */
static PyObject *node_close(PyObject *self, PyObject *unused)
{
    Node *node = (Node *)self;
    if (node->closed)
        Py_RETURN_NONE;
    node->closed = 1;
    for (int i = 0; i < SLOTS; i++) {
        let_go(node, &node->published[i]);
        give_table(node, &node->published[i]);
    }
    while (node->spares)
        arena_give(node->spare[--node->spares]);
    arena_give(node->heads[node->me]);
    node->heads[node->me] = NULL;
    disconnect(node);
    Py_RETURN_NONE;
}

/* release(): let go of everything that has been read by now, and raise what was refused; mixings whose rows are still kept. */
static PyObject *node_release(PyObject *self, PyObject *unused)
{
    Node *node = (Node *)self;
    if (!node->closed)
        release(node);
    return raise_refusal(node) ? NULL : PyLong_FromLong(node->kept);
}

/* drain(): return when no rows that a solver's step has kept are read any more. */
static PyObject *node_drain(PyObject *self, PyObject *unused)
{
    Node *node = (Node *)self;
    if (!node->closed && leave_kept(node, 0))
        return NULL;
    Py_RETURN_NONE;
}

/* tag(index, seq): what a rank has published as mixing `seq`. */
static PyObject *node_tag(PyObject *self, PyObject *args)
{
    Node *node = (Node *)self;
    long long index;
    unsigned long long seq;
    if (!PyArg_ParseTuple(args, "LK", &index, &seq))
        return NULL;
    if (index < 0 || index >= node->size || !node->heads[index])
        return PyErr_Format(PyExc_ValueError, "there is no rank %lld", index);
    return PyLong_FromUnsignedLongLong(slot(node, index, seq)->tag);
}

/* note(index, seq): what a rank has published as mixing `seq`, in words; None if there are none. */
static PyObject *node_note(PyObject *self, PyObject *args)
{
    Node *node = (Node *)self;
    long long index;
    unsigned long long seq;
    if (!PyArg_ParseTuple(args, "LK", &index, &seq))
        return NULL;
    if (index < 0 || index >= node->size || !node->heads[index])
        return PyErr_Format(PyExc_ValueError, "there is no rank %lld", index);
    const Edge *table = table_of(node, index, seq);
    size_t size = index == node->me ? arena_size : node->maps[index]->size;
    int64_t edges = table ? table[0].rank : -1;          /* anything, if the slot is in use again */
    if (edges < 0 || edges > node->size || slot(node, index, seq)->table + sizeof(Edge) * (1 + edges) + GRAIN > size)
        Py_RETURN_NONE;
    const char *text = (const char *)(table + 1 + edges);
    return PyUnicode_DecodeUTF8(text, strnlen(text, GRAIN / 4), "replace");
}

/* refuse(reason): refuse all further mixings, and let the other ranks know. */
static PyObject *node_refuse(PyObject *self, PyObject *reason)
{
    if (!PyUnicode_Check(reason))
        return PyErr_Format(PyExc_TypeError, "refuse takes a str");
    refuse_mixings((Node *)self, Py_NewRef(reason));
    Py_RETURN_NONE;
}

/* out_of_step(index): why a rank refuses mixings; None if it does not. */
static PyObject *node_out_of_step(PyObject *self, PyObject *number)
{
    Node *node = (Node *)self;
    int64_t index = PyLong_AsLongLong(number);
    if (PyErr_Occurred())
        return NULL;
    if (index < 0 || index >= node->size || !node->heads[index])
        return PyErr_Format(PyExc_ValueError, "there is no rank %lld", (long long)index);
    Header *its = header(node, index);
    if (!atomic_load_explicit(&its->out_of_step, memory_order_acquire))
        Py_RETURN_NONE;
    return PyUnicode_DecodeUTF8(its->reason, strnlen(its->reason, sizeof its->reason), "replace");
}

static PyObject *node_offset(PyObject *self, void *unused)
{
    Node *node = (Node *)self;
    return PyLong_FromUnsignedLongLong(node->heads[node->me] ? arena_offset(node->heads[node->me]) : 0);
}

static PyMethodDef node_methods[] = {
    {"connect", node_connect, METH_VARARGS, "Read the arena of another rank."},
    {"close", node_close, METH_NOARGS, "Give everything back."},
    {"release", node_release, METH_NOARGS, "Let go of what has been read; how many rows are still kept."},
    {"drain", node_drain, METH_NOARGS, "Return when no rows are kept."},
    {"tag", node_tag, METH_VARARGS, "What a rank has published."},
    {"refuse", node_refuse, METH_O, "Refuse all further mixings."},
    {"out_of_step", node_out_of_step, METH_O, "Why a rank refuses mixings."},
    {"note", node_note, METH_VARARGS, "What a rank has published, in words."},
    {0},
};
static PyGetSetDef node_properties[] = {{"offset", node_offset, NULL, "Of the header in the arena.", NULL}, {0}};
static PyMemberDef node_members[] = {
    {"seq", T_ULONGLONG, offsetof(Node, seq), READONLY, "Mixings so far."},
    {"copies", T_LONGLONG, offsetof(Node, copies), READONLY, "Mixings whose rows were copied."},
    {"late", T_INT, offsetof(Node, late), 0, "Whether rows that are mixed are never changed afterwards."},
    {"broken", T_OBJECT, offsetof(Node, broken), READONLY, "Why the network is out of step, or None."},
    {0},
};
static PyTypeObject NodeType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.comm.runtime._shared.Node",
    .tp_basicsize = sizeof(Node),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "The memory of a node seen from one rank; see node.py.",
    .tp_new = node_new,
    .tp_dealloc = node_dealloc,
    .tp_traverse = node_traverse,
    .tp_clear = node_clear,
    .tp_methods = node_methods,
    .tp_members = node_members,
    .tp_getset = node_properties,
};

static PyMemberDef counts_members[] = {
    {"rounds", T_LONGLONG, offsetof(Counts, rounds), 0, "Mixings and exchanges."},
    {"messages", T_LONGLONG, offsetof(Counts, messages), 0, "Rows sent."},
    {"bytes", T_LONGLONG, offsetof(Counts, bytes), 0, "Their size."},
    {0},
};
static PyTypeObject CountsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.comm.runtime._shared.Counts",
    .tp_basicsize = sizeof(Counts),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "What was sent.",
    .tp_new = PyType_GenericNew,
    .tp_members = counts_members,
};

/* ----------------------------------------------------------------------------------------------------------------- Reader */

static PyObject *reader_call(PyObject *self, PyObject *const *args, size_t count, PyObject *names);

/* Reader(node, counts, report, signature, edges, (indptr, source, row, w, v, w32, v32, ins, outs)) */
static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *node, *counts, *told, *arrays;
    unsigned long long signature;
    long long edges;
    if (!PyArg_ParseTuple(args, "O!O!OKLO!", &NodeType, &node, &CountsType, &counts, &told, &signature, &edges, &PyTuple_Type,
                          &arrays))
        return NULL;
    Reader *r = (Reader *)type->tp_alloc(type, 0);
    if (!r)
        return NULL;
    r->call = reader_call;
    r->node = (Node *)Py_NewRef(node);
    r->counts = (Counts *)Py_NewRef(counts);
    r->report = Py_NewRef(told);
    r->signature = signature, r->edges = edges;
    Py_buffer *a = r->array;
    int fits = PyTuple_GET_SIZE(arrays) == ARRAYS;
    for (int i = 0; fits && i < ARRAYS; i++) {
        PyObject *item = PyTuple_GET_ITEM(arrays, i);
        if (item != Py_None && PyObject_GetBuffer(item, &a[i], PyBUF_C_CONTIGUOUS))
            goto failed;
    }
    static const int size[ARRAYS] = {8, 4, 4, 8, 8, 4, 4, 8, 8};
    for (int i = 0; fits && i < ARRAYS; i++)
        fits = a[i].buf ? a[i].itemsize == size[i] : i >= W && i <= V32;
    Py_ssize_t terms = fits ? a[SOURCE].len / 4 : 0;
    if (!fits || a[INDPTR].len < 8 || a[ROW].len != a[SOURCE].len || ((int64_t *)a[INDPTR].buf)[a[INDPTR].len / 8 - 1] != terms
        || (a[W].buf && (a[W].len != terms * 8 || a[V].len != terms * 8 || a[W32].len != terms * 4 || a[V32].len != terms * 4))
        || (!a[W].buf && a[INDPTR].len / 8 - 1 != terms)) {
        PyErr_SetString(PyExc_ValueError, "the arrays of a Reader do not fit together");
        goto failed;
    }
    r->m = a[INDPTR].len / 8 - 1;
    r->nin = a[INS].len / 8;
    r->nout = a[OUTS].len / 8;
    for (int which = INS; which <= OUTS; which++)
        for (Py_ssize_t i = 0; i < a[which].len / 8; i++) {
            int64_t rank = ((int64_t *)a[which].buf)[i];
            if (rank < 0 || rank >= r->node->size || !r->node->heads[rank]) {
                PyErr_Format(PyExc_ValueError, "a Reader names rank %lld, which is not connected", (long long)rank);
                goto failed;
            }
        }
    return (PyObject *)r;
failed:
    Py_DECREF(r);
    return NULL;
}

static int reader_traverse(PyObject *self, visitproc visit, void *arg)
{
    Reader *r = (Reader *)self;
    Py_VISIT(r->node);
    Py_VISIT(r->report);
    return 0;
}

static int reader_clear(PyObject *self)
{
    Py_CLEAR(((Reader *)self)->report);
    return 0;
}

static void reader_dealloc(PyObject *self)
{
    Reader *r = (Reader *)self;
    PyObject_GC_UnTrack(self);
    reader_clear(self);
    for (int i = 0; i < ARRAYS; i++)
        if (r->array[i].obj)
            PyBuffer_Release(&r->array[i]);
    Py_XDECREF(r->node);
    Py_XDECREF(r->counts);
    Py_TYPE(self)->tp_free(self);
}

static void count_rows(Reader *r, Py_ssize_t row)
{
    r->counts->rounds++;
    r->counts->messages += r->edges;
    r->counts->bytes += r->edges * row;
}

/* The buffer of a NumPy array (m, d) of float64 or float32 in C order; false if it is something else. */
static int rows_of(Reader *r, PyObject *array, int flags, Py_buffer *view)
{
    if ((PyObject *)Py_TYPE(array) != r->node->array)
        return 0;
    if (PyObject_GetBuffer(array, view, flags | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) {
        PyErr_Clear();
        return 0;
    }
    const char *format = view->format;
    if (view->ndim == 2 && view->shape[0] == r->m && (format[0] == 'd' || format[0] == 'f') && !format[1]
        && (uintptr_t)view->buf % view->itemsize == 0)
        return 1;
    PyBuffer_Release(view);
    return 0;
}

/* An array like another one; in the arena if it is large. */
static PyObject *like(Node *node, PyObject *array, Py_ssize_t bytes)
{
    if (bytes < GRAIN)
        return PyObject_CallOneArg(node->empty_like, array);
    PyObject *before = arena_enter();
    if (!before)
        return NULL;
    PyObject *made = PyObject_CallOneArg(node->empty_like, array);
    if (arena_leave(before))
        Py_CLEAR(made);
    return made;
}

/* None instead of a MemoryError before anything has happened: the caller tries in another way, and tells the others when that fails. */
static PyObject *none_without_memory(void)
{
    if (!PyErr_ExceptionMatches(PyExc_MemoryError))
        return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* reader(X, out): a whole mixing; None, and nothing has happened, if the arrays are not of the common kind, there is no memory for
 * them, or another thread is in. */
static PyObject *reader_call(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    Reader *r = (Reader *)self;
    Node *node = r->node;
    Py_buffer x, y;
    if (PyVectorcall_NARGS(count) != 2 || names || !r->array[W].buf) {
        PyErr_SetString(PyExc_TypeError, "a Reader that sums takes two arguments");
        return NULL;
    }
    if (node->closed || arena_forked || node->broken || published(node, node->seq + 1)->unread || !rows_of(r, args[0], 0, &x))
        Py_RETURN_NONE;
    PyObject *out = args[1], *result = NULL;
    if (node->seq > node->released)
        release(node);
    out = out == Py_None ? like(node, args[0], x.len) : Py_NewRef(out);
    if (!out) {
        PyBuffer_Release(&x);
        return none_without_memory();
    }
    if (!rows_of(r, out, PyBUF_WRITABLE, &y)) {
        result = Py_NewRef(Py_None);
        goto release_x;
    }
    const char *from = x.buf, *to = y.buf;
    if (y.shape[1] != x.shape[1] || y.itemsize != x.itemsize || (from < to + y.len && to < from + x.len)) {
        result = Py_NewRef(Py_None);
        goto release_y;
    }
    if (enter(node->guard, 0) <= 0) {                           /* another thread is in a call, or polls */
        result = Py_NewRef(Py_None);
        goto release_y;
    }
    uint64_t seq = 0, tag = tag_of(r, x.shape[1], x.itemsize, 0);
    int in_place = publish(r, args[0], x.buf, x.len, NULL, 0, tag, &seq);
    if (in_place >= 0) {
        count_rows(r, x.shape[1] * x.itemsize);
        if (!read_rows(r, seq, tag, x.buf, NULL, y.buf, x.shape[1], x.itemsize)) {
            Published *p = published(node, seq);
            if (node->late && p->rows && p->seq == seq)
                p->late = 1, node->kept++;
            int failed = node->late ? leave_kept(node, KEPT) : in_place ? leave(r, seq, x.buf, x.len) : 0;
            if (!failed && !raise_refusal(node) && !interrupted(node, seq))
                result = Py_NewRef(out);
        }
    } else
        result = none_without_memory();
    node->guard->depth--;
release_y:
    PyBuffer_Release(&y);
release_x:
    PyBuffer_Release(&x);
    Py_DECREF(out);
    return result;
}

/* A table of so many edges, which are to be filled in, and a note, in words; NULL with an exception. */
static Edge *new_table(Py_ssize_t edges, PyObject *note, size_t *bytes)
{
    Py_ssize_t length = 0;
    const char *text = note == Py_None ? "" : PyUnicode_AsUTF8AndSize(note, &length);
    *bytes = sizeof(Edge) * (1 + edges) + length + 1;
    Edge *table = text ? malloc(*bytes) : NULL;
    if (table) {
        table[0] = (Edge){.rank = edges};
        memcpy(table + 1 + edges, text, length);
        ((char *)table)[*bytes - 1] = 0;
    } else if (!PyErr_Occurred())
        PyErr_NoMemory();
    return table;
}

/* post(X, d, shape, note) -> seq: publish rows of d numbers; the note says in words what they are, for a rank with other ones. */
static PyObject *reader_post(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Reader *r = (Reader *)self;
    Py_buffer x;
    Py_ssize_t d = count == 4 ? PyLong_AsSsize_t(args[1]) : -1;
    uint64_t shape = count == 4 ? PyLong_AsUnsignedLongLong(args[2]) : 0;
    if (d < 0 || PyErr_Occurred() || PyObject_GetBuffer(args[0], &x, PyBUF_C_CONTIGUOUS)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "post takes rows, their length, a fingerprint of their shape, and a note");
        return NULL;
    }
    uint64_t seq = 0;
    size_t bytes = 0;
    Edge *table = args[3] == Py_None ? NULL : new_table(0, args[3], &bytes);
    int in_place = args[3] != Py_None && !table ? -1
        : publish(r, args[0], x.buf, x.len, table, bytes, tag_of(r, d, x.itemsize, shape), &seq);
    free(table);
    if (in_place >= 0)
        count_rows(r, d * x.itemsize);
    PyBuffer_Release(&x);
    return in_place < 0 ? NULL : PyLong_FromUnsignedLongLong(seq);
}

/* give_up(note): begin a mixing, and end it with nothing to read: the neighbours find another tag than theirs, and the note. */
static PyObject *reader_give_up(PyObject *self, PyObject *note)
{
    Reader *r = (Reader *)self;
    uint64_t seq = 0;
    size_t bytes;
    Edge *table = new_table(0, note, &bytes);
    int failed = !table || publish(r, Py_None, "", 0, table, bytes, r->signature ^ GAVE_UP, &seq) < 0;
    free(table);
    if (failed && PyErr_ExceptionMatches(PyExc_MemoryError)) {         /* for the note */
        PyErr_Clear();
        failed = publish(r, Py_None, "", 0, NULL, 0, r->signature ^ GAVE_UP, &seq) < 0;
    }
    if (failed)
        return NULL;
    has_read(r->node, seq);
    Py_RETURN_NONE;
}

/* read(seq, X, halo, out, d, shape): wait for the neighbours, and sum up (or copy) their rows. */
static PyObject *reader_read(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Reader *r = (Reader *)self;
    Py_buffer b[3];
    int held = 0, failed = 1;
    uint64_t seq = count == 6 ? PyLong_AsUnsignedLongLong(args[0]) : 0;
    uint64_t shape = count == 6 ? PyLong_AsUnsignedLongLong(args[5]) : 0;
    Py_ssize_t d = count == 6 ? PyLong_AsSsize_t(args[4]) : 0;
    if (count != 6)
        PyErr_SetString(PyExc_TypeError, "read takes six arguments");
    while (!PyErr_Occurred() && held < 3)
        held += !PyObject_GetBuffer(args[held + 1], &b[held], held == 2 ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS);
    if (!PyErr_Occurred() && usable(r->node)) {
        Py_ssize_t itemsize = b[2].itemsize;
        if (d < 0 || b[2].len != r->m * d * itemsize || b[0].itemsize != itemsize
            || (r->array[W].buf && (b[0].len != b[2].len || (itemsize != 8 && itemsize != 4))))
            PyErr_SetString(PyExc_ValueError, "the buffers of read do not fit together");
        else if (published(r->node, seq)->seq != seq || !published(r->node, seq)->unread)
            failed = 0;                                  /* it was read, and then a signal handler raised */
        else
            failed = read_rows(r, seq, tag_of(r, d, itemsize, shape), b[0].buf, b[1].buf, b[2].buf, d, itemsize)
                || raise_refusal(r->node) || interrupted(r->node, seq);
    }
    while (held)
        PyBuffer_Release(&b[--held]);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* leave(seq, X): return when the rows X of mixing `seq` may be changed. */
static PyObject *reader_leave(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t seq = count == 2 ? PyLong_AsUnsignedLongLong(args[0]) : 0;
    Py_buffer x;
    if (count != 2 || PyErr_Occurred() || PyObject_GetBuffer(args[1], &x, PyBUF_C_CONTIGUOUS)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "leave takes two arguments");
        return NULL;
    }
    Node *node = ((Reader *)self)->node;
    Published *p = published(node, seq);
    int failed = 0;
    if (!node->late)
        failed = leave((Reader *)self, seq, x.buf, x.len);
    else if (p->rows && p->seq == seq && !p->late) {
        p->late = 1, node->kept++;
        failed = leave_kept(node, KEPT);
    }
    PyBuffer_Release(&x);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* ready(seq): whether the in-neighbours have published their rows of mixing seq. */
static PyObject *reader_ready(PyObject *self, PyObject *number)
{
    Reader *r = (Reader *)self;
    uint64_t seq = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred())
        return NULL;
    const int64_t *ins = r->array[INS].buf;
    for (ptrdiff_t i = 0; i < r->nin; i++)
        if (!reached(&slot(r->node, ins[i], seq)->posted, seq))
            Py_RETURN_FALSE;
    Py_RETURN_TRUE;
}

#define DEFINE_COMBINE(TYPE, T)                                                                                          \
    VECTOR static void combine_##T(ptrdiff_t k, const char *const *rows, const double *weights, ptrdiff_t d, TYPE *restrict out) \
    {                                                                                                                    \
        for (ptrdiff_t c = 0; c < d; c += COLUMNS) {                                                                     \
            ptrdiff_t some = d - c < COLUMNS ? d - c : COLUMNS;                                                          \
            for (ptrdiff_t j = 0; j < k; j++) {                                                                          \
                const TYPE *restrict x = (const TYPE *)rows[j] + c, w = (TYPE)weights[j];                                \
                for (ptrdiff_t t = 0; t < some; t++)                                                                     \
                    out[c + t] = j ? out[c + t] + w * x[t] : w * x[t];                                                   \
            }                                                                                                            \
        }                                                                                                                \
    }
DEFINE_COMBINE(double, d)
DEFINE_COMBINE(float, f)

/* Calls with weights of this rank and of `ins`, who are also the `outs`:
 *
 *     out = own * x + sum over j of weights[j] * (what j multiplies by on the way here) * x_j,   in ascending order of the ranks
 *
 * weights: float64, what each of `ins` is multiplied by, NaN for those that nothing is taken from; None: from all that send, times 1.
 * sends: float64, what x is multiplied by on the way to each of them, NaN for those that it is not sent to; None: to all, times 1. */

/* Publish `len` bytes at x, of the array X, with a table of factors: 0, or -1 with an exception. */
static int post_table(Reader *r, PyObject *X, const Py_buffer *x, const double *weights, const double *sends, uint64_t shape,
                      PyObject *note, uint64_t *seq)
{
    size_t bytes = 0;
    Edge *table = new_table(r->nin, note, &bytes);
    if (!table)
        return -1;
    const int64_t *ins = r->array[INS].buf;
    for (Py_ssize_t i = 0; i < r->nin; i++)
        table[1 + i] = (Edge){ins[i], sends ? sends[i] : 1.0, weights ? weights[i] : 1.0};
    uint64_t tag = tag_of(r, x->itemsize ? x->len / x->itemsize : 0, x->itemsize, shape);
    int failed = publish(r, X, x->buf, x->len, table, bytes, tag, seq) < 0;
    free(table);
    return -failed;
}

/* Whether the buffer of `out` is for sums (and not for the arrays as they are). */
static int is_sum(const Py_buffer *out) { return out->format && (out->format[0] == 'd' || out->format[0] == 'f'); }

/* Sum up what the others have published: 0, or -1 with an exception.  Appends to the list `taken` (if not NULL) the place of each
 * rank taken, and what it multiplied by; sets `mismatch` to 8 * i (plus 4 if ins[i] finds it, too) plus 0: ins[i] does not send what is expected here, 1: it sends what
 * is not, 2: it does not expect what is sent there, 3: it expects what is not. */
static int read_table(Reader *r, uint64_t seq, const Py_buffer *x, const Py_buffer *out, double own, const double *weights,
                      const double *sends, int checked, uint64_t shape, PyObject *taken, Py_ssize_t *mismatch)
{
    Node *node = r->node;
    Py_ssize_t nin = r->nin, len = x->len, itemsize = x->itemsize, k = 0;
    int sums = is_sum(out), failed = 0;
    const int64_t *ins = r->array[INS].buf;
    const char *few[NEAR + 1], **rows = nin <= NEAR ? few : malloc((nin + 1) * sizeof *rows);
    double some[NEAR + 1], *factors = nin <= NEAR ? some : malloc((nin + 1) * sizeof *factors);
    if (!rows || !factors) {
        PyErr_NoMemory();
        failed = 1;
        goto done;
    }
    if (published(node, seq)->seq != seq || !published(node, seq)->unread)
        goto done;                                       /* it was read, and then a signal handler raised */
    PyThreadState *unlocked = NULL;
    int64_t answer = meet(r, seq, tag_of(r, itemsize ? len / itemsize : 0, itemsize, shape), &unlocked);
    relock(&unlocked);
    if (answer > 0)
        refuse(r, answer, seq);
    if ((failed = answer != READY))
        goto done;
    for (Py_ssize_t i = 0, placed = 0; !failed && i <= nin && *mismatch < 0; i++) {
        if (!placed && (i == nin || ins[i] > node->me)) {
            rows[k] = x->buf, factors[k++] = own;
            placed = 1;
        }
        if (i == nin)
            break;
        const Edge *edge = edge_to(node, ins[i], node->me, seq);
        int given = edge && edge->weight == edge->weight, asked = edge && edge->takes == edge->takes;
        int takes = !weights || weights[i] == weights[i], gives = !sends || sends[i] == sends[i];
        if (atomic_load_explicit(&slot(node, ins[i], seq)->posted, memory_order_acquire) != seq)
            given = asked = 0;                           /* that rank has gone on, and waited for nothing from here */
        int sees = given || asked;                       /* that rank compares, too */
        if (checked && given != takes)
            *mismatch = 8 * i + 4 * sees + given;
        else if (checked && asked != gives)
            *mismatch = 8 * i + 4 * sees + 2 + asked;
        else if (given && takes) {
            if (taken) {
                PyObject *item = Py_BuildValue("nd", i, edge->weight);
                failed = !item || PyList_Append(taken, item);
                Py_XDECREF(item);
            }
            factors[k] = (weights ? weights[i] : 1.0) * edge->weight;
            rows[k++] = rows_at(node, ins[i], seq);
        }
    }
    if (!failed && *mismatch < 0) {
        if (len > LARGE)
            unlocked = PyEval_SaveThread();
        if (sums && itemsize == 8)
            combine_d(k, rows, factors, len / 8, out->buf);
        else if (sums)
            combine_f(k, rows, factors, len / 4, out->buf);
        else
            for (Py_ssize_t i = 0, at = 0; i < k; i++)
                if (rows[i] != x->buf)
                    memcpy((char *)out->buf + at++ * len, rows[i], len);
        relock(&unlocked);
    }
    has_read(node, seq);
    failed = failed || leave(r, seq, x->buf, len) || raise_refusal(node) || interrupted(node, seq);
done:
    if (rows != few)
        free(rows);
    if (factors != some)
        free(factors);
    return -failed;
}

/* post_weighted(x, weights, sends, shape, note) -> seq */
static PyObject *reader_post_weighted(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Reader *r = (Reader *)self;
    Py_buffer b[3] = {{0}};
    uint64_t seq = 0, shape = count == 5 ? PyLong_AsUnsignedLongLong(args[3]) : 0;
    if (count != 5)
        PyErr_SetString(PyExc_TypeError, "post_weighted takes five arguments");
    for (int i = 0; i < 3 && !PyErr_Occurred(); i++)
        if (args[i] != Py_None)
            PyObject_GetBuffer(args[i], &b[i], PyBUF_C_CONTIGUOUS);
    if (!PyErr_Occurred() && (r->nin != r->nout || (b[1].buf && b[1].len != r->nin * 8) || (b[2].buf && b[2].len != r->nin * 8)))
        PyErr_SetString(PyExc_ValueError, "the buffers of post_weighted do not fit together");
    int failed = PyErr_Occurred() || post_table(r, args[0], &b[0], b[1].buf, b[2].buf, shape, args[4], &seq);
    for (int i = 0; i < 3; i++)
        if (b[i].obj)
            PyBuffer_Release(&b[i]);
    return failed ? NULL : PyLong_FromUnsignedLongLong(seq);
}

/* read_weighted(seq, x, out, own, weights, sends, checked, shape, taken): out is an array like x of float64 or float32; or of bytes, for
 * len(ins) times the bytes of x, and gets the arrays as they are.  checked: whether the lists of both sides must agree.
 *
 * Appends (i, what ins[i] multiplied by) to the list `taken`; or, where the lists of this rank and ins[i] do not agree, the number of
 * `read_table`. */
static PyObject *reader_read_weighted(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Reader *r = (Reader *)self;
    Py_buffer b[4] = {{0}};
    static const int place[4] = {1, 2, 4, 5};
    if (count != 9 || !PyList_Check(args[8])) {
        PyErr_SetString(PyExc_TypeError, "read_weighted takes nine arguments, the last one a list");
        return NULL;
    }
    uint64_t seq = PyLong_AsUnsignedLongLong(args[0]), shape = PyLong_AsUnsignedLongLong(args[7]);
    double own = PyFloat_AsDouble(args[3]);
    int checked = PyObject_IsTrue(args[6]), failed = 1;
    for (int i = 0; i < 4 && !PyErr_Occurred(); i++)
        if (args[place[i]] != Py_None)
            PyObject_GetBuffer(args[place[i]], &b[i], (i == 1 ? PyBUF_WRITABLE : 0) | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
    Py_ssize_t nin = r->nin, mismatch = -1;
    if (PyErr_Occurred() || !usable(r->node))
        goto done;
    if (nin != r->nout || (b[2].buf && b[2].len != nin * 8) || (b[3].buf && b[3].len != nin * 8)
        || (is_sum(&b[1]) ? b[1].len != b[0].len || b[1].itemsize != b[0].itemsize : b[1].len != nin * b[0].len)) {
        PyErr_SetString(PyExc_ValueError, "the buffers of read_weighted do not fit together");
        goto done;
    }
    failed = read_table(r, seq, &b[0], &b[1], own, b[2].buf, b[3].buf, checked, shape, args[8], &mismatch);
    if (!failed && mismatch >= 0) {
        PyObject *number = PyLong_FromSsize_t(mismatch);
        failed = !number || PyList_Append(args[8], number);
        Py_XDECREF(number);
    }
done:
    for (int i = 0; i < 4; i++)
        if (b[i].obj)
            PyBuffer_Release(&b[i]);
    return failed ? NULL : Py_NewRef(args[8]);
}

/* What the dict `given` has for `ranks`, NaN where it has nothing; whether all are finite numbers. */
static int factors_of(PyObject *given, PyObject *ranks, double *factors)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ranks); i++) {
        PyObject *value = PyDict_GetItemWithError(given, PyTuple_GET_ITEM(ranks, i));
        factors[i] = value ? PyFloat_AsDouble(value) : Py_NAN;
        if (PyErr_Occurred() || (value && !isfinite(factors[i]))) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

/* sum_weighted(x, out, own, weights, sends, ranks, checked, shape, note): post_weighted and read_weighted at once, of the sum, with
 * factors from dicts {rank: factor} for the tuple `ranks` of all of `ins`.  Returns None; the number of `read_table`; or, before anything
 * has happened, False if a factor is not a finite number. */
static PyObject *reader_sum_weighted(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Reader *r = (Reader *)self;
    if (count != 9 || !(args[3] == Py_None || PyDict_CheckExact(args[3])) || !(args[4] == Py_None || PyDict_CheckExact(args[4]))
        || !PyTuple_Check(args[5]) || PyTuple_GET_SIZE(args[5]) != r->nin || r->nin != r->nout) {
        PyErr_SetString(PyExc_TypeError, "sum_weighted takes two arrays, a number, two dicts, the ranks, and three more arguments");
        return NULL;
    }
    double few[2 * NEAR], own = PyFloat_AsDouble(args[2]);
    double *weights = r->nin <= NEAR ? few : malloc(2 * r->nin * sizeof *weights), *sends = weights + r->nin;
    Py_buffer x = {0}, out = {0};
    PyObject *result = NULL;
    uint64_t seq = 0, shape = PyLong_AsUnsignedLongLong(args[7]);
    int checked = PyObject_IsTrue(args[6]);
    Py_ssize_t mismatch = -1;
    if (!weights)
        return PyErr_NoMemory();
    if (PyErr_Occurred() || !isfinite(own) || (args[3] != Py_None && !factors_of(args[3], args[5], weights))
        || (args[4] != Py_None && !factors_of(args[4], args[5], sends))) {
        PyErr_Clear();
        result = Py_NewRef(Py_False);
    } else if (!PyObject_GetBuffer(args[0], &x, PyBUF_C_CONTIGUOUS) && !PyObject_GetBuffer(args[1], &out, PyBUF_CONTIG | PyBUF_FORMAT)) {
        const double *w = args[3] == Py_None ? NULL : weights, *s = args[4] == Py_None ? NULL : sends;
        if (!is_sum(&out) || out.len != x.len || out.itemsize != x.itemsize)
            PyErr_SetString(PyExc_ValueError, "the arrays of sum_weighted do not fit together");
        else if (!post_table(r, args[0], &x, w, s, shape, args[8], &seq)
                 && !read_table(r, seq, &x, &out, own, w, s, checked, shape, NULL, &mismatch))
            result = mismatch < 0 ? Py_NewRef(Py_None) : PyLong_FromSsize_t(mismatch);
    }
    if (x.obj)
        PyBuffer_Release(&x);
    if (out.obj)
        PyBuffer_Release(&out);
    if (weights != few)
        free(weights);
    return result;
}

static PyMethodDef reader_methods[] = {
    {"post_weighted", (PyCFunction)(void (*)(void))reader_post_weighted, METH_FASTCALL, "Publish an array and weights."},
    {"read_weighted", (PyCFunction)(void (*)(void))reader_read_weighted, METH_FASTCALL, "Sum up what the others have published."},
    {"sum_weighted", (PyCFunction)(void (*)(void))reader_sum_weighted, METH_FASTCALL, "Publish an array, and sum up."},
    {"post", (PyCFunction)(void (*)(void))reader_post, METH_FASTCALL, "Publish rows."},
    {"give_up", reader_give_up, METH_O, "Take part in a mixing without rows."},
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL, "Sum up (or copy) what the neighbours have published."},
    {"leave", (PyCFunction)(void (*)(void))reader_leave, METH_FASTCALL, "Return when this rank's rows may be changed."},
    {"ready", reader_ready, METH_O, "Whether the neighbours' rows are there."},
    {0},
};
static PyTypeObject ReaderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.comm.runtime._shared.Reader",
    .tp_basicsize = sizeof(Reader),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "What one rank reads on its node in one phase; see transport/node_reader.py.",
    .tp_new = reader_new,
    .tp_dealloc = reader_dealloc,
    .tp_traverse = reader_traverse,
    .tp_clear = reader_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Reader, call),
    .tp_methods = reader_methods,
};

/* set_patience(seconds): after which a wait looks after other things. */
static PyObject *set_patience(PyObject *self, PyObject *number)
{
    double value = PyFloat_AsDouble(number);
    if (PyErr_Occurred())
        return NULL;
    patience = value;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_patience", set_patience, METH_O, "Seconds after which a wait reports."},
    {"watch", watch, METH_O, "Look for sums that are not finite; whether there were some."},
    {0},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_shared", "Rows in the shared memory of a node.", -1, functions};

PyMODINIT_FUNC PyInit__shared(void)
{
    if (arena_init())
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made && (PyModule_AddFunctions(made, arena_methods)
                 || PyModule_AddObject(made, "GAVE_UP", PyLong_FromUnsignedLongLong(GAVE_UP)) || PyModule_AddIntMacro(made, GRAIN)
                 || PyModule_AddIntMacro(made, SLOTS) || PyModule_AddIntMacro(made, LATE_POST)
                 || PyModule_AddIntMacro(made, LATE_DONE) || PyModule_AddIntMacro(made, OTHER_TAG) || PyModule_AddIntMacro(made, REFUSED)
                 || PyModule_AddType(made, &GuardType) || PyModule_AddType(made, &NodeType) || PyModule_AddType(made, &CountsType)
                 || PyModule_AddType(made, &ReaderType)))
        Py_CLEAR(made);
    return made;
}
#endif
