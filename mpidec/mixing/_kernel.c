/* Weighted sums of rows: the arithmetic of every mixer, in one pass over memory.
 *
 *     out[i] = x_i + sum_j w_ij (x_j - x_i)        where row i of W sums to one,
 *     out[i] = sum_j w_ij x_j                      elsewhere,
 *
 * the sum over j in the order given; the first one leaves out j = i.  Every product and every sum is rounded by itself (no fused
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

enum { COLUMNS = 512 };                                  /* columns at a time: x, out and four neighbours stay in the L1 cache */

/* One row, for float and double: FORM(a, w) is what neighbour a adds with weight w. */
#define DEFINE_ROW(NAME, TYPE, FORM)                                                                                     \
    VECTOR static void NAME(const TYPE *restrict x, const TYPE *const *rows, const TYPE *w, Py_ssize_t k, Py_ssize_t d,  \
                            TYPE *restrict y)                                                                            \
    {                                                                                                                    \
        for (Py_ssize_t c = 0; c < d; c += COLUMNS) {                                                                    \
            Py_ssize_t e = d - c < COLUMNS ? d : c + COLUMNS, j = 0;                                                     \
            for (; j + 4 <= k; j += 4) {                                                                                 \
                const TYPE *restrict p = rows[j], *restrict q = rows[j + 1], *restrict r = rows[j + 2],                  \
                           *restrict s = rows[j + 3];                                                                    \
                const TYPE wp = w[j], wq = w[j + 1], wr = w[j + 2], ws = w[j + 3];                                       \
                for (Py_ssize_t t = c; t < e; t++) {                                                                     \
                    TYPE sum = y[t] + FORM(p[t], wp);                                                                    \
                    sum = sum + FORM(q[t], wq);                                                                          \
                    sum = sum + FORM(r[t], wr);                                                                          \
                    y[t] = sum + FORM(s[t], ws);                                                                         \
                }                                                                                                        \
            }                                                                                                            \
            for (; j < k; j++) {                                                                                         \
                const TYPE *restrict p = rows[j];                                                                        \
                const TYPE wp = w[j];                                                                                    \
                for (Py_ssize_t t = c; t < e; t++)                                                                       \
                    y[t] = y[t] + FORM(p[t], wp);                                                                        \
            }                                                                                                            \
        }                                                                                                                \
    }
#define APART(a, w) ((w) * ((a) - x[t]))
#define PLAIN(a, w) ((w) * (a))
DEFINE_ROW(apart_d, double, APART)
DEFINE_ROW(plain_d, double, PLAIN)
DEFINE_ROW(apart_f, float, APART)
DEFINE_ROW(plain_f, float, PLAIN)

enum { NEAR = 64 };                                      /* neighbours whose addresses are gathered at a time */

/* Rows place < near lie in `x`, the others in `halo`. */
#define DEFINE_MIX(NAME, TYPE, APART_ROW, PLAIN_ROW)                                                                     \
    static void NAME(Py_ssize_t m, Py_ssize_t d, const int64_t *indptr, const int32_t *indices, const TYPE *weights,     \
                     const uint8_t *unit, Py_ssize_t first, Py_ssize_t near, const TYPE *x, const TYPE *halo, TYPE *out) \
    {                                                                                                                    \
        const TYPE *rows[NEAR];                                                                                          \
        TYPE w[NEAR];                                                                                                    \
        for (Py_ssize_t i = 0; i < m; i++) {                                                                             \
            const TYPE *xi = x + (first + i) * d;                                                                        \
            TYPE *y = out + i * d;                                                                                       \
            if (unit[i])                                                                                                 \
                memcpy(y, xi, d * sizeof(TYPE));                                                                         \
            else                                                                                                         \
                memset(y, 0, d * sizeof(TYPE));                                                                          \
            for (int64_t j = indptr[i]; j < indptr[i + 1];) {                                                            \
                Py_ssize_t k = 0;                                                                                        \
                for (; k < NEAR && j < indptr[i + 1]; j++) {                                                             \
                    Py_ssize_t place = indices[j];                                                                       \
                    if (unit[i] && place == first + i)                                                                   \
                        continue;                                                                                        \
                    w[k] = weights[j];                                                                                   \
                    rows[k++] = place < near ? x + place * d : halo + (place - near) * d;                                \
                }                                                                                                        \
                (unit[i] ? APART_ROW : PLAIN_ROW)(xi, rows, w, k, d, y);                                                 \
            }                                                                                                            \
        }                                                                                                                \
    }
DEFINE_MIX(mix_d, double, apart_d, plain_d)
DEFINE_MIX(mix_f, float, apart_f, plain_f)

/* Rows start..stop, whose neighbours lie `shifts` rows further on, all with the same weights. */
#define DEFINE_RUN(NAME, TYPE, APART_ROW)                                                                                \
    static void NAME(Py_ssize_t start, Py_ssize_t stop, Py_ssize_t k, const int64_t *shifts, const TYPE *weights,        \
                     Py_ssize_t d, const TYPE *x, TYPE *out)                                                             \
    {                                                                                                                    \
        const TYPE *rows[NEAR];                                                                                          \
        for (Py_ssize_t i = start; i < stop; i++) {                                                                      \
            memcpy(out + i * d, x + i * d, d * sizeof(TYPE));                                                            \
            for (Py_ssize_t from = 0; from < k; from += NEAR) {                                                          \
                Py_ssize_t some = k - from < NEAR ? k - from : NEAR;                                                     \
                for (Py_ssize_t j = 0; j < some; j++)                                                                    \
                    rows[j] = x + (i + shifts[from + j]) * d;                                                            \
                APART_ROW(x + i * d, rows, weights + from, some, d, out + i * d);                                        \
            }                                                                                                            \
        }                                                                                                                \
    }
DEFINE_RUN(run_d, double, apart_d)
DEFINE_RUN(run_f, float, apart_f)

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

/* mix(indptr, indices, weights, unit, first, near, x, halo, out): C-contiguous buffers, checked by the caller (kernel.py). */
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
    Py_ssize_t m = b[3].len, size = b[2].itemsize, d = m ? b[6].len / m / size : 0;
    if (b[0].itemsize != 8 || b[1].itemsize != 4 || (size != 8 && size != 4) || b[4].itemsize != size || b[6].itemsize != size
        || b[0].len != 8 * (m + 1) || b[6].len != m * d * size || b[4].len < near * d * size) {
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
