/* Rows in the memory that the ranks of a node share: publish where one's rows lie, read the neighbours' where they lie.
 *
 * Each rank has a header of SLOTS slots, written by it alone and read by its neighbours.  Mixing number `seq` uses the slot
 * seq % SLOTS:
 *
 *     post     block, offset and tag of the own rows (or of a copy of them), then posted = seq
 *     finish   wait until posted = seq at all in-neighbours; sum (or copy) their rows; done = seq
 *     drained  whether done >= seq at all out-neighbours: rows that were not copied may then be changed, and a copy may be
 *              overwritten
 *
 * The tag says what is mixed.  Who finds another one than its own says so in `refused`, so that both sides know.
 *
 * A Node is the memory seen from one rank; a Reader is what this rank reads there in one phase, and calling it is a whole
 * mixing.  Every wait ends after PATIENCE seconds, so that Python can look after signals, time-outs and the other ranks.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <structmember.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "../kernels/_rows.h"

#define PATIENCE 0.1
enum { SLOTS = 64, BLOCKS = 1024, SMALL = 1 << 15 };     /* SMALL: bytes up to which a copy costs less than its readers do */
enum { READY, LATE_POST, LATE_DONE, OTHER_TAG, REFUSED };       /* an answer is one of these * 2**32 + the rank in question */
#define GAVE_UP ((uint64_t)1 << 40)                      /* more than any rows weigh in a tag */
#define ANSWER(what, rank) ((int64_t)(what) << 32 | (rank))

typedef struct {
    _Atomic uint64_t posted, done;
    uint64_t block, offset, tag, file, refused, unused;
} Slot;                                                  /* a cache line */

typedef struct { uint64_t block; char *address; size_t size; } Map;
typedef struct { const char *start, *end; uint64_t block, file; } Own;
typedef struct { PyObject *block, *reader; char *start; size_t size; uint64_t seq; } Copy;

typedef struct {
    PyObject_HEAD
    int64_t size, me, blocks, flying, spins;
    uint64_t seq;
    int copies;
    Slot **heads;
    int64_t *pids;
    Map **maps;                                          /* BLOCKS of each rank that has been read from */
    Own own[BLOCKS];
    Copy copy[SLOTS];
    PyObject *posted[SLOTS];                             /* the Reader of the mixing that each slot is used for */
    PyObject *array, *empty_like, *rows, *grow;          /* numpy.ndarray, numpy.empty_like, rows(X), grow(bytes) */
} Node;

typedef struct {
    PyObject_HEAD
    int64_t rounds, messages, bytes;
} Counts;

enum { INDPTR, SOURCE, ROW, W, V, W32, V32, INS, OUTS, ARRAYS };
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Node *node;
    Counts *counts;
    PyObject *resume;                                    /* resume(answer, seq, whether X itself is read, X, out) */
    uint64_t mark;
    int64_t edges;
    ptrdiff_t m, nin, nout;
    Py_buffer array[ARRAYS];                             /* without weights rows are copied as they are */
} Reader;

static PyTypeObject NodeType, CountsType, ReaderType;

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

/* Look at a flag a few times. */
static int spin(_Atomic uint64_t *flag, uint64_t seq, int64_t spins)
{
    for (int64_t look = 0; look <= spins; look++) {
        if (atomic_load_explicit(flag, memory_order_acquire) >= seq)
            return 1;
        relax();
    }
    return 0;
}

/* Wait until *flag >= seq, yielding; whether that came before PATIENCE was over. */
static int await(_Atomic uint64_t *flag, uint64_t seq)
{
    double until = 0;
    for (long look = 1; atomic_load_explicit(flag, memory_order_acquire) < seq; look++) {
        if (look % 64 == 0) {
            double now = seconds();
            if (until == 0)
                until = now + PATIENCE;
            else if (now > until)
                return 0;
        }
        sched_yield();
    }
    return 1;
}

/* The same; Python's lock is held while looking, and given back while yielding. */
static int wait_for(_Atomic uint64_t *flag, uint64_t seq, int64_t spins, PyThreadState **released)
{
    if (spin(flag, seq, *released ? 0 : spins))
        return 1;
    if (!*released)
        *released = PyEval_SaveThread();
    return await(flag, seq);
}

static Slot *slot(const Node *node, int64_t rank, uint64_t seq) { return node->heads[rank] + seq % SLOTS; }

/* The address of the block that a slot speaks of; NULL with errno set. */
static char *mapped(Node *node, int64_t rank, const Slot *s)
{
    if (!node->maps[rank] && !(node->maps[rank] = calloc(BLOCKS, sizeof(Map))))
        return NULL;
    Map *map = node->maps[rank] + s->block % BLOCKS;
    if (map->block == s->block)
        return map->address;
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%lld/fd/%llu", (long long)node->pids[rank], (unsigned long long)s->file);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return NULL;
    char *address = fstat(file, &about) ? MAP_FAILED : mmap(NULL, about.st_size, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (address == MAP_FAILED)
        return NULL;
    if (map->address)
        munmap(map->address, map->size);
    *map = (Map){s->block, address, about.st_size};
    return address;
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

/* Everything that is to be read: x, the in-neighbours' rows, the halo. */
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

/* `form` is 0 for plain rows of d numbers, and says how others are shaped. */
static uint64_t tag_of(const Reader *r, Py_ssize_t d, Py_ssize_t itemsize, uint64_t form)
{
    return r->mark ^ form ^ ((uint64_t)d * 2 + (itemsize == 8));
}

/* Wait for the in-neighbours, and read their rows of d numbers. */
static int64_t read_rows(Reader *r, uint64_t seq, uint64_t tag, const char *x, const char *halo, char *out, Py_ssize_t d,
                         Py_ssize_t itemsize)
{

    Node *node = r->node;
    const char *few[NEAR + 2], **base = r->nin <= NEAR ? few : malloc((r->nin + 2) * sizeof *base);
    const int64_t *ins = r->array[INS].buf;
    if (!base) {
        PyErr_NoMemory();
        return -1;
    }
    PyThreadState *released = NULL;
    int64_t answer = READY;
    base[0] = x;
    base[r->nin + 1] = halo;
    for (ptrdiff_t i = 0; i < r->nin && answer == READY; i++) {
        Slot *s = slot(node, ins[i], seq);
        if (!wait_for(&s->posted, seq, node->spins, &released))
            answer = ANSWER(LATE_POST, ins[i]);
        else if (s->tag != tag)
            answer = ANSWER(OTHER_TAG, ins[i]);
        else if (!(base[i + 1] = mapped(node, ins[i], s)))
            answer = -1;
        else
            base[i + 1] += s->offset;
    }
    int error = errno;
    Slot *mine = slot(node, node->me, seq);
    if (answer == READY) {
        if (!released && r->m * d > SMALL / 16)
            released = PyEval_SaveThread();
        gather(r, base, out, d, itemsize);
    } else if (answer >> 32 == OTHER_TAG)
        mine->refused = (answer & 0xFFFFFFFF) + 1;
    if (answer >> 32 != LATE_POST)
        atomic_store_explicit(&mine->done, seq, memory_order_release);
    if (released)
        PyEval_RestoreThread(released);
    if (base != few)
        free(base);
    if (answer == -1) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return answer;
}

/* Wait until the out-neighbours have read mixing `seq`: READY, or who has not. */
static int64_t drain(const Reader *r, uint64_t seq, int patient)
{
    PyThreadState *released = NULL;
    const int64_t *outs = r->array[OUTS].buf;
    int64_t answer = READY;
    for (ptrdiff_t i = 0; i < r->nout && answer == READY; i++) {
        Slot *s = slot(r->node, outs[i], seq);
        if (!(patient ? wait_for(&s->done, seq, r->node->spins, &released) : spin(&s->done, seq, 0)))
            answer = ANSWER(LATE_DONE, outs[i]);
        else if (s->refused == (uint64_t)r->node->me + 1)
            answer = ANSWER(REFUSED, outs[i]);
    }
    if (released)
        PyEval_RestoreThread(released);
    return answer;
}

/* What is to be done about an answer is said in Python. */
static PyObject *resume(Reader *r, int64_t answer, uint64_t seq, int in_place, PyObject *X, PyObject *out)
{
    return PyObject_CallFunction(r->resume, "LKiOO", (long long)answer, (unsigned long long)seq, in_place, X, out);
}

/* Publish rows: 1 if they are read where they lie, 0 if they were copied, -1 with an exception. */
static int publish(Reader *r, const char *x, Py_ssize_t len, uint64_t tag, uint64_t *seq)
{
    Node *node = r->node;
    PyObject **posted = &node->posted[(node->seq + 1) % SLOTS];
    if (*posted) {                                       /* nobody may still need what the slot says */
        uint64_t last = node->seq + 1 - SLOTS;
        Reader *before = (Reader *)Py_NewRef(*posted);
        int64_t answer = drain(before, last, 0);
        if (answer >> 32 == REFUSED && slot(node, node->me, last)->tag == (before->mark ^ GAVE_UP))
            answer = READY;
        PyObject *drained = answer == READY ? Py_NewRef(Py_None) : resume(before, answer, last, 0, Py_None, Py_None);
        Py_DECREF(before);
        if (!drained)
            return -1;
        Py_DECREF(drained);
        Py_CLEAR(*posted);
    }
    static const Own nobody;                              /* reads these rows */
    const Own *own = r->nout ? NULL : &nobody;
    for (int64_t i = 0; len > SMALL && i < node->blocks && !own; i++)
        if (node->own[i].start <= x && x + len <= node->own[i].end)
            own = &node->own[i];
    int in_place = r->nout && own;
    for (int turn = 0; !own; turn++) {
        for (int i = 0; i < node->copies && !own; i++) {
            Copy *c = &node->copy[i];
            int64_t answer = c->reader ? drain((Reader *)c->reader, c->seq, 0) : READY;
            if (answer >> 32 == REFUSED) {
                resume((Reader *)c->reader, answer, c->seq, 0, Py_None, Py_None);
                return -1;
            }
            if (answer != READY || c->size < (size_t)len)
                continue;
            memcpy(c->start, x, len);
            c->seq = node->seq + 1;
            Py_INCREF(r);
            Py_XSETREF(c->reader, (PyObject *)r);
            for (int64_t j = 0; j < node->blocks && !own; j++)
                if (node->own[j].start == c->start)
                    own = &node->own[j];
            x = c->start;
        }
        if (!own) {
            PyObject *grown = turn < 2 ? PyObject_CallFunction(node->grow, "n", len) : NULL;
            if (!grown) {
                if (!PyErr_Occurred())
                    PyErr_SetString(PyExc_MemoryError, "no block to copy rows to");
                return -1;
            }
            Py_DECREF(grown);
        }
    }
    *seq = ++node->seq;
    if (r->nout)
        *posted = Py_NewRef((PyObject *)r);
    Slot *s = slot(node, node->me, *seq);
    s->block = own->block;
    s->file = own->file;
    s->offset = own == &nobody ? 0 : x - own->start;
    s->tag = tag;
    s->refused = 0;
    atomic_store_explicit(&s->posted, *seq, memory_order_release);
    return in_place;
}

/* ---------------------------------------------------------------------------------------------------------------------- */

/* Node(heads, pids, me, spins, ndarray, empty_like, rows, grow) */
static PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Py_buffer heads, pids;
    long long me, spins;
    PyObject *array, *empty_like, *rows, *grow;
    if (!PyArg_ParseTuple(args, "y*y*LLOOOO", &heads, &pids, &me, &spins, &array, &empty_like, &rows, &grow))
        return NULL;
    Node *node = (Node *)type->tp_alloc(type, 0);
    int64_t size = heads.len / 8;
    if (node) {
        node->size = size, node->me = me, node->spins = spins;
        node->heads = calloc(size + 1, sizeof *node->heads);
        node->pids = calloc(size + 1, sizeof *node->pids);
        node->maps = calloc(size + 1, sizeof *node->maps);
        node->array = Py_NewRef(array), node->empty_like = Py_NewRef(empty_like);
        node->rows = Py_NewRef(rows), node->grow = Py_NewRef(grow);
        if (!node->heads || !node->pids || !node->maps || pids.len != heads.len || me < 0 || me >= size) {
            PyErr_SetString(PyExc_ValueError, "the arguments of Node do not fit together");
            Py_CLEAR(node);
        } else {
            memcpy(node->heads, heads.buf, heads.len);
            memcpy(node->pids, pids.buf, pids.len);
        }
    }
    PyBuffer_Release(&heads);
    PyBuffer_Release(&pids);
    return (PyObject *)node;
}

static int node_traverse(PyObject *self, visitproc visit, void *arg)
{
    Node *node = (Node *)self;
    Py_VISIT(node->array);
    Py_VISIT(node->empty_like);
    Py_VISIT(node->rows);
    Py_VISIT(node->grow);
    for (int i = 0; i < node->copies; i++) {
        Py_VISIT(node->copy[i].block);
        Py_VISIT(node->copy[i].reader);
    }
    for (int i = 0; i < SLOTS; i++)
        Py_VISIT(node->posted[i]);
    return 0;
}

static int node_clear(PyObject *self)
{
    Node *node = (Node *)self;
    Py_CLEAR(node->array);
    Py_CLEAR(node->empty_like);
    Py_CLEAR(node->rows);
    Py_CLEAR(node->grow);
    while (node->copies) {
        Copy last = node->copy[--node->copies];
        Py_XDECREF(last.block);
        Py_XDECREF(last.reader);
    }
    for (int i = 0; i < SLOTS; i++)
        Py_CLEAR(node->posted[i]);
    return 0;
}

static void node_dealloc(PyObject *self)
{
    Node *node = (Node *)self;
    PyObject_GC_UnTrack(self);
    node_clear(self);
    for (int64_t rank = 0; node->maps && rank < node->size; rank++) {
        for (int i = 0; node->maps[rank] && i < BLOCKS; i++)
            if (node->maps[rank][i].address)
                munmap(node->maps[rank][i].address, node->maps[rank][i].size);
        free(node->maps[rank]);
    }
    free(node->heads);
    free(node->pids);
    free(node->maps);
    Py_TYPE(self)->tp_free(self);
}

/* own(place, block, file, bytes): a block of this rank, or none there if `bytes` is None. */
static PyObject *node_own(PyObject *self, PyObject *args)
{
    Node *node = (Node *)self;
    long long place;
    unsigned long long block, file;
    Py_buffer bytes;
    if (!PyArg_ParseTuple(args, "LKKz*", &place, &block, &file, &bytes))
        return NULL;
    if (place < 0 || place >= BLOCKS) {
        PyBuffer_Release(&bytes);
        return PyErr_Format(PyExc_ValueError, "there is no place %lld for a block", place);
    }
    node->own[place] = bytes.buf ? (Own){bytes.buf, (char *)bytes.buf + bytes.len, block, file} : (Own){0};
    if (place >= node->blocks)
        node->blocks = place + 1;
    PyBuffer_Release(&bytes);
    Py_RETURN_NONE;
}

/* copy_to(block): rows may be copied to this block of bytes. */
static PyObject *node_copy_to(PyObject *self, PyObject *block)
{
    Node *node = (Node *)self;
    Py_buffer bytes;
    if (PyObject_GetBuffer(block, &bytes, PyBUF_WRITABLE))
        return NULL;
    if (node->copies < SLOTS) {
        memmove(node->copy + 1, node->copy, node->copies++ * sizeof *node->copy);
        node->copy[0] = (Copy){Py_NewRef(block), NULL, bytes.buf, bytes.len, 0};
    }
    PyBuffer_Release(&bytes);
    Py_RETURN_NONE;
}

/* room(bytes) -> -1 if there is room for one more copy, -2 if the oldest one may be overwritten, else the answer of the wait for
 * its readers. */
static PyObject *node_room(PyObject *self, PyObject *bytes)
{
    Node *node = (Node *)self;
    size_t len = PyLong_AsSize_t(bytes);
    if (PyErr_Occurred())
        return NULL;
    if (node->copies <= node->flying + 3)
        return PyLong_FromLong(-1);
    int oldest = 0;
    for (int i = 1; i < node->copies; i++)
        if (node->copy[i].seq < node->copy[oldest].seq)
            oldest = i;
    Copy c = node->copy[oldest];
    int64_t answer = c.reader ? drain((Reader *)c.reader, c.seq, 1) : READY;
    if (answer != READY)
        return PyLong_FromLongLong(answer);
    if (c.size >= len)
        return PyLong_FromLong(-2);
    memmove(node->copy + oldest, node->copy + oldest + 1, (--node->copies - oldest) * sizeof *node->copy);
    Py_XDECREF(c.reader);
    Py_DECREF(c.block);
    return PyLong_FromLong(-1);
}

/* forget(): drop all copies. */
static PyObject *node_forget(PyObject *self, PyObject *unused)
{
    node_clear(self);
    ((Node *)self)->blocks = 0;
    Py_RETURN_NONE;
}

static PyMethodDef node_methods[] = {
    {"own", node_own, METH_VARARGS, "A block of this rank."},
    {"copy_to", node_copy_to, METH_O, "A block that rows may be copied to."},
    {"room", node_room, METH_O, "Make room for one more copy."},
    {"forget", node_forget, METH_NOARGS, "Drop all copies."},
    {0},
};
static PyMemberDef node_members[] = {
    {"seq", T_ULONGLONG, offsetof(Node, seq), READONLY, "Mixings so far."},
    {"flying", T_LONGLONG, offsetof(Node, flying), 0, "Mixings that have begun and not ended."},
    {"copies", T_INT, offsetof(Node, copies), READONLY, "Blocks that rows are copied to."},
    {0},
};
static PyTypeObject NodeType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.runtime._shared.Node",
    .tp_basicsize = sizeof(Node),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "The memory of a node, seen from one rank; see stack.py.",
    .tp_new = node_new,
    .tp_dealloc = node_dealloc,
    .tp_traverse = node_traverse,
    .tp_clear = node_clear,
    .tp_methods = node_methods,
    .tp_members = node_members,
};

static PyMemberDef counts_members[] = {
    {"rounds", T_LONGLONG, offsetof(Counts, rounds), 0, "Mixings and exchanges."},
    {"messages", T_LONGLONG, offsetof(Counts, messages), 0, "Rows sent."},
    {"bytes", T_LONGLONG, offsetof(Counts, bytes), 0, "Their size."},
    {0},
};
static PyTypeObject CountsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.runtime._shared.Counts",
    .tp_basicsize = sizeof(Counts),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "What was sent.",
    .tp_new = PyType_GenericNew,
    .tp_members = counts_members,
};

/* Reader(node, counts, resume, mark, edges, (indptr, source, row, w, v, w32, v32, ins, outs)) */
static PyObject *reader_call(PyObject *self, PyObject *const *args, size_t count, PyObject *names);

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *node, *counts, *resume, *arrays;
    unsigned long long mark;
    long long edges;
    if (!PyArg_ParseTuple(args, "O!O!OKLO!", &NodeType, &node, &CountsType, &counts, &resume, &mark, &edges, &PyTuple_Type, &arrays))
        return NULL;
    Reader *r = (Reader *)type->tp_alloc(type, 0);
    if (!r)
        return NULL;
    r->call = reader_call;
    r->node = (Node *)Py_NewRef(node);
    r->counts = (Counts *)Py_NewRef(counts);
    r->resume = Py_NewRef(resume);
    r->mark = mark, r->edges = edges;
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
    return (PyObject *)r;
failed:
    Py_DECREF(r);
    return NULL;
}

static int reader_traverse(PyObject *self, visitproc visit, void *arg)
{
    Reader *r = (Reader *)self;
    Py_VISIT(r->node);
    Py_VISIT(r->resume);
    return 0;
}

static int reader_clear(PyObject *self)
{
    Py_CLEAR(((Reader *)self)->resume);
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
    if (view->ndim == 2 && view->shape[0] == r->m && (format[0] == 'd' || format[0] == 'f') && !format[1])
        return 1;
    PyBuffer_Release(view);
    return 0;
}

/* reader(X, out): a whole mixing; None, and nothing has happened, if the arrays are not of the common kind. */
static PyObject *reader_call(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    Reader *r = (Reader *)self;
    Py_buffer x, y;
    if (PyVectorcall_NARGS(count) != 2 || names || !r->array[W].buf) {
        PyErr_SetString(PyExc_TypeError, "a Reader that sums takes two arguments");
        return NULL;
    }
    if (!r->node->array || r->node->flying || !rows_of(r, args[0], 0, &x))
        Py_RETURN_NONE;
    PyObject *out = args[1], *result = NULL;
    if (out == Py_None) {
        out = PyObject_CallOneArg(x.len <= SMALL ? r->node->empty_like : r->node->rows, args[0]);
        if (!out) {
            PyBuffer_Release(&x);
            return NULL;
        }
    } else
        Py_INCREF(out);
    if (!rows_of(r, out, PyBUF_WRITABLE, &y)) {
        result = Py_NewRef(Py_None);
        goto release_x;
    }
    const char *from = x.buf, *to = y.buf;
    if (y.shape[1] != x.shape[1] || y.itemsize != x.itemsize || (from < to + y.len && to < from + x.len)) {
        result = Py_NewRef(Py_None);
        goto release;
    }
    uint64_t seq = 0;
    uint64_t tag = tag_of(r, x.shape[1], x.itemsize, 0);
    int in_place = publish(r, x.buf, x.len, tag, &seq);
    if (in_place < 0)
        goto release;
    count_rows(r, x.shape[1] * x.itemsize);
    int64_t answer = read_rows(r, seq, tag, x.buf, NULL, y.buf, x.shape[1], x.itemsize);
    if (answer == READY && in_place)
        answer = drain(r, seq, 1);
    if (answer == READY)
        result = Py_NewRef(out);
    else if (answer > 0)
        result = resume(r, answer, seq, in_place, args[0], out);
release:
    PyBuffer_Release(&y);
release_x:
    PyBuffer_Release(&x);
    Py_DECREF(out);
    return result;
}

/* post(X, d, form) -> (seq, whether X itself will be read): rows of d numbers */
static PyObject *reader_post(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Reader *r = (Reader *)self;
    Py_buffer x;
    Py_ssize_t d = count == 3 ? PyLong_AsSsize_t(args[1]) : -1;
    uint64_t form = count == 3 ? PyLong_AsUnsignedLongLong(args[2]) : 0;
    if (d < 0 || PyErr_Occurred() || PyObject_GetBuffer(args[0], &x, PyBUF_C_CONTIGUOUS)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "post takes rows, their length and their form");
        return NULL;
    }
    uint64_t seq = 0;
    int in_place = publish(r, x.buf, x.len, tag_of(r, d, x.itemsize, form), &seq);
    if (in_place >= 0) {
        count_rows(r, d * x.itemsize);
        r->node->flying++;
    }
    PyBuffer_Release(&x);
    return in_place < 0 ? NULL : Py_BuildValue("KN", (unsigned long long)seq, PyBool_FromLong(in_place));
}

/* give_up(): begin a mixing, and end it with nothing to read: the neighbours find another tag than theirs. */
static PyObject *reader_give_up(PyObject *self, PyObject *unused)
{
    Reader *r = (Reader *)self;
    uint64_t seq = 0;
    if (publish(r, "", 0, r->mark ^ GAVE_UP, &seq) < 0)
        return NULL;
    for (int i = 0; i < r->node->copies; i++)
        if (r->node->copy[i].seq == seq)
            Py_CLEAR(r->node->copy[i].reader);
    atomic_store_explicit(&slot(r->node, r->node->me, seq)->done, seq, memory_order_release);
    Py_RETURN_NONE;
}

/* read(seq, X, halo, out, d, form) -> 0 when the rows have been read, or an answer */
static PyObject *reader_read(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Reader *r = (Reader *)self;
    Py_buffer b[3];
    int held = 0;
    int64_t answer = -1;
    uint64_t seq = count == 6 ? PyLong_AsUnsignedLongLong(args[0]) : 0, form = count == 6 ? PyLong_AsUnsignedLongLong(args[5]) : 0;
    Py_ssize_t d = count == 6 ? PyLong_AsSsize_t(args[4]) : 0;
    if (count != 6)
        PyErr_SetString(PyExc_TypeError, "read takes six arguments");
    while (!PyErr_Occurred() && held < 3)
        held += !PyObject_GetBuffer(args[held + 1], &b[held], held == 2 ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS);
    if (!PyErr_Occurred()) {
        Py_ssize_t itemsize = b[2].itemsize;
        if (d < 0 || b[2].len != r->m * d * itemsize || b[0].itemsize != itemsize
            || (r->array[W].buf && (b[0].len != b[2].len || (itemsize != 8 && itemsize != 4))))
            PyErr_SetString(PyExc_ValueError, "the buffers of read do not fit together");
        else
            answer = read_rows(r, seq, tag_of(r, d, itemsize, form), b[0].buf, b[1].buf, b[2].buf, d, itemsize);
    }
    while (held)
        PyBuffer_Release(&b[--held]);
    return answer < 0 ? NULL : PyLong_FromLongLong(answer);
}

/* drained(seq, patient) -> 0 when the out-neighbours have read mixing seq, or an answer */
static PyObject *reader_drained(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t seq = count == 2 ? PyLong_AsUnsignedLongLong(args[0]) : 0;
    if (count != 2)
        PyErr_SetString(PyExc_TypeError, "drained takes two arguments");
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(drain((Reader *)self, seq, args[1] == Py_True));
}

/* ready(seq): whether the in-neighbours have published their rows of mixing seq */
static PyObject *reader_ready(PyObject *self, PyObject *number)
{
    Reader *r = (Reader *)self;
    uint64_t seq = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred())
        return NULL;
    const int64_t *ins = r->array[INS].buf;
    for (ptrdiff_t i = 0; i < r->nin; i++)
        if (!spin(&slot(r->node, ins[i], seq)->posted, seq, 0))
            Py_RETURN_FALSE;
    Py_RETURN_TRUE;
}

static PyMethodDef reader_methods[] = {
    {"post", (PyCFunction)(void (*)(void))reader_post, METH_FASTCALL, "Publish rows."},
    {"give_up", reader_give_up, METH_NOARGS, "Take part in a mixing without rows."},
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL, "Sum up (or copy) what the neighbours have published."},
    {"drained", (PyCFunction)(void (*)(void))reader_drained, METH_FASTCALL, "Wait until the neighbours have read this rank's rows."},
    {"ready", reader_ready, METH_O, "Whether the neighbours' rows are there."},
    {0},
};
static PyTypeObject ReaderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.runtime._shared.Reader",
    .tp_basicsize = sizeof(Reader),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "What one rank reads on its node in one phase; see stack.py.",
    .tp_new = reader_new,
    .tp_dealloc = reader_dealloc,
    .tp_traverse = reader_traverse,
    .tp_clear = reader_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Reader, call),
    .tp_methods = reader_methods,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_shared", "Rows in the shared memory of a node.", 0, NULL};

PyMODINIT_FUNC PyInit__shared(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made && (PyModule_AddObject(made, "GAVE_UP", PyLong_FromUnsignedLongLong(GAVE_UP)) || PyModule_AddIntMacro(made, SLOTS) || PyModule_AddIntMacro(made, BLOCKS) || PyModule_AddIntMacro(made, SMALL) || PyModule_AddIntMacro(made, LATE_POST)
                 || PyModule_AddIntMacro(made, LATE_DONE) || PyModule_AddIntMacro(made, OTHER_TAG) || PyModule_AddIntMacro(made, REFUSED)
                 || PyModule_AddType(made, &NodeType) || PyModule_AddType(made, &CountsType)
                 || PyModule_AddType(made, &ReaderType)))
        Py_CLEAR(made);
    return made;
}
