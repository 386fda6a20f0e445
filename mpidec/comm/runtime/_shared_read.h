/* Shared rows: wait for the in-neighbours, compare tags, and form the weighted sums. */
#ifndef MPIDEC_SHARED_READ_H
#define MPIDEC_SHARED_READ_H
#include "_shared_publish.h"

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
#endif
