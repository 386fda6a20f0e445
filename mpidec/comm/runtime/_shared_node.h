/* Shared rows: the types Guard, Node and Counts. */
#ifndef MPIDEC_SHARED_NODE_H
#define MPIDEC_SHARED_NODE_H
#include "_shared_read.h"

/* Keep other threads out of the calls of a network: 1 if this one is in, 0 if another one is, -1 if that one only polls.  Python's
 * lock is held. */
static int enter(Guard *guard, int polling)
{
    unsigned long me = PyThread_get_thread_ident();
    if (guard->depth && guard->thread != me)
        return guard->polling ? -1 : 0;
    if (!guard->depth)
        guard->polling = polling;
    guard->thread = me;
    guard->depth++;
    return 1;
}

static PyObject *guard_acquire(PyObject *self, PyObject *polling) { return PyLong_FromLong(enter((Guard *)self, polling == Py_True)); }

static PyObject *guard_release(PyObject *self, PyObject *unused)
{
    ((Guard *)self)->depth--;
    Py_RETURN_NONE;
}

static PyMethodDef guard_methods[] = {
    {"acquire", guard_acquire, METH_O, "1 if this thread may go on, 0 if another one is in, -1 if that one only polls."},
    {"release", guard_release, METH_NOARGS, "End what acquire began."},
    {0},
};
static PyMemberDef guard_members[] = {
    {"thread", T_ULONG, offsetof(Guard, thread), READONLY, "The thread of the last call."},
    {0},
};
static PyTypeObject GuardType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.comm.runtime._shared.Guard",
    .tp_basicsize = sizeof(Guard),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Re-entrant lock of the calls of a network, as threading.RLock, that nobody waits for.",
    .tp_new = PyType_GenericNew,
    .tp_methods = guard_methods,
    .tp_members = guard_members,
};

/* ------------------------------------------------------------------------------------------------------------------- Node */

/* Node(me, size, spins, ndarray, empty_like, guard) */
static PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    long long me, size, spins;
    PyObject *array, *empty_like, *guard;
    if (!PyArg_ParseTuple(args, "LLLOOO!", &me, &size, &spins, &array, &empty_like, &GuardType, &guard))
        return NULL;
    if (me < 0 || me >= size) {
        PyErr_SetString(PyExc_ValueError, "the arguments of Node do not fit together");
        return NULL;
    }
    Node *node = (Node *)type->tp_alloc(type, 0);
    if (!node)
        return NULL;
    node->size = size, node->me = me, node->spins = spins;
    node->array = Py_NewRef(array), node->empty_like = Py_NewRef(empty_like);
    node->guard = (Guard *)Py_NewRef(guard);
    node->heads = calloc(size, sizeof *node->heads);
    node->bases = calloc(size, sizeof *node->bases);
    node->maps = calloc(size, sizeof *node->maps);
    char *block = arena_take(sizeof(Header));
    if (!block || !node->heads || !node->bases || !node->maps) {
        if (block)
            arena_give(block);
        Py_DECREF(node);
        return PyErr_NoMemory();
    }
    node->heads[me] = memset(block, 0, sizeof(Header));
    node->bases[me] = arena_base;
    return (PyObject *)node;
}

static int node_traverse(PyObject *self, visitproc visit, void *arg)
{
    Node *node = (Node *)self;
    Py_VISIT(node->array);
    Py_VISIT(node->empty_like);
    for (int i = 0; i < SLOTS; i++) {
        Py_VISIT(node->published[i].reader);
        Py_VISIT(node->published[i].rows);
    }
    return 0;
}

static int node_clear(PyObject *self)
{
    Node *node = (Node *)self;
    Py_CLEAR(node->array);
    Py_CLEAR(node->empty_like);
    for (int i = 0; i < SLOTS; i++) {
        Py_CLEAR(node->published[i].reader);
        if (node->closed)
            Py_CLEAR(node->published[i].rows);           /* else somebody may still read it: it is never freed */
    }
    return 0;
}

static void unmap(Mapped *map)
{
    if (!map || --map->references)
        return;
    for (Mapped **at = &mapped; *at; at = &(*at)->next)
        if (*at == map) {
            *at = map->next;
            break;
        }
    munmap(map->base, map->size);
    free(map);
}

static void disconnect(Node *node)
{
    for (int64_t rank = 0; node->maps && rank < node->size; rank++) {
        unmap(node->maps[rank]);
        node->maps[rank] = NULL;
        if (rank != node->me)
            node->heads[rank] = NULL, node->bases[rank] = NULL;
    }
}

static void node_dealloc(PyObject *self)
{
    Node *node = (Node *)self;
    PyObject_GC_UnTrack(self);
    node_clear(self);
    disconnect(node);
    free(node->heads);                                   /* the header itself stays where it is unless close() has given it back */
    free(node->bases);
    free(node->maps);
    Py_XDECREF(node->guard);
    Py_XDECREF(node->broken);
    Py_XDECREF(node->refusal);
    Py_TYPE(self)->tp_free(self);
}

/* connect(index, path, inode, size, offset): read the arena of another rank, whose header lies at `offset`. */
static PyObject *node_connect(PyObject *self, PyObject *args)
{
    Node *node = (Node *)self;
    long long index;
    const char *path;
    unsigned long long inode, size, offset;
    if (!PyArg_ParseTuple(args, "LsKKK", &index, &path, &inode, &size, &offset))
        return NULL;
    if (index < 0 || index >= node->size || index == node->me || node->maps[index] || offset + sizeof(Header) > size)
        return PyErr_Format(PyExc_ValueError, "rank %lld cannot be connected", index);
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (opened < 0 || fstat(opened, &about)) {
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
        if (opened >= 0)
            close(opened);
        return NULL;
    }
    Mapped *map = mapped;
    while (map && (map->device != about.st_dev || map->inode != about.st_ino))
        map = map->next;
    if ((uint64_t)about.st_ino != inode || (uint64_t)about.st_size != size)
        PyErr_Format(PyExc_OSError, "%s is another file: the ranks have process numbers of their own (pid namespaces)", path);
    else if (!map && (map = calloc(1, sizeof *map))) {
        map->base = mmap(NULL, size, PROT_READ, MAP_SHARED | MAP_NORESERVE, opened, 0);
        if (map->base == MAP_FAILED) {
            PyErr_SetFromErrno(PyExc_OSError);
            free(map);
        } else {
            madvise(map->base, size, MADV_DONTDUMP);
            map->device = about.st_dev, map->inode = about.st_ino, map->size = size, map->next = mapped;
            mapped = map;
        }
    } else if (!map)
        PyErr_NoMemory();
    close(opened);
    if (PyErr_Occurred())
        return NULL;
    map->references++;
    node->maps[index] = map;
    node->bases[index] = map->base;
    node->heads[index] = (Slot *)(map->base + offset);
    Py_RETURN_NONE;
}

/* close(): give everything back; all ranks have come here. */
static PyObject *node_close(PyObject *self, PyObject *unused)
{
    Node *node = (Node *)self;
    if (node->closed)
        Py_RETURN_NONE;
    node->closed = 1;
    for (int i = 0; i < SLOTS; i++) {
        let_go(node, &node->published[i]);
        give_table(node, &node->published[i]);
    }
    while (node->spares)
        arena_give(node->spare[--node->spares]);
    arena_give(node->heads[node->me]);
    node->heads[node->me] = NULL;
    disconnect(node);
    Py_RETURN_NONE;
}

/* release(): let go of everything that has been read by now, and raise what was refused; mixings whose rows are still kept. */
static PyObject *node_release(PyObject *self, PyObject *unused)
{
    Node *node = (Node *)self;
    if (!node->closed)
        release(node);
    return raise_refusal(node) ? NULL : PyLong_FromLong(node->kept);
}

/* drain(): return when no rows that a solver's step has kept are read any more. */
static PyObject *node_drain(PyObject *self, PyObject *unused)
{
    Node *node = (Node *)self;
    if (!node->closed && leave_kept(node, 0))
        return NULL;
    Py_RETURN_NONE;
}

/* tag(index, seq): what a rank has published as mixing `seq`. */
static PyObject *node_tag(PyObject *self, PyObject *args)
{
    Node *node = (Node *)self;
    long long index;
    unsigned long long seq;
    if (!PyArg_ParseTuple(args, "LK", &index, &seq))
        return NULL;
    if (index < 0 || index >= node->size || !node->heads[index])
        return PyErr_Format(PyExc_ValueError, "there is no rank %lld", index);
    return PyLong_FromUnsignedLongLong(slot(node, index, seq)->tag);
}

/* note(index, seq): what a rank has published as mixing `seq`, in words; None if there are none. */
static PyObject *node_note(PyObject *self, PyObject *args)
{
    Node *node = (Node *)self;
    long long index;
    unsigned long long seq;
    if (!PyArg_ParseTuple(args, "LK", &index, &seq))
        return NULL;
    if (index < 0 || index >= node->size || !node->heads[index])
        return PyErr_Format(PyExc_ValueError, "there is no rank %lld", index);
    const Edge *table = table_of(node, index, seq);
    size_t size = index == node->me ? arena_size : node->maps[index]->size;
    int64_t edges = table ? table[0].rank : -1;          /* anything, if the slot is in use again */
    if (edges < 0 || edges > node->size || slot(node, index, seq)->table + sizeof(Edge) * (1 + edges) + GRAIN > size)
        Py_RETURN_NONE;
    const char *text = (const char *)(table + 1 + edges);
    return PyUnicode_DecodeUTF8(text, strnlen(text, GRAIN / 4), "replace");
}

/* refuse(reason): refuse all further mixings, and let the other ranks know. */
static PyObject *node_refuse(PyObject *self, PyObject *reason)
{
    if (!PyUnicode_Check(reason))
        return PyErr_Format(PyExc_TypeError, "refuse takes a str");
    refuse_mixings((Node *)self, Py_NewRef(reason));
    Py_RETURN_NONE;
}

/* out_of_step(index): why a rank refuses mixings; None if it does not. */
static PyObject *node_out_of_step(PyObject *self, PyObject *number)
{
    Node *node = (Node *)self;
    int64_t index = PyLong_AsLongLong(number);
    if (PyErr_Occurred())
        return NULL;
    if (index < 0 || index >= node->size || !node->heads[index])
        return PyErr_Format(PyExc_ValueError, "there is no rank %lld", (long long)index);
    Header *its = header(node, index);
    if (!atomic_load_explicit(&its->out_of_step, memory_order_acquire))
        Py_RETURN_NONE;
    return PyUnicode_DecodeUTF8(its->reason, strnlen(its->reason, sizeof its->reason), "replace");
}

static PyObject *node_offset(PyObject *self, void *unused)
{
    Node *node = (Node *)self;
    return PyLong_FromUnsignedLongLong(node->heads[node->me] ? arena_offset(node->heads[node->me]) : 0);
}

static PyMethodDef node_methods[] = {
    {"connect", node_connect, METH_VARARGS, "Read the arena of another rank."},
    {"close", node_close, METH_NOARGS, "Give everything back."},
    {"release", node_release, METH_NOARGS, "Let go of what has been read; how many rows are still kept."},
    {"drain", node_drain, METH_NOARGS, "Return when no rows are kept."},
    {"tag", node_tag, METH_VARARGS, "What a rank has published."},
    {"refuse", node_refuse, METH_O, "Refuse all further mixings."},
    {"out_of_step", node_out_of_step, METH_O, "Why a rank refuses mixings."},
    {"note", node_note, METH_VARARGS, "What a rank has published, in words."},
    {0},
};
static PyGetSetDef node_properties[] = {{"offset", node_offset, NULL, "Of the header in the arena.", NULL}, {0}};
static PyMemberDef node_members[] = {
    {"seq", T_ULONGLONG, offsetof(Node, seq), READONLY, "Mixings so far."},
    {"copies", T_LONGLONG, offsetof(Node, copies), READONLY, "Mixings whose rows were copied."},
    {"late", T_INT, offsetof(Node, late), 0, "Whether rows that are mixed are never changed afterwards."},
    {"broken", T_OBJECT, offsetof(Node, broken), READONLY, "Why the network is out of step, or None."},
    {0},
};
static PyTypeObject NodeType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.comm.runtime._shared.Node",
    .tp_basicsize = sizeof(Node),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "The memory of a node seen from one rank; see node.py.",
    .tp_new = node_new,
    .tp_dealloc = node_dealloc,
    .tp_traverse = node_traverse,
    .tp_clear = node_clear,
    .tp_methods = node_methods,
    .tp_members = node_members,
    .tp_getset = node_properties,
};

static PyMemberDef counts_members[] = {
    {"rounds", T_LONGLONG, offsetof(Counts, rounds), 0, "Mixings and exchanges."},
    {"messages", T_LONGLONG, offsetof(Counts, messages), 0, "Rows sent."},
    {"bytes", T_LONGLONG, offsetof(Counts, bytes), 0, "Their size."},
    {0},
};
static PyTypeObject CountsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.comm.runtime._shared.Counts",
    .tp_basicsize = sizeof(Counts),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "What was sent.",
    .tp_new = PyType_GenericNew,
    .tp_members = counts_members,
};
#endif
