/* Shared rows: publish rows, and let go of them when they have been read. */
#ifndef MPIDEC_SHARED_PUBLISH_H
#define MPIDEC_SHARED_PUBLISH_H
#include "_shared_wait.h"

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
#endif
