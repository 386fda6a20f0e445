/* Weighted sums of the rows of one stack; see _rows.h for the arithmetic, and weighted.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdlib.h>
#include "_rows.h"

#define DEFINE_SUMS(TYPE, T)                                                                                             \
    /* Indices below `local` refer to rows of `x`, the others to rows of `halo`. */                                      \
    static void mix_##T(ptrdiff_t m, ptrdiff_t d, const int64_t *indptr, const int32_t *indices, const TYPE *w,          \
                        const TYPE *v, ptrdiff_t first, ptrdiff_t local, const TYPE *x, const TYPE *halo, TYPE *out)     \
    {                                                                                                                    \
        const TYPE *rows[NEAR];                                                                                          \
        for (ptrdiff_t i = 0; i < m; i++) {                                                                              \
            const TYPE *xi = x + (first + i) * d;                                                                        \
            int64_t begin = indptr[i], end = indptr[i + 1];                                                              \
            if (begin == end)                                                                                            \
                memcpy(out + i * d, xi, d * sizeof(TYPE));                                                               \
            for (int64_t from = begin; from < end; from += NEAR) {                                                       \
                ptrdiff_t k = end - from < NEAR ? end - from : NEAR;                                                     \
                for (ptrdiff_t j = 0; j < k; j++) {                                                                      \
                    ptrdiff_t place = indices[from + j];                                                                 \
                    rows[j] = place < local ? x + place * d : halo + (place - local) * d;                                \
                }                                                                                                        \
                row_##T(xi, rows, w + from, v + from, k, d, out + i * d, from == begin, from + k == end);                \
            }                                                                                                            \
        }                                                                                                                \
    }                                                                                                                    \
                                                                                                                         \
    /* Rows start, ..., stop - 1; the neighbours of row i are i + shifts, with the same weights in all rows. */          \
    static void run_##T(ptrdiff_t start, ptrdiff_t stop, ptrdiff_t k, const int64_t *shifts, const TYPE *w,              \
                        ptrdiff_t d, const TYPE *x, TYPE *out)                                                           \
    {                                                                                                                    \
        const TYPE *rows[NEAR];                                                                                          \
        for (ptrdiff_t i = start; i < stop; i++) {                                                                       \
            if (k == 0)                                                                                                  \
                memcpy(out + i * d, x + i * d, d * sizeof(TYPE));                                                        \
            for (ptrdiff_t from = 0; from < k; from += NEAR) {                                                           \
                ptrdiff_t terms = k - from < NEAR ? k - from : NEAR;                                                     \
                for (ptrdiff_t j = 0; j < terms; j++)                                                                    \
                    rows[j] = x + (i + shifts[from + j]) * d;                                                            \
                row_##T(x + i * d, rows, w + from, w + from, terms, d, out + i * d, from == 0, from + terms == k);       \
            }                                                                                                            \
        }                                                                                                                \
    }
DEFINE_SUMS(double, d)
DEFINE_SUMS(float, f)

/* run(start, stop, shifts, weights, x, out): rows start, ..., stop - 1, which have one pattern; x and out have the same shape. */
static PyObject *run(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 6) {
        PyErr_SetString(PyExc_TypeError, "run takes six arguments");
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(args[0]), stop = PyLong_AsSsize_t(args[1]), rows = PyObject_Length(args[5]);
    if (PyErr_Occurred())
        return NULL;
    Py_buffer b[4];
    int held = 0;
    for (; held < 4; held++)
        if (PyObject_GetBuffer(args[held + 2], &b[held], held == 3 ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS))
            goto release;
    Py_ssize_t size = b[1].itemsize, k = b[0].len / 8, d = rows && size ? b[3].len / rows / size : 0;
    int inside = start >= 0 && stop <= rows;
    for (Py_ssize_t j = 0; j < k && b[0].itemsize == 8; j++)
        inside = inside && start + ((int64_t *)b[0].buf)[j] >= 0 && stop + ((int64_t *)b[0].buf)[j] <= rows;
    if (!inside || b[0].itemsize != 8 || (size != 8 && size != 4) || b[1].len != k * size || b[2].len != b[3].len
        || b[2].itemsize != size || b[3].itemsize != size) {
        PyErr_SetString(PyExc_ValueError, "run: the sizes of the buffers do not match");
        goto release;
    }
    Py_BEGIN_ALLOW_THREADS
    if (size == 8)
        run_d(start, stop, k, b[0].buf, b[1].buf, d, b[2].buf, b[3].buf);
    else
        run_f(start, stop, k, b[0].buf, b[1].buf, d, b[2].buf, b[3].buf);
    Py_END_ALLOW_THREADS
release:
    for (int i = 0; i < held; i++)
        PyBuffer_Release(&b[i]);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* mix(indptr, indices, w, v, first, local, x, halo, out): C-contiguous buffers; the caller (weighted.py) checks the indices. */
static PyObject *mix(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 9) {
        PyErr_SetString(PyExc_TypeError, "mix takes nine arguments");
        return NULL;
    }
    Py_ssize_t first = PyLong_AsSsize_t(args[4]), local = PyLong_AsSsize_t(args[5]);
    if (PyErr_Occurred())
        return NULL;
    static const int place[7] = {0, 1, 2, 3, 6, 7, 8};
    Py_buffer b[7];
    int held = 0;
    for (; held < 7; held++)
        if (PyObject_GetBuffer(args[place[held]], &b[held], held == 6 ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS))
            goto release;
    Py_ssize_t m = b[0].len / 8 - 1, size = b[2].itemsize, d = m > 0 && size ? b[6].len / m / size : 0;
    if (b[0].itemsize != 8 || b[1].itemsize != 4 || (size != 8 && size != 4) || b[4].itemsize != size || b[6].itemsize != size
        || m < 0 || b[3].itemsize != size || b[3].len != b[2].len || b[6].len != m * d * size || b[4].len < local * d * size) {
        PyErr_SetString(PyExc_ValueError, "mix: the sizes of the buffers do not match");
        goto release;
    }
    Py_BEGIN_ALLOW_THREADS
    if (size == 8)
        mix_d(m, d, b[0].buf, b[1].buf, b[2].buf, b[3].buf, first, local, b[4].buf, b[5].buf, b[6].buf);
    else
        mix_f(m, d, b[0].buf, b[1].buf, b[2].buf, b[3].buf, first, local, b[4].buf, b[5].buf, b[6].buf);
    Py_END_ALLOW_THREADS
release:
    for (int i = 0; i < held; i++)
        PyBuffer_Release(&b[i]);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

#define DEFINE_DESCEND(TYPE, T)                                                                                          \
    VECTOR static void descend_##T(TYPE a, const TYPE *restrict g, const TYPE *restrict x, ptrdiff_t d, TYPE *restrict y) \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < d; t++)                                                                                \
            y[t] = a * g[t] + x[t];                                                                                      \
    }
DEFINE_DESCEND(double, d)
DEFINE_DESCEND(float, f)

/* descend(a, G, X, out): out = a G + X, of C-contiguous arrays of one size and dtype, float64 or float32. */
static PyObject *descend(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "descend takes four arguments");
        return NULL;
    }
    double a = PyFloat_AsDouble(args[0]);
    if (PyErr_Occurred())
        return NULL;
    Py_buffer b[3];
    int held = 0;
    for (; held < 3; held++)
        if (PyObject_GetBuffer(args[held + 1], &b[held], held == 2 ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS))
            goto release;
    Py_ssize_t size = b[2].itemsize;
    if ((size != 8 && size != 4) || b[0].itemsize != size || b[1].itemsize != size || b[0].len != b[2].len || b[1].len != b[2].len) {
        PyErr_SetString(PyExc_ValueError, "the buffers of descend do not fit together");
        goto release;
    }
    Py_BEGIN_ALLOW_THREADS
    if (size == 8)
        descend_d(a, b[0].buf, b[1].buf, b[2].len / 8, b[2].buf);
    else
        descend_f((float)a, b[0].buf, b[1].buf, b[2].len / 4, b[2].buf);
    Py_END_ALLOW_THREADS
release:
    for (int i = 0; i < held; i++)
        PyBuffer_Release(&b[i]);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* Sums along a binary tree; see pairwise.py.  Columns at a time: the sums of all levels stay in the L2 cache. */
enum { BLOCK = 8, WIDE = 1024, LEVELS = 60 };
#define PAIR(i) (x[(i) * d + t] + x[((i) + 1) * d + t])
#define QUAD(i) (PAIR(i) + PAIR((i) + 2))
#define DEFINE_TREE(TYPE, T)                                                                                             \
    VECTOR static void block_##T(const TYPE *restrict x, ptrdiff_t d, ptrdiff_t width, TYPE *restrict y)                 \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < width; t++)                                                                            \
            y[t] = QUAD(0) + QUAD(4);                                                                                    \
    }                                                                                                                    \
    VECTOR static void join_##T(const TYPE *restrict left, ptrdiff_t width, TYPE *restrict y)                            \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < width; t++)                                                                            \
            y[t] = left[t] + y[t];                                                                                       \
    }                                                                                                                    \
    /* The last rows, fewer than BLOCK. */                                                                               \
    static void last_##T(ptrdiff_t rows, const TYPE *x, ptrdiff_t d, ptrdiff_t width, TYPE *y)                           \
    {                                                                                                                    \
        ptrdiff_t two = rows & 2, four = rows & 4;                                                                       \
        for (ptrdiff_t t = 0; t < width; t++) {                                                                          \
            TYPE sum = rows & 1 ? x[(rows - 1) * d + t] : two ? PAIR(four) : QUAD(0);                                    \
            if (two && rows & 1)                                                                                         \
                sum = PAIR(four) + sum;                                                                                  \
            y[t] = four && rows & 3 ? QUAD(0) + sum : sum;                                                               \
        }                                                                                                                \
    }                                                                                                                    \
    /* `room` has `width` numbers for each level above the blocks. */                                                    \
    static void tree_##T(ptrdiff_t m, const TYPE *x, ptrdiff_t d, ptrdiff_t width, TYPE *room, TYPE *out)                \
    {                                                                                                                    \
        ptrdiff_t last = (m - 1) / BLOCK;                                                                                \
        for (ptrdiff_t b = 0; b < last; b++) {                                                                           \
            ptrdiff_t level = 0;                                                                                         \
            while (b >> level & 1)                                                                                       \
                level++;                                                                                                 \
            TYPE *y = room + level * width;                                                                              \
            block_##T(x + b * BLOCK * d, d, width, y);                                                                   \
            for (ptrdiff_t l = 0; l < level; l++)                                                                        \
                join_##T(room + l * width, width, y);                                                                    \
        }                                                                                                                \
        if (m - last * BLOCK == BLOCK)                                                                                   \
            block_##T(x + last * BLOCK * d, d, width, out);                                                              \
        else                                                                                                             \
            last_##T(m - last * BLOCK, x + last * BLOCK * d, d, width, out);                                             \
        for (ptrdiff_t l = 0; last >> l; l++)                                                                            \
            if (last >> l & 1)                                                                                           \
                join_##T(room + l * width, width, out);                                                                  \
    }                                                                                                                    \
    static int tree_sum_##T(ptrdiff_t m, ptrdiff_t d, const TYPE *x, TYPE *out)                                          \
    {                                                                                                                    \
        ptrdiff_t most = d < WIDE ? d : WIDE;                                                                            \
        TYPE *room = malloc(LEVELS * most * sizeof(TYPE));                                                               \
        for (ptrdiff_t c = 0; room && c < d; c += WIDE)                                                                  \
            tree_##T(m, x + c, d, d - c < WIDE ? d - c : WIDE, room, out + c);                                           \
        free(room);                                                                                                      \
        return room != NULL;                                                                                             \
    }
DEFINE_TREE(double, d)
DEFINE_TREE(float, f)

/* tree_sum(X, out): C-contiguous buffers of float64 or float32, (m, d) with m > 0 and (d). */
static PyObject *tree_sum(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "tree_sum takes two arguments");
        return NULL;
    }
    Py_buffer x, out;
    if (PyObject_GetBuffer(args[0], &x, PyBUF_C_CONTIGUOUS))
        return NULL;
    if (PyObject_GetBuffer(args[1], &out, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)) {
        PyBuffer_Release(&x);
        return NULL;
    }
    Py_ssize_t size = x.itemsize, d = out.len / size, done = 1;
    if ((size != 8 && size != 4) || out.itemsize != size || (d && (!x.len || x.len % out.len)))
        PyErr_SetString(PyExc_ValueError, "tree_sum: the sizes of the buffers do not match");
    else if (d) {
        Py_BEGIN_ALLOW_THREADS
        if (size == 8)
            done = tree_sum_d(x.len / out.len, d, x.buf, out.buf);
        else
            done = tree_sum_f(x.len / out.len, d, x.buf, out.buf);
        Py_END_ALLOW_THREADS
        if (!done)
            PyErr_NoMemory();
    }
    PyBuffer_Release(&x);
    PyBuffer_Release(&out);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

enum { ROWS = 1, COLUMN_SUMS = 2, POSITIVE = 4 };   /* checks, as in weighted.py */
typedef struct {
    ptrdiff_t m, n, first;
    int checks;
    double tolerance;
    const int64_t *begin, *agents;   /* the edges, or NULL for all */
    const int32_t *places;
} Dense;

/* Append the columns begin, ..., end - 1 in which a row is not 0, without branches, which the processor would have to guess. */
static int used_d(double a)
{
    uint64_t bits;
    memcpy(&bits, &a, sizeof bits);
    return bits << 1 != 0;           /* but for the sign */
}
static int used_b(char a)
{
    return a != 0;
}
#define DEFINE_COLUMNS(TYPE, T)                                                                                          \
    static ptrdiff_t columns_##T(const TYPE *row, ptrdiff_t begin, ptrdiff_t end, int32_t *indices, ptrdiff_t count)     \
    {                                                                                                                    \
        for (ptrdiff_t j = begin; j < end; j++) {                                                                        \
            indices[count] = (int32_t)j;                                                                                 \
            count += used_##T(row[j]);                                                                                   \
        }                                                                                                                \
        return count;                                                                                                    \
    }
DEFINE_COLUMNS(double, d)
DEFINE_COLUMNS(char, b)

/* Add a row to the sums of the columns: how many weights are not 0, and whether one is negative. */
VECTOR static int64_t add_row(ptrdiff_t n, const double *restrict row, double *restrict sums, int64_t *negative)
{
    int64_t used = 0, below = 0;
    for (ptrdiff_t j = 0; j < n; j++) {
        sums[j] += row[j];
        used += row[j] != 0;
        below |= row[j] < 0;
    }
    *negative |= below;
    return used;
}

/* The terms of dense rows (m, n), without those of weight 0 and the diagonal, which begins in column `first`: their number, or -1
   if one of the checks fails or a weight is beside the edges. */
static Py_ssize_t terms(const Dense *of, const double *rows, double *sums, int64_t *indptr, int32_t *indices, double *w)
{
    ptrdiff_t n = of->n, count = 0;
    int64_t negative = 0;
    for (ptrdiff_t i = 0; i < of->m; i++) {
        const double *row = rows + i * n;
        ptrdiff_t own = of->first + i, from = indptr[i] = count;
        if (of->begin)
            for (int64_t e = of->begin[i]; e < of->begin[i + 1]; e++) {
                indices[count] = of->places[e];
                count += (w[count] = row[of->agents[e]]) != 0;
            }
        else {
            count = columns_d(row, 0, own, indices, count);
            count = columns_d(row, own + 1, n, indices, count);
            for (ptrdiff_t e = from; e < count; e++)
                w[e] = row[indices[e]];
        }
        if (!of->checks)
            continue;
        int64_t used = add_row(n, row, sums, &negative);
        double sum = row[own];
        for (ptrdiff_t e = from; e < count; e++)
            sum += w[e];
        if ((of->begin && used != count - from + (row[own] != 0)) || (of->checks & ROWS && !(fabs(sum - 1) <= of->tolerance)))
            return -1;
    }
    indptr[of->m] = count;
    for (ptrdiff_t j = 0; j < n && of->checks & COLUMN_SUMS; j++)
        if (!(fabs(sums[j] - 1) <= of->tolerance))
            return -1;
    return negative && of->checks & POSITIVE ? -1 : count;
}

/* dense(rows, first, tolerance, checks, edges, indptr, indices, w): C-contiguous buffers, of which the last three are written;
   `edges` is a tuple (begin, agents, places) or None.  The caller (weighted.py) makes them. */
static PyObject *dense(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 8) {
        PyErr_SetString(PyExc_TypeError, "dense takes eight arguments");
        return NULL;
    }
    Dense of = {.first = PyLong_AsSsize_t(args[1]), .tolerance = PyFloat_AsDouble(args[2]), .checks = (int)PyLong_AsLong(args[3])};
    PyObject *arrays[7] = {args[0], args[5], args[6], args[7]};
    int given = args[4] == Py_None ? 4 : 7, held = 0;
    if (given == 7 && !PyArg_ParseTuple(args[4], "OOO", arrays + 4, arrays + 5, arrays + 6))
        return NULL;
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t found = -1;
    double *sums = NULL;
    Py_buffer b[7] = {0};
    for (; held < given; held++)
        if (PyObject_GetBuffer(arrays[held], &b[held], held && held < 4 ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS))
            goto release;
    of.m = b[1].len / 8 - 1, of.n = of.m > 0 ? b[0].len / 8 / of.m : 0;
    if (of.m < 0 || b[0].len != 8 * of.m * of.n || b[3].len != 2 * b[2].len || of.first < 0 || (of.m && of.first + of.m > of.n)
        || b[3].len < (given == 7 ? b[5].len : b[0].len) || (given == 7 && (b[4].len != b[1].len || b[5].len != 2 * b[6].len))) {
        PyErr_SetString(PyExc_ValueError, "dense: the sizes of the buffers do not match");
        goto release;
    }
    of.begin = b[4].buf, of.agents = b[5].buf, of.places = b[6].buf;
    sums = PyMem_Calloc(of.n + 1, sizeof *sums);
    if (sums)
        found = terms(&of, b[0].buf, sums, b[1].buf, b[2].buf, b[3].buf);
    else
        PyErr_NoMemory();
    PyMem_Free(sums);
release:
    for (int i = 0; i < held; i++)
        PyBuffer_Release(&b[i]);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(found);
}

/* The terms of an undirected graph, bytes (n, n), without its diagonal: W_ij = gamma / (1 + max(d_i, d_j)).  Their number, or -1 if
   the graph is directed. */
static Py_ssize_t by_degree(ptrdiff_t n, double gamma, const char *edges, int64_t *indptr, int32_t *indices, double *w)
{
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        indptr[i] = count;
        count = columns_b(edges + i * n, 0, i, indices, count);
        count = columns_b(edges + i * n, i + 1, n, indices, count);
    }
    indptr[n] = count;
    for (ptrdiff_t i = 0; i < n; i++)
        for (int64_t e = indptr[i], mine = indptr[i + 1] - e; e < indptr[i + 1]; e++) {
            ptrdiff_t j = indices[e];
            int64_t theirs = indptr[j + 1] - indptr[j];
            if (!edges[j * n + i])
                return -1;
            w[e] = gamma / (double)(1 + (mine > theirs ? mine : theirs));
        }
    return count;
}

/* metropolis(edges, gamma, indptr, indices, w): C-contiguous buffers, of which the last three are written. */
static PyObject *metropolis(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "metropolis takes five arguments");
        return NULL;
    }
    double gamma = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred())
        return NULL;
    static const int place[4] = {0, 2, 3, 4};
    Py_ssize_t found = -1;
    Py_buffer b[4];
    int held = 0;
    for (; held < 4; held++)
        if (PyObject_GetBuffer(args[place[held]], &b[held], held ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS))
            goto release;
    Py_ssize_t n = b[1].len / 8 - 1;
    if (n < 0 || b[0].len != n * n || b[2].len != 4 * n * n || b[3].len != 8 * n * n)
        PyErr_SetString(PyExc_ValueError, "metropolis: the sizes of the buffers do not match");
    else
        found = by_degree(n, gamma, b[0].buf, b[1].buf, b[2].buf, b[3].buf);
release:
    for (int i = 0; i < held; i++)
        PyBuffer_Release(&b[i]);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(found);
}

static PyMethodDef methods[] = {
    {"dense", (PyCFunction)(void (*)(void))dense, METH_FASTCALL, "Terms of the rows of a dense matrix; see weighted.py."},
    {"descend", (PyCFunction)(void (*)(void))descend, METH_FASTCALL, "a G + X in one pass over memory."},
    {"metropolis", (PyCFunction)(void (*)(void))metropolis, METH_FASTCALL, "Terms of a graph by its degrees; see weighted.py."},
    {"mix", (PyCFunction)(void (*)(void))mix, METH_FASTCALL, "Weighted sums of rows; see weighted.py."},
    {"tree_sum", (PyCFunction)(void (*)(void))tree_sum, METH_FASTCALL, "Sum of rows along a binary tree; see pairwise.py."},
    {"watch", watch, METH_O, "Look for sums that are not finite; whether there were some."},
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, "Weighted sums of rows with one pattern; see weighted.py."},
    {0},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel", "Weighted sums of rows in one pass over memory.", 0, methods};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModule_Create(&module);
}
