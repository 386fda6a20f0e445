/* The type AgentRecords: what one agent does with records. */
#ifndef MPIDEC_RECORDS_AGENT_H
#define MPIDEC_RECORDS_AGENT_H
#include "_records_arithmetic.h"

/* The k-th entry of a list of weights, which are floats or None: whether there is one; -1 with an exception. */
static int weight_of(PyObject *weights, Py_ssize_t k, double *weight)
{
    PyObject *entry = PyList_GET_ITEM(weights, k);
    if (entry == Py_None)
        return 0;
    if (!PyFloat_Check(entry)) {
        PyErr_SetString(PyExc_TypeError, "weights are floats or None");
        return -1;
    }
    *weight = PyFloat_AS_DOUBLE(entry);
    return 1;
}

/* Read a list of `count` weights; the sum of those given, NaN with an exception. */
static double total_of(PyObject *weights, Py_ssize_t count)
{
    double total = 0.0, weight;
    if (!PyList_Check(weights) || PyList_GET_SIZE(weights) != count) {
        PyErr_Format(PyExc_TypeError, "expected a list of %zd weights", count);
        return NAN;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        int given = weight_of(weights, k, &weight);
        if (given < 0)
            return NAN;
        total += given ? weight : 0.0;
    }
    return total;
}

static int row_of(const AgentRecords *agent, PyObject *given, Py_buffer *view, int flags)
{
    if (PyObject_GetBuffer(given, view, flags))
        return -1;
    if ((size_t)view->len == bytes_of(agent))
        return 0;
    PyErr_Format(PyExc_ValueError, "the row has %zd bytes, expected %zu", view->len, bytes_of(agent));
    PyBuffer_Release(view);
    return -1;
}

static int number_of(PyObject *given, Py_ssize_t count, Py_ssize_t *number)
{
    *number = PyLong_AsSsize_t(given);
    if (PyErr_Occurred())
        return -1;
    if (*number >= 0 && *number < count)
        return 0;
    PyErr_Format(PyExc_IndexError, "there is no record %zd", *number);
    return -1;
}

static PyThreadState *begin(const AgentRecords *agent) { return bytes_of(agent) >= LARGE ? PyEval_SaveThread() : NULL; }

static PyObject *end(PyThreadState **unlocked, int failed)
{
    relock(unlocked);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* send(x, weights, own, add): slot_k = w_k x, or slot_k + w_k x, for every weight that is not None; x: a row, or None for the value.
 * own: None, or the factor of the value afterwards; if x is the value, and the factors sum to one, the value becomes the rest.
 *
 * The value is locked first: then nothing that can fail comes after the first slot but the next one.  After a failure the value
 * has lost what was sent, if the factors sum to one, and nothing otherwise. */
static PyObject *agent_send(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    AgentRecords *agent = (AgentRecords *)self;
    if (nargs != 4)
        return PyErr_Format(PyExc_TypeError, "send takes a row, weights, a factor and whether to add");
    Record *value = value_of(agent);
    int add = args[3] == Py_True, scales = args[2] != Py_None;
    double own = scales ? PyFloat_AsDouble(args[2]) : 1.0, total = total_of(args[1], agent->nout), w = 0.0;
    if (PyErr_Occurred())
        return NULL;
    Py_buffer view = {0};
    const char *x = value->row;
    if (args[0] != Py_None) {
        if (row_of(agent, args[0], &view, PyBUF_SIMPLE))
            return NULL;
        x = view.buf;
    }
    int shares = scales && fabs(own + total - 1.0) < 1e-12, rest = shares && x == value->row;
    char *sent = rest ? scratch_of(agent) : NULL;
    double gone = 0.0, weights = 0.0;
    PyThreadState *unlocked = begin(agent);
    int locked = scales && !lock(agent, value, &unlocked), failed = scales && !locked;
    double p = value->p;
    if (rest && !failed)
        memset(sent, 0, bytes_of(agent));
    for (Py_ssize_t k = 0; k < agent->nout && !failed; k++)
        if (weight_of(args[1], k, &w) && !(failed = lock(agent, out_of(agent, k), &unlocked))) {
            write_slot(agent, out_of(agent, k), x, w, w * p, add, sent);
            unlock(out_of(agent, k));
            gone += w * p;
            weights += w;
        }
    if (locked) {
        if (failed)
            own = shares ? 1.0 - weights : 1.0;
        if (rest && agent->single)
            leave_f(AS(float, value->row), AS(const float, sent), agent->count);
        else if (rest)
            leave_d(AS(double, value->row), AS(const double, sent), agent->count);
        else
            scale(agent, value->row, own);
        value->p = rest ? p - gone : p * own;
        value->fresh = 1;
        unlock(value);
    }
    relock(&unlocked);
    if (view.obj)
        PyBuffer_Release(&view);
    return end(&unlocked, failed);
}

/* update(own, weights, reset): value = own value + sum of w_k slot_k over the weights that are not None; all of it, or, if a lock
 * cannot be had, nothing. */
static PyObject *agent_update(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    AgentRecords *agent = (AgentRecords *)self;
    if (nargs != 3)
        return PyErr_Format(PyExc_TypeError, "update takes a factor, weights and whether to empty the slots");
    double own = PyFloat_AsDouble(args[0]), w = 0.0;
    total_of(args[1], agent->nin);
    if (PyErr_Occurred())
        return NULL;
    int reset = args[2] == Py_True;
    Record *value = value_of(agent);
    PyThreadState *unlocked = begin(agent);
    int failed = lock(agent, value, &unlocked);
    if (failed)
        return end(&unlocked, failed);
    for (Py_ssize_t k = 0; k < agent->nin; k++) {
        agent->held[k] = !failed && __atomic_load_n(&in_of(agent, k)->filled, __ATOMIC_ACQUIRE);
        if (agent->held[k] && (failed = lock(agent, in_of(agent, k), &unlocked)))
            agent->held[k] = 0;
    }
    if (!failed) {
        scale(agent, value->row, own);
        value->p *= own;
        value->fresh = 1;
    }
    for (Py_ssize_t k = 0; k < agent->nin; k++) {
        Record *slot = in_of(agent, k);
        if (!agent->held[k])
            continue;
        if (!failed && weight_of(args[1], k, &w)) {
            take(agent, value->row, slot->row, w);
            value->p += w * slot->p;
            if (reset) {
                memset(slot->row, 0, bytes_of(agent));
                slot->p = 0.0, slot->replaced = slot->filled = 0;
            }
        }
        if (!failed)
            slot->transfers = 0;
        unlock(slot);
    }
    unlock(value);
    return end(&unlocked, failed);
}

/* get(k, w): slot_k = w times the value of that neighbour, which is on this node. */
static PyObject *agent_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    AgentRecords *agent = (AgentRecords *)self;
    Py_ssize_t k;
    if (nargs != 2 || number_of(args[0], agent->nin, &k) || !source_of(agent, k))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "get takes the number of a neighbour on this node, and a factor");
    double w = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred())
        return NULL;
    Record *source = source_of(agent, k), *slot = in_of(agent, k);
    PyThreadState *unlocked = begin(agent);
    int failed = lock(agent, source, &unlocked);
    if (!failed) {
        if (!(failed = lock(agent, slot, &unlocked))) {
            write_slot(agent, slot, source->row, w, w * source->p, 0, NULL);
            unlock(slot);
        }
        unlock(source);
    }
    return end(&unlocked, failed);
}

/* deliver(k, row, w, p, transfers, replaced): put or add w times a row and p, which a message has brought, into slot k. */
static PyObject *agent_deliver(PyObject *self, PyObject *args)
{
    AgentRecords *agent = (AgentRecords *)self;
    PyObject *row;
    Py_ssize_t k;
    double w, p;
    unsigned long long transfers;
    int replaced;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "nOddKp", &k, &row, &w, &p, &transfers, &replaced))
        return NULL;
    if (k < 0 || k >= agent->nin)
        return PyErr_Format(PyExc_IndexError, "there is no slot %zd", k);
    if (row_of(agent, row, &view, PyBUF_SIMPLE))
        return NULL;
    Record *slot = in_of(agent, k);
    PyThreadState *unlocked = begin(agent);
    int failed = lock(agent, slot, &unlocked);
    if (!failed) {
        write_slot(agent, slot, view.buf, w, w * p, !replaced, NULL);
        slot->transfers += transfers - 1;
        unlock(slot);
    }
    relock(&unlocked);
    PyBuffer_Release(&view);
    return end(&unlocked, failed);
}

/* Copy a record into a row; (p, transfers, whether it replaces), and empty it if `emptied`. */
static PyObject *copy_record(AgentRecords *agent, Record *record, PyObject *into, int emptied)
{
    Py_buffer view;
    if (row_of(agent, into, &view, PyBUF_WRITABLE))
        return NULL;
    PyThreadState *unlocked = begin(agent);
    double p = 0.0;
    unsigned long long transfers = 0;
    int replaced = 0, failed = lock(agent, record, &unlocked);
    if (!failed) {
        memcpy(view.buf, record->row, bytes_of(agent));
        p = record->p, transfers = record->transfers, replaced = (int)record->replaced;
        if (emptied) {
            memset(record->row, 0, bytes_of(agent));
            record->p = 0.0, record->transfers = record->replaced = record->filled = 0;
        }
        unlock(record);
    }
    relock(&unlocked);
    PyBuffer_Release(&view);
    return failed ? NULL : Py_BuildValue("dKi", p, transfers, replaced);
}

/* pop_outbox(k, into): empty the outbox of out-neighbour k into a row: (p, transfers, whether it replaces). */
static PyObject *agent_pop_outbox(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    AgentRecords *agent = (AgentRecords *)self;
    Py_ssize_t k;
    if (nargs != 2 || number_of(args[0], agent->nout, &k))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "pop_outbox takes a number and a row");
    return copy_record(agent, out_of(agent, k), args[1], 1);
}

/* read(k, into): copy slot k, or the value for k = -1, into a row: (p, transfers, whether it replaces). */
static PyObject *agent_read(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    AgentRecords *agent = (AgentRecords *)self;
    Py_ssize_t k;
    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "read takes a number and a row");
    if ((k = PyLong_AsSsize_t(args[0])) == -1 && !PyErr_Occurred())
        return copy_record(agent, value_of(agent), args[1], 0);
    return number_of(args[0], agent->nin, &k) ? NULL : copy_record(agent, in_of(agent, k), args[1], 0);
}

/* take(k, into): copy slot k into a row and empty it: (p, transfers, whether it replaces). */
static PyObject *agent_take(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    AgentRecords *agent = (AgentRecords *)self;
    Py_ssize_t k;
    if (nargs != 2 || number_of(args[0], agent->nin, &k))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "take takes a number and a row");
    return copy_record(agent, in_of(agent, k), args[1], 1);
}

/* set(row): the value becomes a row. */
static PyObject *agent_set(PyObject *self, PyObject *row)
{
    AgentRecords *agent = (AgentRecords *)self;
    Py_buffer view;
    if (row_of(agent, row, &view, PyBUF_SIMPLE))
        return NULL;
    PyThreadState *unlocked = begin(agent);
    int failed = lock(agent, value_of(agent), &unlocked);
    if (!failed) {
        memmove(value_of(agent)->row, view.buf, bytes_of(agent));
        value_of(agent)->fresh = 1;
        unlock(value_of(agent));
    }
    relock(&unlocked);
    PyBuffer_Release(&view);
    return end(&unlocked, failed);
}

/* shown(): the 16-bit numbers beside the value are those of its row. */
static PyObject *agent_shown(PyObject *self, PyObject *unused)
{
    AgentRecords *agent = (AgentRecords *)self;
    PyThreadState *unlocked = NULL;
    int failed = lock(agent, value_of(agent), &unlocked);
    if (!failed) {
        value_of(agent)->fresh = 0;
        unlock(value_of(agent));
    }
    return end(&unlocked, failed);
}

/* look(k, shown, row, into): the value of in-neighbour k on this node, or the own one for k = -1, to `row` if that is newer than the
 * 16-bit numbers `shown` beside it, otherwise those to `into`: (p, whether it is the row). */
static PyObject *agent_look(PyObject *self, PyObject *args)
{
    AgentRecords *agent = (AgentRecords *)self;
    Py_ssize_t k;
    Py_buffer shown, row, into;
    if (!PyArg_ParseTuple(args, "ny*w*w*", &k, &shown, &row, &into))
        return NULL;
    PyObject *result = NULL;
    Record *record = k == -1 ? value_of(agent) : k >= 0 && k < agent->nin ? source_of(agent, k) : NULL;
    if (!record || shown.len != into.len || (size_t)row.len != bytes_of(agent)) {
        PyErr_SetString(PyExc_ValueError, "the arguments of look do not fit together");
    } else {
        PyThreadState *unlocked = begin(agent);
        double p = 0.0;
        int fresh = 0, failed = lock(agent, record, &unlocked);
        if (!failed) {
            p = record->p, fresh = (int)record->fresh;
            memcpy(fresh ? row.buf : into.buf, fresh ? record->row : (char *)shown.buf, fresh ? row.len : into.len);
            unlock(record);
        }
        relock(&unlocked);
        if (!failed)
            result = Py_BuildValue("di", p, fresh);
    }
    PyBuffer_Release(&shown);
    PyBuffer_Release(&row);
    PyBuffer_Release(&into);
    return result;
}

/* fill(): every slot becomes a copy of the value, with p 0. */
static PyObject *agent_fill(PyObject *self, PyObject *unused)
{
    AgentRecords *agent = (AgentRecords *)self;
    for (Py_ssize_t k = 0; k < agent->nin; k++) {
        memcpy(in_of(agent, k)->row, value_of(agent)->row, bytes_of(agent));
        in_of(agent, k)->filled = 1;
    }
    Py_RETURN_NONE;
}

static PyObject *agent_versions(PyObject *self, PyObject *unused)
{
    AgentRecords *agent = (AgentRecords *)self;
    PyObject *list = PyList_New(agent->nin);
    for (Py_ssize_t k = 0; list && k < agent->nin; k++)
        PyList_SET_ITEM(list, k, PyLong_FromUnsignedLongLong(__atomic_load_n(&in_of(agent, k)->transfers, __ATOMIC_ACQUIRE)));
    return list;
}

/* unread(k): the transfers in the outbox of out-neighbour k. */
static PyObject *agent_unread(PyObject *self, PyObject *number)
{
    AgentRecords *agent = (AgentRecords *)self;
    Py_ssize_t k;
    return number_of(number, agent->nout, &k) ? NULL : PyLong_FromUnsignedLongLong(out_of(agent, k)->transfers);
}

static PyObject *agent_get_p(PyObject *self, void *unused) { return PyFloat_FromDouble(value_of((AgentRecords *)self)->p); }

static int agent_set_p(PyObject *self, PyObject *given, void *unused)
{
    AgentRecords *agent = (AgentRecords *)self;
    double p = given ? PyFloat_AsDouble(given) : 0.0;
    if (PyErr_Occurred())
        return -1;
    PyThreadState *unlocked = NULL;
    if (lock(agent, value_of(agent), &unlocked)) {
        relock(&unlocked);
        return -1;
    }
    value_of(agent)->p = p;
    unlock(value_of(agent));
    relock(&unlocked);
    return 0;
}

/* AgentRecords(me, count, single, patience, value, scratch, ins, outs, sources): records are writable buffers; a source may be None. */
static PyObject *agent_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    unsigned long long me;
    Py_ssize_t count;
    int single;
    double patience;
    PyObject *value, *scratch, *ins, *outs, *sources;
    if (!PyArg_ParseTuple(args, "KnpdOOO!O!O!", &me, &count, &single, &patience, &value, &scratch, &PyList_Type, &ins, &PyList_Type,
                          &outs, &PyList_Type, &sources))
        return NULL;
    AgentRecords *agent = (AgentRecords *)type->tp_alloc(type, 0);
    if (!agent)
        return NULL;
    agent->me = me, agent->count = count, agent->single = single, agent->patience = patience;
    agent->nin = PyList_GET_SIZE(ins), agent->nout = PyList_GET_SIZE(outs);
    Py_ssize_t all = 2 + 2 * agent->nin + agent->nout;
    agent->buffers = PyMem_Calloc(all, sizeof *agent->buffers);
    agent->held = PyMem_Calloc(agent->nin, 1);
    if (!agent->buffers || !agent->held || PyList_GET_SIZE(sources) != agent->nin) {
        Py_DECREF(agent);
        return PyErr_Format(PyExc_ValueError, "the arguments of AgentRecords do not fit together");
    }
    for (Py_ssize_t k = 0; k < all; k++) {
        PyObject *record = k == 0 ? value : k == 1 ? scratch : k < 2 + agent->nin ? PyList_GET_ITEM(ins, k - 2)
                           : k < 2 + agent->nin + agent->nout ? PyList_GET_ITEM(outs, k - 2 - agent->nin)
                                                            : PyList_GET_ITEM(sources, k - 2 - agent->nin - agent->nout);
        if (record == Py_None && k >= 2 + agent->nin + agent->nout)
            continue;
        size_t least = bytes_of(agent) + (k == 1 ? 0 : HEADER);
        if (PyObject_GetBuffer(record, &agent->buffers[k], PyBUF_WRITABLE) || (size_t)agent->buffers[k].len < least
            || (uintptr_t)agent->buffers[k].buf % HEADER) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "a record is too short, or not aligned");
            Py_DECREF(agent);
            return NULL;
        }
    }
    return (PyObject *)agent;
}

static void agent_dealloc(PyObject *self)
{
    AgentRecords *agent = (AgentRecords *)self;
    for (Py_ssize_t k = 0; agent->buffers && k < 2 + 2 * agent->nin + agent->nout; k++)
        if (agent->buffers[k].obj)
            PyBuffer_Release(&agent->buffers[k]);
    PyMem_Free(agent->buffers);
    PyMem_Free(agent->held);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef agent_methods[] = {
    {"send", (PyCFunction)(void (*)(void))agent_send, METH_FASTCALL, "Write to slots of the out-neighbours."},
    {"update", (PyCFunction)(void (*)(void))agent_update, METH_FASTCALL, "Combine the value and the slots."},
    {"get", (PyCFunction)(void (*)(void))agent_get, METH_FASTCALL, "Read the value of an in-neighbour into its slot."},
    {"deliver", agent_deliver, METH_VARARGS, "Write what a message has brought to a slot."},
    {"pop_outbox", (PyCFunction)(void (*)(void))agent_pop_outbox, METH_FASTCALL, "Empty an outbox."},
    {"read", (PyCFunction)(void (*)(void))agent_read, METH_FASTCALL, "Copy a slot, or the value."},
    {"take", (PyCFunction)(void (*)(void))agent_take, METH_FASTCALL, "Copy a slot and empty it."},
    {"set", agent_set, METH_O, "Set the value."},
    {"shown", agent_shown, METH_NOARGS, "The 16-bit numbers beside the value are those of its row."},
    {"look", agent_look, METH_VARARGS, "Copy a value of 16-bit numbers."},
    {"fill", agent_fill, METH_NOARGS, "Copy the value into all slots."},
    {"versions", agent_versions, METH_NOARGS, "The transfers into each slot."},
    {"unread", agent_unread, METH_O, "The transfers in an outbox."},
    {0},
};
static PyGetSetDef agent_properties[] = {{"p", agent_get_p, agent_set_p, "The push-sum weight of the value.", NULL}, {0}};
static PyTypeObject AgentRecordsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "mpidec.comm.rma._records.AgentRecords",
    .tp_doc = "All that one agent does with records.",
    .tp_basicsize = sizeof(AgentRecords),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = agent_new,
    .tp_dealloc = agent_dealloc,
    .tp_methods = agent_methods,
    .tp_getset = agent_properties,
};
#endif
