/* Shared rows: slots, headers and tables as they lie in memory, and the Python objects that refer to them; see _shared.c. */
#ifndef MPIDEC_SHARED_TYPES_H
#define MPIDEC_SHARED_TYPES_H
#include "_arena.h"
#include "../kernels/_rows.h"
#include "_wait.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <structmember.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, SPARES = 8, KEPT = 4, BATCH = 0, LARGE = 1 << 18, LATE_COPIED = 1 << 17, PROBED = 64 };
/* KEPT: mixings whose rows a solver's step leaves published.  BATCH: mixings whose copies are let go of together.  LARGE: bytes that
 * are copied without Python's lock.  LATE_COPIED: bytes up to which a solver's rows are copied where ranks share cores.  PROBED: every so many mixings it is found out again what it costs to yield. */
enum { READY, LATE_POST, LATE_DONE, OTHER_TAG, REFUSED };    /* an answer is one of these * 2**32 + the index of a rank */
#define GAVE_UP ((uint64_t)1 << 40)                      /* in a tag: more than any rows are long */
#define COPY_RATE 4e9                                    /* bytes a second: how long readers are waited for before the rows are copied */
#define ANSWER(what, rank) ((int64_t)(what) << 32 | (rank))

static double patience = 0.1;

typedef struct {
    _Atomic uint64_t posted;
    uint64_t offset, tag, table;
    _Atomic uint64_t moved;                              /* offset of a copy + 1; 0: there is none */
    uint64_t unused[3];
    _Atomic uint64_t done, pin, refused;
    uint64_t unused_too[5];
} Slot;                                                  /* a cache line as a sender, and one as a receiver */
typedef struct {
    Slot slots[SLOTS];
    _Atomic uint64_t out_of_step;
    char reason[248];                                    /* why, in words */
} Header;
_Static_assert(sizeof(Slot) == 128 && ATOMIC_LLONG_LOCK_FREE == 2, "slots are shared between processes");

typedef struct Mapped {
    struct Mapped *next;
    dev_t device;
    ino_t inode;
    size_t size;
    char *base;
    int64_t references;
} Mapped;
static Mapped *mapped;                                   /* arenas of other processes, each mapped once */

typedef struct {
    PyObject_HEAD
    unsigned long thread;
    long depth;                                          /* calls of that thread that have not ended */
    int polling;                                         /* the first of them is a poll, which waits for nothing */
} Guard;

typedef struct Reader Reader;
typedef struct {
    Reader *reader;                                      /* whose out-neighbours may not have read yet; NULL: all have */
    PyObject *rows;                                      /* the array that is read where it lies */
    char *copy, *table;
    size_t bytes, table_bytes;                           /* of the copy, and of the table */
    uint64_t seq;
    int unread, late;                                    /* this rank's own reading has not ended; the rows are left later */
} Published;

typedef struct {
    PyObject_HEAD
    int64_t size, me, spins, under_way, copies;
    uint64_t seq, released;                              /* mixings so far; those up to which all slots are free */
    int late, kept, closed, spares;
    Slot **heads;
    const char **bases;
    Mapped **maps;
    char *spare[SPARES];                                 /* free blocks of one grain for copies */
    Published published[SLOTS];
    double yielding;                                     /* seconds that it took lately to yield the processor once */
    Guard *guard;
    PyObject *array, *empty_like, *broken;
    PyObject *refusal;                                   /* a mismatch that was heard of too late to raise it where it belongs */
} Node;

typedef struct {
    PyObject_HEAD
    int64_t rounds, messages, bytes;
} Counts;

enum { INDPTR, SOURCE, ROW, W, V, W32, V32, INS, OUTS, ARRAYS };
struct Reader {
    PyObject_HEAD
    vectorcallfunc call;
    Node *node;
    Counts *counts;
    PyObject *report;                                    /* report(answer, seq) */
    uint64_t signature;
    int64_t edges;
    ptrdiff_t m, nin, nout;
    Py_buffer array[ARRAYS];                             /* without weights rows are copied as they are */
};

static PyTypeObject GuardType, NodeType, CountsType, ReaderType;
#endif
