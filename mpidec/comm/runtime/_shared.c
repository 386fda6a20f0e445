/* Rows in the memory that the ranks of a node share: each rank publishes where its rows lie and reads its neighbours' there.
 *
 * Each rank has a header of SLOTS slots in its arena, written by it alone and read by the others.  Mixing number `seq` uses the
 * slot seq % SLOTS:
 *
 *     publish  the offset of the rows (or of a copy of them) in the arena, and their tag; then posted = seq
 *     read     wait until posted = seq at all in-neighbours and compare tags; pin = seq; a full fence; form the weighted sum, from
 *              the copy where there is one (moved); done = seq
 *     leave    the rows may change when done >= seq at all out-neighbours.  Where some are late, copy the rows, moved = the copy,
 *              a full fence: then only those with pin >= seq are still reading the rows themselves, and there is no wait between
 *              pin and done.  So no rank waits for one that has not come.
 *
 * Either a reader sees `moved` or the owner sees its `pin`, because of the two fences.  A slot is used again when its own reading
 * has ended and all out-neighbours have read it, so that `done` and `pin` never speak of a later mixing.
 *
 * The tag is a fingerprint of the operation.  A reader that finds another tag than its own sets refused = seq, so that both sides
 * know.  Rows that are published are kept alive until they have been read, also after an exception.  A rank that is out of step says
 * so behind its slots, and those that wait for it long enough to call report() find it there.
 *
 * A Node is the memory of the node seen from one rank; a Reader is what this rank reads in one phase, and calling it is a whole
 * mixing.  Every wait calls report(answer, seq) after `patience` seconds, which makes progress elsewhere and raises what is wrong.
 *
 * All of it is one translation unit, so that what a mixing calls is inlined; each file includes the one below:
 *
 *     _shared.c            the type Reader, and the module
 *     _shared_weighted.h   calls with weights of their own (local views)
 *     _shared_reader.h     calls with fixed weights (mixers)
 *     _shared_node.h       the types Guard, Node and Counts
 *     _shared_read.h       wait for rows, and sum them up
 *     _shared_publish.h    publish rows, and let go of them
 *     _shared_wait.h       waits
 *     _shared_types.h      slots, headers, tables
 */
#define _GNU_SOURCE
#include "_arena.h"

#ifndef __linux__
PyMODINIT_FUNC PyInit__shared(void)
{
    PyErr_SetString(PyExc_ImportError, "reading the memory of other processes needs Linux: ranks exchange messages");
    return NULL;
}
#else
#include "_shared_weighted.h"

static PyMethodDef reader_methods[] = {
    {"post_weighted", (PyCFunction)(void (*)(void))reader_post_weighted, METH_FASTCALL, "Publish an array and weights."},
    {"read_weighted", (PyCFunction)(void (*)(void))reader_read_weighted, METH_FASTCALL, "Sum up what the others have published."},
    {"sum_weighted", (PyCFunction)(void (*)(void))reader_sum_weighted, METH_FASTCALL, "Publish an array, and sum up."},
    {"post", (PyCFunction)(void (*)(void))reader_post, METH_FASTCALL, "Publish rows."},
    {"give_up", reader_give_up, METH_O, "Take part in a mixing without rows."},
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL, "Sum up (or copy) what the neighbours have published."},
    {"leave", (PyCFunction)(void (*)(void))reader_leave, METH_FASTCALL, "Return when this rank's rows may be changed."},
    {"ready", reader_ready, METH_O, "Whether the neighbours' rows are there."},
    {0},
};
static PyTypeObject ReaderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.comm.runtime._shared.Reader",
    .tp_basicsize = sizeof(Reader),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "What one rank reads on its node in one phase; see transport/node_reader.py.",
    .tp_new = reader_new,
    .tp_dealloc = reader_dealloc,
    .tp_traverse = reader_traverse,
    .tp_clear = reader_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Reader, call),
    .tp_methods = reader_methods,
};

/* set_patience(seconds): after which a wait looks after other things. */
static PyObject *set_patience(PyObject *self, PyObject *number)
{
    double value = PyFloat_AsDouble(number);
    if (PyErr_Occurred())
        return NULL;
    patience = value;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_patience", set_patience, METH_O, "Seconds after which a wait reports."},
    {"watch", watch, METH_O, "Look for sums that are not finite; whether there were some."},
    {0},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_shared", "Rows in the shared memory of a node.", -1, functions};

PyMODINIT_FUNC PyInit__shared(void)
{
    if (arena_init())
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made && (PyModule_AddFunctions(made, arena_methods)
                 || PyModule_AddObject(made, "GAVE_UP", PyLong_FromUnsignedLongLong(GAVE_UP)) || PyModule_AddIntMacro(made, GRAIN)
                 || PyModule_AddIntMacro(made, SLOTS) || PyModule_AddIntMacro(made, LATE_POST)
                 || PyModule_AddIntMacro(made, LATE_DONE) || PyModule_AddIntMacro(made, OTHER_TAG) || PyModule_AddIntMacro(made, REFUSED)
                 || PyModule_AddType(made, &GuardType) || PyModule_AddType(made, &NodeType) || PyModule_AddType(made, &CountsType)
                 || PyModule_AddType(made, &ReaderType)))
        Py_CLEAR(made);
    return made;
}
#endif
