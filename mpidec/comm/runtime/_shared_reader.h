/* Shared rows: the calls of a Reader whose weights are fixed. */
#ifndef MPIDEC_SHARED_READER_H
#define MPIDEC_SHARED_READER_H
#include "_shared_node.h"

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

/* reader(X, out[, shape, note]): a whole mixing; None, and nothing has happened, if the arrays are not of the common kind, there is
 * no memory for them, or another thread is in.  `shape` is a fingerprint of what rows were before they were flattened, and the note
 * says it in words, as for `post`. */
static PyObject *reader_call(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    Reader *r = (Reader *)self;
    Node *node = r->node;
    Py_buffer x, y;
    Py_ssize_t given = PyVectorcall_NARGS(count);
    if ((given != 2 && given != 4) || names || !r->array[W].buf) {
        PyErr_SetString(PyExc_TypeError, "a Reader that sums takes rows, a target, and perhaps a fingerprint of their shape and a note");
        return NULL;
    }
    uint64_t shape = given == 4 ? PyLong_AsUnsignedLongLong(args[2]) : 0;
    if (given == 4 && PyErr_Occurred())
        return NULL;
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
    uint64_t seq = 0, tag = tag_of(r, x.shape[1], x.itemsize, shape);
    size_t bytes = 0;
    Edge *table = shape ? new_table(0, args[3], &bytes) : NULL;
    int in_place = shape && !table ? -1 : publish(r, args[0], x.buf, x.len, table, bytes, tag, &seq);
    free(table);
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
#endif
