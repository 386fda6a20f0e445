/* Waiting in shared memory: a clock that all processes of a node share, and a pause between two looks. */
#ifndef MPIDEC_WAIT_H
#define MPIDEC_WAIT_H
#include <time.h>

static inline double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}
#endif
