/* Weighted sums of rows: the arithmetic of every mixer, in one pass over memory.
 *
 *     out[i] = x_i + sum_j (w_ij x_j - v_ij x_i),
 *
 * the sum over the neighbours j in the order given.  Every product and every sum is rounded by itself (no fused
 * multiply-add: build with -ffp-contract=off), so that kernel.py gives the same bits where there is no compiler.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define VECTOR __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3", "fp-contract=off")))
#else
#define VECTOR
#endif

enum { COLUMNS = 512, NEAR = 64 };   /* columns at a time, which stay in the L1 cache; neighbours at a time */

/* One row: NAME adds COUNT neighbours to the sum in y; the first ones begin it, and the last ones add it to x. */
#define TERM(r, j) ((w[j]) * (r)[t] - (v[j]) * x[t])
#define DEFINE_ADD(NAME, TYPE, COUNT, SUM)                                                                               \
    VECTOR static void NAME(const TYPE *restrict x, const TYPE *const *rows, const TYPE *w, const TYPE *v, Py_ssize_t d, \
                            TYPE *restrict y, int first, int last)                                                       \
    {                                                                                                                    \
        const TYPE *restrict a = rows[0], *restrict b = rows[COUNT > 1 ? 1 : 0], *restrict c = rows[COUNT > 2 ? 2 : 0],  \
                   *restrict e = rows[COUNT > 2 ? 3 : 0];                                                                \
        (void)b, (void)c, (void)e;                                                                                       \
        if (first && last)                                                                                               \
            for (Py_ssize_t t = 0; t < d; t++)                                                                           \
                y[t] = x[t] + (SUM((TYPE)0 +));                                                                          \
        else if (first)                                                                                                  \
            for (Py_ssize_t t = 0; t < d; t++)                                                                           \
                y[t] = SUM((TYPE)0 +);                                                                                   \
        else if (last)                                                                                                   \
            for (Py_ssize_t t = 0; t < d; t++)                                                                           \
                y[t] = x[t] + (SUM(y[t] +));                                                                             \
        else                                                                                                             \
            for (Py_ssize_t t = 0; t < d; t++)                                                                           \
                y[t] = SUM(y[t] +);                                                                                      \
    }
#define ONE(begin) (begin TERM(a, 0))
#define TWO(begin) (ONE(begin) + TERM(b, 1))
#define FOUR(begin) ((TWO(begin) + TERM(c, 2)) + TERM(e, 3))

#define DEFINE_ROW(TYPE, T)                                                                                              \
    DEFINE_ADD(add1_##T, TYPE, 1, ONE)                                                                                   \
    DEFINE_ADD(add2_##T, TYPE, 2, TWO)                                                                                   \
    DEFINE_ADD(add4_##T, TYPE, 4, FOUR)                                                                                  \
    static void row_##T(const TYPE *x, const TYPE **rows, const TYPE *w, const TYPE *v, Py_ssize_t k, Py_ssize_t d,      \
                        TYPE *y, int begins, int ends)                                                                   \
    {                                                                                                                    \
        for (Py_ssize_t c = 0; c < d; c += COLUMNS) {                                                                    \
            Py_ssize_t some = d - c < COLUMNS ? d - c : COLUMNS;                                                         \
            for (Py_ssize_t j = 0; j < k;) {                                                                             \
                int count = k - j >= 4 ? 4 : k - j >= 2 ? 2 : 1;                                                         \
                const TYPE *at[4];                                                                                       \
                for (int i = 0; i < count; i++)                                                                          \
                    at[i] = rows[j + i] + c;                                                                             \
                (count == 4 ? add4_##T : count == 2 ? add2_##T : add1_##T)(                                              \
                    x + c, at, w + j, v + j, some, y + c, begins && j == 0, ends && j + count == k);                     \
                j += count;                                                                                              \
            }                                                                                                            \
        }                                                                                                                \
    }                                                                                                                    \
                                                                                                                         \
    /* Places below `near` are rows of `x`, the others rows of `halo`. */                                                \
    static void mix_##T(Py_ssize_t m, Py_ssize_t d, const int64_t *indptr, const int32_t *indices, const TYPE *w,        \
                        const TYPE *v, Py_ssize_t first, Py_ssize_t near, const TYPE *x, const TYPE *halo, TYPE *out)    \
    {                                                                                                                    \
        const TYPE *rows[NEAR];                                                                                          \
        for (Py_ssize_t i = 0; i < m; i++) {                                                                             \
            const TYPE *xi = x + (first + i) * d;                                                                        \
            int64_t begin = indptr[i], end = indptr[i + 1];                                                              \
            if (begin == end)                                                                                            \
                memcpy(out + i * d, xi, d * sizeof(TYPE));                                                               \
            for (int64_t from = begin; from < end; from += NEAR) {                                                       \
                Py_ssize_t k = end - from < NEAR ? end - from : NEAR;                                                    \
                for (Py_ssize_t j = 0; j < k; j++) {                                                                     \
                    Py_ssize_t place = indices[from + j];                                                                \
                    rows[j] = place < near ? x + place * d : halo + (place - near) * d;                                  \
                }                                                                                                        \
                row_##T(xi, rows, w + from, v + from, k, d, out + i * d, from == begin, from + k == end);                \
            }                                                                                                            \
        }                                                                                                                \
    }                                                                                                                    \
                                                                                                                         \
    /* Rows start..stop, whose neighbours lie `shifts` rows further on, all with the same weights. */                    \
    static void run_##T(Py_ssize_t start, Py_ssize_t stop, Py_ssize_t k, const int64_t *shifts, const TYPE *w,           \
                        Py_ssize_t d, const TYPE *x, TYPE *out)                                                          \
    {                                                                                                                    \
        const TYPE *rows[NEAR];                                                                                          \
        for (Py_ssize_t i = start; i < stop; i++) {                                                                      \
            if (k == 0)                                                                                                  \
                memcpy(out + i * d, x + i * d, d * sizeof(TYPE));                                                        \
            for (Py_ssize_t from = 0; from < k; from += NEAR) {                                                          \
                Py_ssize_t some = k - from < NEAR ? k - from : NEAR;                                                     \
                for (Py_ssize_t j = 0; j < some; j++)                                                                    \
                    rows[j] = x + (i + shifts[from + j]) * d;                                                            \
                row_##T(x + i * d, rows, w + from, w + from, some, d, out + i * d, from == 0, from + some == k);         \
            }                                                                                                            \
        }                                                                                                                \
    }
DEFINE_ROW(double, d)
DEFINE_ROW(float, f)

/* run(start, stop, shifts, weights, x, out): the rows start..stop of a matrix with one pattern, x and out of one shape. */
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
    Py_ssize_t size = b[1].itemsize, k = b[0].len / 8, d = rows ? b[3].len / rows / size : 0;
    int inside = start >= 0 && stop <= rows;
    for (Py_ssize_t j = 0; j < k && b[0].itemsize == 8; j++)
        inside = inside && start + ((int64_t *)b[0].buf)[j] >= 0 && stop + ((int64_t *)b[0].buf)[j] <= rows;
    if (!inside || b[0].itemsize != 8 || (size != 8 && size != 4) || b[1].len != k * size || b[2].len != b[3].len
        || b[2].itemsize != size || b[3].itemsize != size) {
        PyErr_SetString(PyExc_ValueError, "the buffers of run do not fit together");
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

/* mix(indptr, indices, w, v, first, near, x, halo, out): C-contiguous buffers, checked by the caller (kernel.py). */
static PyObject *mix(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 9) {
        PyErr_SetString(PyExc_TypeError, "mix takes nine arguments");
        return NULL;
    }
    Py_ssize_t first = PyLong_AsSsize_t(args[4]), near = PyLong_AsSsize_t(args[5]);
    if (PyErr_Occurred())
        return NULL;
    static const int place[7] = {0, 1, 2, 3, 6, 7, 8};
    Py_buffer b[7];
    int held = 0;
    for (; held < 7; held++)
        if (PyObject_GetBuffer(args[place[held]], &b[held], held == 6 ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS))
            goto release;
    Py_ssize_t m = b[0].len / 8 - 1, size = b[2].itemsize, d = m > 0 ? b[6].len / m / size : 0;
    if (b[0].itemsize != 8 || b[1].itemsize != 4 || (size != 8 && size != 4) || b[4].itemsize != size || b[6].itemsize != size
        || m < 0 || b[3].itemsize != size || b[3].len != b[2].len || b[6].len != m * d * size || b[4].len < near * d * size) {
        PyErr_SetString(PyExc_ValueError, "the buffers of mix do not fit together");
        goto release;
    }
    Py_BEGIN_ALLOW_THREADS
    if (size == 8)
        mix_d(m, d, b[0].buf, b[1].buf, b[2].buf, b[3].buf, first, near, b[4].buf, b[5].buf, b[6].buf);
    else
        mix_f(m, d, b[0].buf, b[1].buf, b[2].buf, b[3].buf, first, near, b[4].buf, b[5].buf, b[6].buf);
    Py_END_ALLOW_THREADS
release:
    for (int i = 0; i < held; i++)
        PyBuffer_Release(&b[i]);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"mix", (PyCFunction)(void (*)(void))mix, METH_FASTCALL, "Weighted sums of rows; see kernel.py."},
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, "The same for rows with one pattern; see kernel.py."},
    {0},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel", "Weighted sums of rows in one pass over memory.", 0, methods};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModule_Create(&module);
}
