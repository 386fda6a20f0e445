/* Records: arrays with a push-sum weight in memory that other processes write to, each behind a lock.
 *
 * A record is a header of 64 bytes and a row of numbers.  Whoever reads or writes a record holds its lock, for about one pass over
 * the row, so that nobody ever sees a row and a weight of different moments, and nothing is lost or counted twice.  Records are
 * locked in one order: a value before slots.  Who holds the lock of a slot waits for nothing, but for an agent that updates its value:
 * it holds all its own slots, so that it updates with all of them or not at all, and waits for those that are being written to.
 *
 * An AgentRecords is all that one agent does with records: its own value; `ins`, the slots that its in-neighbours write to; `outs`, its
 * slots at the out-neighbours (or, for a neighbour on another node, an outbox of the same form that a message empties); `sources`,
 * the values of the in-neighbours on this node.
 *
 * Products are computed and rounded in double precision.  With `rest`, the value becomes what is left of it, value - sum of what
 * was sent, so that a sum over all agents survives millions of transfers up to unbiased rounding: 1/3 is a little less than a third.
 *
 *     _records_agent.h        the type AgentRecords
 *     _records_arithmetic.h   sums and products of rows
 *     _records_lock.h         records and their locks
 *     _records_block.h        the type Block: memory that other processes map
 *     _records_mutex.h        mutexes of ranks
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "_records_agent.h"
#include "_records_block.h"
#include "_records_mutex.h"

static PyMethodDef functions[] = {
    {"swap", (PyCFunction)(void (*)(void))swap, METH_FASTCALL, "Set a word to another value if it has not changed."},
    {"try_mutex", (PyCFunction)(void (*)(void))try_mutex, METH_FASTCALL, "Take a mutex: -1, or its owner."},
    {"await_mutex", (PyCFunction)(void (*)(void))await_mutex, METH_FASTCALL, "Ask to be handed a mutex."},
    {"leave_mutex", (PyCFunction)(void (*)(void))leave_mutex, METH_FASTCALL, "Do not wait for a mutex any more."},
    {"release_mutex", (PyCFunction)(void (*)(void))release_mutex, METH_FASTCALL, "Hand a mutex on."},
    {"doze_mutex", (PyCFunction)(void (*)(void))doze_mutex, METH_FASTCALL, "Sleep until a mutex is handed over, or briefly."},
    {"held_mutex", (PyCFunction)(void (*)(void))held_mutex, METH_FASTCALL, "Seconds since a mutex was taken."},
    {0},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_records", "Records in the memory of a node.", -1, functions};

PyMODINIT_FUNC PyInit__records(void)
{
    PyObject *made = PyModule_Create(&module);
    if (!made || PyModule_AddIntMacro(made, HEADER) || PyType_Ready(&AgentRecordsType) || PyModule_AddObjectRef(made, "AgentRecords", (PyObject *)&AgentRecordsType)
        || PyType_Ready(&BlockType) || PyModule_AddObjectRef(made, "Block", (PyObject *)&BlockType)) {
        Py_XDECREF(made);
        return NULL;
    }
#ifdef __linux__
    static int prepared;
    if (!prepared && (prepared = 1) && (errno = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child))) {
        Py_DECREF(made);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
#endif
    return made;
}
