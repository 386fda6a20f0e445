/* Weighted sums of rows, in one pass over memory: the arithmetic of every mixer, used by _kernel.c and _shared.c.
 *
 *     out[i] = x_i + sum_j (w_ij x_j - v_ij x_i),
 *
 * with the sum over the neighbours j taken in the given order.  Every product and every sum is rounded separately (no fused
 * multiply-add: build with -ffp-contract=off), so that weighted.py computes the same bits without a compiler.
 */
#if defined(__x86_64__)
#include <emmintrin.h>
#endif
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define VECTOR __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3", "fp-contract=off")))
#else
#define VECTOR
#endif

enum { COLUMNS = 512, NEAR = 64 };   /* columns at a time (they fit in the L1 cache); neighbours at a time */
enum { STREAMED = 1 << 22 };         /* row size in bytes from which results are too large for the caches and bypass them */

/* Copy blocks of 16 bytes with non-temporal stores, which do not read the destination first. */
static void stream(char *to, const char *from, size_t bytes)
{
#if defined(__x86_64__)
    for (size_t at = 0; at < bytes; at += 16)
        _mm_stream_si128((__m128i *)(to + at), _mm_load_si128((const __m128i *)(from + at)));
#else
    memcpy(to, from, bytes);
#endif
}

static void streamed(void)           /* order the non-temporal stores before all later stores */
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* While `watched`, `not_finite` is set when a sum has a number that is not finite. */
static int watched, not_finite;
#define DEFINE_INFINITE(TYPE, T, BITS, EXPONENT)                                                                         \
    VECTOR static int infinite_##T(const TYPE *y, ptrdiff_t d)                                                           \
    {                                                                                                                    \
        BITS any = 0;                                                                                                    \
        for (ptrdiff_t t = 0; t < d; t++) {                                                                              \
            BITS bits;                                                                                                   \
            memcpy(&bits, y + t, sizeof bits);                                                                           \
            any |= (bits & EXPONENT) == EXPONENT;                                                                        \
        }                                                                                                                \
        return any != 0;                                                                                                 \
    }
DEFINE_INFINITE(double, d, uint64_t, 0x7ff0000000000000u)
DEFINE_INFINITE(float, f, uint32_t, 0x7f800000u)

/* watch(change): count those who want sums to be looked through, and tell whether one was not finite since the last call. */
static PyObject *watch(PyObject *self, PyObject *change)
{
    int found = not_finite;
    watched += (int)PyLong_AsLong(change);
    not_finite = 0;
    return PyErr_Occurred() ? NULL : PyBool_FromLong(found);
}

/* NAME adds COUNT neighbours of a row to the sum in y: the first call starts the sum, the last one adds it to x. */
#define TERM(r, j) ((w[j]) * (r)[t] - (v[j]) * x[t])
#define DEFINE_ADD(NAME, TYPE, COUNT, SUM)                                                                               \
    VECTOR static void NAME(const TYPE *restrict x, const TYPE *const *rows, const TYPE *w, const TYPE *v, ptrdiff_t d,  \
                            TYPE *restrict y, int first, int last)                                                       \
    {                                                                                                                    \
        const TYPE *restrict a = rows[0], *restrict b = rows[COUNT > 1 ? 1 : 0], *restrict c = rows[COUNT > 2 ? 2 : 0],  \
                   *restrict e = rows[COUNT > 2 ? 3 : 0];                                                                \
        (void)b, (void)c, (void)e;                                                                                       \
        if (first && last)                                                                                               \
            for (ptrdiff_t t = 0; t < d; t++)                                                                            \
                y[t] = x[t] + (SUM((TYPE)0 +));                                                                          \
        else if (first)                                                                                                  \
            for (ptrdiff_t t = 0; t < d; t++)                                                                            \
                y[t] = SUM((TYPE)0 +);                                                                                   \
        else if (last)                                                                                                   \
            for (ptrdiff_t t = 0; t < d; t++)                                                                            \
                y[t] = x[t] + (SUM(y[t] +));                                                                             \
        else                                                                                                             \
            for (ptrdiff_t t = 0; t < d; t++)                                                                            \
                y[t] = SUM(y[t] +);                                                                                      \
    }
#define ONE(begin) (begin TERM(a, 0))
#define TWO(begin) (ONE(begin) + TERM(b, 1))
#define FOUR(begin) ((TWO(begin) + TERM(c, 2)) + TERM(e, 3))

#define DEFINE_ROW(TYPE, T)                                                                                              \
    DEFINE_ADD(add1_##T, TYPE, 1, ONE)                                                                                   \
    DEFINE_ADD(add2_##T, TYPE, 2, TWO)                                                                                   \
    DEFINE_ADD(add4_##T, TYPE, 4, FOUR)                                                                                  \
    static void row_##T(const TYPE *x, const TYPE **rows, const TYPE *w, const TYPE *v, ptrdiff_t k, ptrdiff_t d,        \
                        TYPE *y, int begins, int ends)                                                                   \
    {                                                                                                                    \
        TYPE buffer[COLUMNS] __attribute__((aligned(64)));                                                               \
        int past = begins && ends && d * sizeof(TYPE) >= STREAMED && (uintptr_t)y % 16 == 0;                             \
        for (ptrdiff_t c = 0; c < d; c += COLUMNS) {                                                                     \
            ptrdiff_t width = d - c < COLUMNS ? d - c : COLUMNS;                                                         \
            int streams = past && width == COLUMNS;                                                                      \
            TYPE *to = streams ? buffer : y + c;                                                                         \
            for (ptrdiff_t j = 0; j < k && d - c > COLUMNS; j++)                                                         \
                for (ptrdiff_t t = COLUMNS; t < 2 * COLUMNS; t += 64 / sizeof(TYPE))                                     \
                    __builtin_prefetch(rows[j] + c + t);                                                                 \
            for (ptrdiff_t j = 0; j < k;) {                                                                              \
                int count = k - j >= 4 ? 4 : k - j >= 2 ? 2 : 1;                                                         \
                const TYPE *at[4];                                                                                       \
                for (int i = 0; i < count; i++)                                                                          \
                    at[i] = rows[j + i] + c;                                                                             \
                (count == 4 ? add4_##T : count == 2 ? add2_##T : add1_##T)(                                              \
                    x + c, at, w + j, v + j, width, to, begins && j == 0, ends && j + count == k);                       \
                j += count;                                                                                              \
            }                                                                                                            \
            if (watched && ends && infinite_##T(to, width))                                                              \
                not_finite = 1;                                                                                          \
            if (streams)                                                                                                 \
                stream((char *)(y + c), (const char *)buffer, sizeof buffer);                                            \
        }                                                                                                                \
        if (past)                                                                                                        \
            streamed();                                                                                                  \
    }
DEFINE_ROW(double, d)
DEFINE_ROW(float, f)
