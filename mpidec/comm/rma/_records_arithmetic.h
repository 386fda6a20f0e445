/* Rows of records: weighted copies and sums, rounded as NumPy rounds them. */
#ifndef MPIDEC_RECORDS_ARITHMETIC_H
#define MPIDEC_RECORDS_ARITHMETIC_H
#include "_records_lock.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define VECTOR __attribute__((target_clones("avx2", "default"), optimize("O3", "fp-contract=off")))
#else
#define VECTOR
#endif

#define DEFINE(T, TYPE)                                                                                                  \
    /* to = w x, or to + w x; the same is added to `sent`, if given */                                                   \
    VECTOR static void put_##T(TYPE *restrict to, const TYPE *restrict x, double w, ptrdiff_t n)                         \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < n; t++)                                                                                \
            to[t] = (TYPE)(w * x[t]);                                                                                    \
    }                                                                                                                    \
    VECTOR static void add_##T(TYPE *restrict to, const TYPE *restrict x, double w, ptrdiff_t n)                         \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < n; t++)                                                                                \
            to[t] += (TYPE)(w * x[t]);                                                                                   \
    }                                                                                                                    \
    VECTOR static void put_sent_##T(TYPE *restrict to, const TYPE *restrict x, double w, ptrdiff_t n, TYPE *restrict sent) \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < n; t++) {                                                                              \
            TYPE part = (TYPE)(w * x[t]);                                                                                \
            to[t] = part;                                                                                                \
            sent[t] += part;                                                                                             \
        }                                                                                                                \
    }                                                                                                                    \
    VECTOR static void add_sent_##T(TYPE *restrict to, const TYPE *restrict x, double w, ptrdiff_t n, TYPE *restrict sent) \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < n; t++) {                                                                              \
            TYPE part = (TYPE)(w * x[t]);                                                                                \
            to[t] += part;                                                                                               \
            sent[t] += part;                                                                                             \
        }                                                                                                                \
    }                                                                                                                    \
    VECTOR static void leave_##T(TYPE *restrict x, const TYPE *restrict sent, ptrdiff_t n)                               \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < n; t++)                                                                                \
            x[t] -= sent[t];                                                                                             \
    }                                                                                                                    \
    VECTOR static void scale_##T(TYPE *x, double w, ptrdiff_t n)                                                         \
    {                                                                                                                    \
        for (ptrdiff_t t = 0; t < n; t++)                                                                                \
            x[t] = (TYPE)(w * x[t]);                                                                                     \
    }                                                                                                                    \
    VECTOR static void take_##T(TYPE *restrict x, const TYPE *restrict slot, double w, ptrdiff_t n)                      \
    {                                                                                                                    \
        if (w == 1.0)                                                                                                    \
            for (ptrdiff_t t = 0; t < n; t++)                                                                            \
                x[t] += slot[t];                                                                                         \
        else                                                                                                             \
            for (ptrdiff_t t = 0; t < n; t++)                                                                            \
                x[t] = (TYPE)(x[t] + w * slot[t]);                                                                       \
    }
DEFINE(d, double)
DEFINE(f, float)
#define AS(T, p) ((T *)(p))

/* Write w x into a slot whose lock is held. */
static void write_slot(const AgentRecords *agent, Record *slot, const char *x, double w, double p, int add, char *sent)
{
    ptrdiff_t n = agent->count;
    int replace = !add;
    if (agent->single) {
        float *to = AS(float, slot->row);
        if (sent)
            (add ? add_sent_f : put_sent_f)(to, AS(const float, x), w, n, AS(float, sent));
        else if (replace && w == 1.0)
            memcpy(to, x, bytes_of(agent));
        else
            (add ? add_f : put_f)(to, AS(const float, x), w, n);
    } else {
        double *to = AS(double, slot->row);
        if (sent)
            (add ? add_sent_d : put_sent_d)(to, AS(const double, x), w, n, AS(double, sent));
        else if (replace && w == 1.0)
            memcpy(to, x, bytes_of(agent));
        else
            (add ? add_d : put_d)(to, AS(const double, x), w, n);
    }
    slot->p = add ? slot->p + p : p;
    slot->replaced |= replace;
    slot->filled = 1;
    slot->transfers++;
}

static void scale(const AgentRecords *agent, char *x, double w)
{
    if (w == 0.0)
        memset(x, 0, bytes_of(agent));
    else if (w != 1.0 && agent->single)
        scale_f(AS(float, x), w, agent->count);
    else if (w != 1.0)
        scale_d(AS(double, x), w, agent->count);
}

static void take(const AgentRecords *agent, char *x, const char *slot, double w)
{
    if (agent->single)
        take_f(AS(float, x), AS(const float, slot), w, agent->count);
    else
        take_d(AS(double, x), AS(const double, slot), w, agent->count);
}
#endif
