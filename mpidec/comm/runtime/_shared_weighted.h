/* Shared rows: the calls of a Reader with weights of their own. */
#ifndef MPIDEC_SHARED_WEIGHTED_H
#define MPIDEC_SHARED_WEIGHTED_H
#include "_shared_reader.h"

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

/* What rank `of` has about another one in its table of all the others; NULL if that is another table. */
static const Edge *edge_in_all(const Node *node, int64_t of, int64_t other, uint64_t seq)
{
    const Edge *table = table_of(node, of, seq), *edge = table + 1 + other - (other > of);
    return table && table[0].rank == node->size - 1 && edge->rank == other ? edge : NULL;
}

/* The first two of all ranks whose lists do not agree: 2 * (size * sender + receiver), plus 1 if it does send; or -1.  The `ins` are all
 * other ranks, so that all find the same. */
static Py_ssize_t first_apart(const Node *node, uint64_t seq)
{
    for (int64_t i = 0; i < node->size; i++)
        for (int64_t j = 0; j < node->size; j++) {
            const Edge *to = i == j ? NULL : edge_in_all(node, i, j, seq), *from = i == j ? NULL : edge_in_all(node, j, i, seq);
            int sends = to && to->weight == to->weight, takes = from && from->takes == from->takes;
            if (sends != takes)
                return 2 * (node->size * i + j) + sends;
        }
    return -1;
}

/* Sum up what the others have published: 0, or -1 with an exception.  Appends to the list `taken` (if not NULL) the place of each
 * rank taken, and what it multiplied by; sets `mismatch` to 8 * i (plus 4 if ins[i] finds it, too) plus 0: ins[i] does not send what is expected here, 1: it sends what
 * is not, 2: it does not expect what is sent there, 3: it expects what is not.  With `checked` 2, to the number of `first_apart`. */
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
    if (checked == 2)
        *mismatch = first_apart(node, seq);
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
        int sees = checked && (given || asked);          /* that rank compares, too */
        if (given != takes && (checked || (takes && weights)))
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
 * len(ins) times the bytes of x, and gets the arrays as they are.  checked: 1 if the lists of
 * both sides must agree, 2 if those of all ranks must, which are all of `ins`.
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
    int checked = (int)PyLong_AsLong(args[6]), failed = 1;
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
    int checked = (int)PyLong_AsLong(args[6]);
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
#endif
