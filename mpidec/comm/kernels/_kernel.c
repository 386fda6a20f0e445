/* Weighted sums of the rows of one stack; see _rows.h for the arithmetic, and weighted.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
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

/* The terms of dense rows (m, n), without those of weight 0 and the diagonal, which begins in column `first`: their number, or -1
   if `tolerance` is >= 0 and a row does not sum to one, a weight is not >= 0, or there is one where `agents` has no entry. */
static Py_ssize_t terms(ptrdiff_t m, ptrdiff_t n, ptrdiff_t first, double tolerance, const double *rows, const int64_t *begin,
                        const int64_t *agents, const int32_t *places, int64_t *indptr, int32_t *indices, double *w)
{
    Py_ssize_t count = 0;
    for (ptrdiff_t i = 0; i < m; i++) {
        double sum = 0;
        int64_t e = begin ? begin[i] : 0;
        indptr[i] = count;
        for (ptrdiff_t j = 0; j < n; j++) {
            double a = rows[i * n + j];
            if (a == 0)
                continue;
            if (tolerance >= 0 && !(a > 0))
                return -1;
            sum += a;
            if (j == first + i)
                continue;
            if (begin) {
                while (e < begin[i + 1] && agents[e] < j)
                    e++;
                if (e == begin[i + 1] || agents[e] != j)
                    return -1;
            }
            indices[count] = begin ? places[e] : (int32_t)j;
            w[count++] = a;
        }
        if (tolerance >= 0 && !(fabs(sum - 1) <= tolerance))
            return -1;
    }
    indptr[m] = count;
    return count;
}

/* dense(rows, first, tolerance, begin, agents, places, indptr, indices, w): C-contiguous buffers, of which begin may be empty; the
   caller (weighted.py) makes them. */
static PyObject *dense(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 9) {
        PyErr_SetString(PyExc_TypeError, "dense takes nine arguments");
        return NULL;
    }
    Py_ssize_t first = PyLong_AsSsize_t(args[1]), found = -1;
    double tolerance = PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred())
        return NULL;
    static const int place[7] = {0, 3, 4, 5, 6, 7, 8};
    Py_buffer b[7];
    int held = 0;
    for (; held < 7; held++)
        if (PyObject_GetBuffer(args[place[held]], &b[held], held > 3 ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS))
            goto release;
    Py_ssize_t m = b[4].len / 8 - 1, n = m > 0 ? b[0].len / 8 / m : 0;
    if (m < 0 || b[0].len != 8 * m * n || (b[1].len && b[1].len != b[4].len) || b[2].len != 2 * b[3].len || b[6].len != 2 * b[5].len
        || b[6].len < (b[1].len ? b[2].len : b[0].len)) {
        PyErr_SetString(PyExc_ValueError, "dense: the sizes of the buffers do not match");
        goto release;
    }
    found = terms(m, n, first, tolerance, b[0].buf, b[1].len ? b[1].buf : NULL, b[2].buf, b[3].buf, b[4].buf, b[5].buf, b[6].buf);
release:
    for (int i = 0; i < held; i++)
        PyBuffer_Release(&b[i]);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(found);
}

static PyMethodDef methods[] = {
    {"dense", (PyCFunction)(void (*)(void))dense, METH_FASTCALL, "Terms of the rows of a dense matrix; see weighted.py."},
    {"descend", (PyCFunction)(void (*)(void))descend, METH_FASTCALL, "a G + X in one pass over memory."},
    {"mix", (PyCFunction)(void (*)(void))mix, METH_FASTCALL, "Weighted sums of rows; see weighted.py."},
    {"watch", watch, METH_O, "Look for sums that are not finite; whether there were some."},
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, "Weighted sums of rows with one pattern; see weighted.py."},
    {0},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel", "Weighted sums of rows in one pass over memory.", 0, methods};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModule_Create(&module);
}
