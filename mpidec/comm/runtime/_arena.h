/* The arena: memory of this process that the other ranks of its node may map; see _arena.c. */
#ifndef MPIDEC_ARENA_H
#define MPIDEC_ARENA_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>

enum { GRAIN = 1 << 14 };                    /* bytes: the unit of blocks, and the least array that lies in the arena */

extern char *arena_base;                     /* NULL: there is no arena */
extern size_t arena_size;
extern int arena_forked;                     /* this process is a forked child: its arena is a private copy */

static inline int arena_holds(const void *p) { return (size_t)((const char *)p - arena_base) < arena_size && arena_base; }
static inline uint64_t arena_offset(const void *p) { return (const char *)p - arena_base; }

void *arena_take(size_t bytes);              /* a block, aligned to GRAIN; NULL if there is none */
void arena_give(void *block);
PyObject *arena_enter(void);                 /* NumPy allocates in the arena; the handler before, a new reference, NULL on error */
int arena_leave(PyObject *before);           /* NumPy allocates as before; steals the reference */

extern PyMethodDef arena_methods[];
int arena_init(void);
#endif
