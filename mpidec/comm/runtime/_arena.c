/* The arena: large NumPy arrays in memory that the other ranks of the node read where it lies (NEP 49).
 *
 * One sparse memfd per process, mapped once and never unmapped, since arrays may outlive everything else.  Blocks are whole grains
 * in size classes, four to a doubling, with a LIFO list of free blocks for each class; `class_of` tells the size of the block that
 * begins at a grain.  Addresses are never reused for another class.  Of the free blocks, as many bytes as are in use (64 MB at
 * least) keep their pages; those that have been free longest give them back to the system.  Blocks may be taken and given by any
 * thread.
 *
 * NumPy's headers are not needed: slots 304 (PyDataMem_SetHandler) and 306 (PyDataMem_DefaultHandler) of its C API and the layout
 * of the handler are ABI since NumPy 1.22.
 */
#define _GNU_SOURCE
#include "_arena.h"
#ifdef __linux__
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CLASSES = 128, COLD = 128, ZEROED = 4 << 20 };    /* COLD: the pages were given back; ZEROED: larger zeros come from the kernel */
#define LIVE UINT32_MAX
#define LEAST_KEPT ((size_t)64 << 20)

typedef struct {
    void *ctx;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *, size_t);
} Allocator;
typedef struct { char name[127]; uint8_t version; Allocator allocator; } Handler;

char *arena_base;
size_t arena_size;
int arena_forked;
static int file = -1, shared;
static size_t top, live, kept;
static uint8_t *class_of;                    /* of the block that begins at a grain; 0: none does */
static uint32_t *next_free;                  /* of its class, plus one; LIVE: the block is in use */
static uint32_t head[CLASSES];
static uint32_t *older, *newer;              /* free blocks that have pages, by the time when they were given, plus one; 0: none */
static uint32_t oldest, newest;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Handler *ordinary;
static PyObject *(*set_handler)(PyObject *), *capsule;

static int class_for(size_t bytes)           /* the least class that holds so many bytes: 1, 2, 3, 4, then four to a doubling */
{
    size_t grains = (bytes + GRAIN - 1) / GRAIN;
    if (grains <= 4)
        return grains < 1 ? 1 : (int)grains;
    int shift = 61 - __builtin_clzl(grains - 1);         /* (grains - 1) >> shift is 4, ..., 7 */
    return 4 * shift + (int)((grains - 1) >> shift) + 1;
}

static size_t size_of(int class)
{
    if (class <= 4)
        return (size_t)class * GRAIN;
    return ((size_t)((class - 5) % 4 + 5) << (class - 5) / 4) * GRAIN;
}

static size_t grain_of(const void *p) { return ((const char *)p - arena_base) / GRAIN; }

static void unlink_age(size_t grain)         /* the block is not free any more, or has no pages */
{
    uint32_t before = older[grain], after = newer[grain];
    *(before ? &newer[before - 1] : &oldest) = after;
    *(after ? &older[after - 1] : &newest) = before;
}

void *arena_take(size_t bytes)
{
    if (!arena_base || bytes > arena_size)
        return NULL;
    int class = class_for(bytes);
    size_t whole = size_of(class), grain;
    char *block = NULL;
    pthread_mutex_lock(&lock);
    if (head[class]) {
        grain = head[class] - 1;
        head[class] = next_free[grain];
        if (class_of[grain] & COLD)
            class_of[grain] = class;
        else {
            unlink_age(grain);
            kept -= whole;
        }
        block = arena_base + grain * GRAIN;
    } else if (whole <= arena_size - top) {
        block = arena_base + top;
        grain = top / GRAIN;
        top += whole;
        class_of[grain] = class;
    }
    if (block) {
        live += whole;
        next_free[grain] = LIVE;
    }
    pthread_mutex_unlock(&lock);
    return block;
}

void arena_give(void *block)
{
    size_t grain = grain_of(block);
    pthread_mutex_lock(&lock);
    int class = class_of[grain] & ~COLD;
    size_t whole = size_of(class);
    live -= whole;
    kept += whole;
    older[grain] = newest, newer[grain] = 0;
    *(newest ? &newer[newest - 1] : &oldest) = grain + 1;
    newest = grain + 1;
    while (kept > (live > LEAST_KEPT ? live : LEAST_KEPT) && oldest) {
        size_t cold = oldest - 1, size = size_of(class_of[cold]);
        if (shared ? fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, cold * GRAIN, size)
                   : madvise(arena_base + cold * GRAIN, size, MADV_DONTNEED))
            break;
        unlink_age(cold);
        class_of[cold] |= COLD;
        kept -= size;
    }
    next_free[grain] = head[class];
    head[class] = grain + 1;
    pthread_mutex_unlock(&lock);
}

static void *pool_malloc(void *ctx, size_t bytes)
{
    void *p = bytes >= GRAIN ? arena_take(bytes) : NULL;
    return p ? p : ordinary->allocator.malloc(ordinary->allocator.ctx, bytes);
}

static void *pool_calloc(void *ctx, size_t count, size_t size)
{
    size_t bytes = size && count > SIZE_MAX / size ? 0 : count * size;
    void *p = bytes >= GRAIN && bytes < ZEROED ? arena_take(bytes) : NULL;
    return p ? memset(p, 0, bytes) : ordinary->allocator.calloc(ordinary->allocator.ctx, count, size);
}

static void pool_free(void *ctx, void *p, size_t bytes)
{
    if (p && arena_holds(p))
        arena_give(p);
    else
        ordinary->allocator.free(ordinary->allocator.ctx, p, bytes);
}

static void *pool_realloc(void *ctx, void *p, size_t bytes)
{
    if (!p || !arena_holds(p))
        return ordinary->allocator.realloc(ordinary->allocator.ctx, p, bytes);
    size_t room = size_of(class_of[grain_of(p)]);
    if (bytes <= room && bytes >= room / 2)
        return p;
    void *moved = pool_malloc(ctx, bytes);
    if (moved) {
        memcpy(moved, p, bytes < room ? bytes : room);
        arena_give(p);
    }
    return moved;
}

static Handler pool = {"mpidec_arena", 1, {NULL, pool_malloc, pool_calloc, pool_realloc, pool_free}};

PyObject *arena_enter(void)
{
    if (!set_handler || !arena_base)
        return Py_NewRef(Py_None);
    PyObject *before = set_handler(capsule);
    Handler *was = before ? PyCapsule_GetPointer(before, "mem_handler") : NULL;
    if (was && was != &pool && was != ordinary) {        /* of another package: it stays */
        PyObject *ours = set_handler(before);
        Py_XDECREF(ours);
    }
    return before;
}

int arena_leave(PyObject *before)
{
    PyObject *ours = before == Py_None ? Py_NewRef(Py_None) : set_handler(before);
    Py_DECREF(before);
    Py_XDECREF(ours);
    return ours ? 0 : -1;
}

/* fork: the child gets a private copy of the live blocks at the same addresses, and the parent waits for that; otherwise both would
 * write to the same memory and hand out the same blocks.  (vfork and posix_spawn, which subprocess uses, do not come here.) */
static int copied[2] = {-1, -1};

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
    if (!arena_base || !shared || !live || pipe2(copied, O_CLOEXEC))
        copied[0] = copied[1] = -1;
}

static void after_fork_in_parent(void)
{
    char byte;
    if (copied[0] >= 0) {
        close(copied[1]);
        while (read(copied[0], &byte, 1) > 0) {}
        close(copied[0]);
    }
    pthread_mutex_unlock(&lock);
}

static void die(const char *what)
{
    static const char text[] = "mpidec: a forked child cannot copy the arrays of its parent (ulimit -v): ";
    if (write(2, text, sizeof text - 1) < 0 || write(2, what, strlen(what)) < 0 || write(2, "\n", 1) < 0)
        _exit(72);
    _exit(71);
}

static void after_fork_in_child(void)
{
    arena_forked = 1;
    if (arena_base && shared) {
        char *copy = mmap(NULL, arena_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (copy == MAP_FAILED)
            die("no addresses");
        for (size_t grain = 1; grain * GRAIN < top; grain += size_of(class_of[grain] & ~COLD) / GRAIN)
            if (next_free[grain] == LIVE)
                memcpy(copy + grain * GRAIN, arena_base + grain * GRAIN, size_of(class_of[grain] & ~COLD));
        if (mremap(copy, arena_size, arena_size, MREMAP_MAYMOVE | MREMAP_FIXED, arena_base) == MAP_FAILED)
            die("no memory");
        shared = 0;
    }
    if (copied[0] >= 0) {
        close(copied[0]);
        close(copied[1]);
    }
    pthread_mutex_unlock(&lock);
}

/* open_arena(bytes) -> file descriptor: the arena of this process, made at the first call. */
static PyObject *open_arena(PyObject *self, PyObject *bytes)
{
    size_t size = PyLong_AsSize_t(bytes) / GRAIN * GRAIN;
    if (PyErr_Occurred())
        return NULL;
    if (arena_base)
        return PyLong_FromLong(shared ? file : -1);
    int made = memfd_create("mpidec-arena", MFD_CLOEXEC);
    if (made < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    char *base = ftruncate(made, size) ? MAP_FAILED
                                       : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, made, 0);
    uint8_t *classes = calloc(size / GRAIN, sizeof *classes);
    uint32_t *links = calloc(3 * (size / GRAIN), sizeof *links);
    if (base == MAP_FAILED || !classes || !links || pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child)) {
        PyErr_SetFromErrno(PyExc_OSError);
        if (base != MAP_FAILED)
            munmap(base, size);
        close(made);
        free(classes);
        free(links);
        return NULL;
    }
    madvise(base, size, MADV_DONTDUMP);
    class_of = classes, next_free = links, older = links + size / GRAIN, newer = older + size / GRAIN;
    top = GRAIN;                                         /* offset 0 means nothing */
    file = made, shared = 1, arena_size = size, arena_base = base;
    return PyLong_FromLong(file);
}

/* use_arena(): NumPy's large arrays lie in the arena from here on, in this context; the handler before, for restore_handler. */
static PyObject *use_arena(PyObject *self, PyObject *unused) { return arena_enter(); }

static PyObject *restore_handler(PyObject *self, PyObject *before)
{
    if (arena_leave(Py_NewRef(before)))
        return NULL;
    Py_RETURN_NONE;
}

/* arena_stats() -> (addresses used, bytes in use, bytes of free blocks that are kept) */
static PyObject *arena_stats(PyObject *self, PyObject *unused) { return Py_BuildValue("nnn", top, live, kept); }

/* in_arena(address): whether memory lies in the arena. */
static PyObject *in_arena(PyObject *self, PyObject *address)
{
    size_t place = PyLong_AsSize_t(address);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(arena_holds((void *)place));
}

PyMethodDef arena_methods[] = {
    {"open_arena", open_arena, METH_O, "Make the arena of this process; its file descriptor."},
    {"use_arena", use_arena, METH_NOARGS, "Let NumPy allocate large arrays in the arena; the handler before."},
    {"restore_handler", restore_handler, METH_O, "Let NumPy allocate as before."},
    {"arena_stats", arena_stats, METH_NOARGS, "Bytes: addresses used, in use, free and kept."},
    {"in_arena", in_arena, METH_O, "Whether an address lies in the arena."},
    {0},
};

int arena_init(void)
{
    PyObject *umath = PyImport_ImportModule("numpy._core._multiarray_umath");
    if (!umath) {
        PyErr_Clear();
        umath = PyImport_ImportModule("numpy.core._multiarray_umath");
    }
    PyObject *api = umath ? PyObject_GetAttrString(umath, "_ARRAY_API") : NULL;
    void **table = api ? PyCapsule_GetPointer(api, NULL) : NULL;
    Py_XDECREF(umath);
    if (table && *(PyObject **)table[306])
        ordinary = PyCapsule_GetPointer(*(PyObject **)table[306], "mem_handler");
    if (ordinary && ordinary->version == 1) {
        set_handler = (PyObject *(*)(PyObject *))table[304];
        capsule = PyCapsule_New(&pool, "mem_handler", NULL);
    }
    Py_XDECREF(api);
    PyErr_Clear();
    return 0;
}
#endif
