/* The type Port: what one agent does with records. */
#ifndef MPIDEC_RECORDS_PORT_H
#define MPIDEC_RECORDS_PORT_H
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

static int row_of(const Port *port, PyObject *given, Py_buffer *view, int flags)
{
    if (PyObject_GetBuffer(given, view, flags))
        return -1;
    if ((size_t)view->len == bytes_of(port))
        return 0;
    PyErr_Format(PyExc_ValueError, "the row has %zd bytes, expected %zu", view->len, bytes_of(port));
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

static PyThreadState *begin(const Port *port) { return bytes_of(port) >= LARGE ? PyEval_SaveThread() : NULL; }

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
static PyObject *port_send(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Port *port = (Port *)self;
    if (nargs != 4)
        return PyErr_Format(PyExc_TypeError, "send takes a row, weights, a factor and whether to add");
    Record *value = value_of(port);
    int add = args[3] == Py_True, scales = args[2] != Py_None;
    double own = scales ? PyFloat_AsDouble(args[2]) : 1.0, total = total_of(args[1], port->nout), w = 0.0;
    if (PyErr_Occurred())
        return NULL;
    Py_buffer view = {0};
    const char *x = value->row;
    if (args[0] != Py_None) {
        if (row_of(port, args[0], &view, PyBUF_SIMPLE))
            return NULL;
        x = view.buf;
    }
    int shares = scales && fabs(own + total - 1.0) < 1e-12, rest = shares && x == value->row;
    char *sent = rest ? scratch_of(port) : NULL;
    double gone = 0.0, weights = 0.0;
    PyThreadState *unlocked = begin(port);
    int locked = scales && !lock(port, value, &unlocked), failed = scales && !locked;
    double p = value->p;
    if (rest && !failed)
        memset(sent, 0, bytes_of(port));
    for (Py_ssize_t k = 0; k < port->nout && !failed; k++)
        if (weight_of(args[1], k, &w) && !(failed = lock(port, out_of(port, k), &unlocked))) {
            write_slot(port, out_of(port, k), x, w, w * p, add, sent);
            unlock(out_of(port, k));
            gone += w * p;
            weights += w;
        }
    if (locked) {
        if (failed)
            own = shares ? 1.0 - weights : 1.0;
        if (rest && port->single)
            leave_f(AS(float, value->row), AS(const float, sent), port->count);
        else if (rest)
            leave_d(AS(double, value->row), AS(const double, sent), port->count);
        else
            scale(port, value->row, own);
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
static PyObject *port_update(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Port *port = (Port *)self;
    if (nargs != 3)
        return PyErr_Format(PyExc_TypeError, "update takes a factor, weights and whether to empty the slots");
    double own = PyFloat_AsDouble(args[0]), w = 0.0;
    total_of(args[1], port->nin);
    if (PyErr_Occurred())
        return NULL;
    int reset = args[2] == Py_True;
    Record *value = value_of(port);
    PyThreadState *unlocked = begin(port);
    int failed = lock(port, value, &unlocked);
    if (failed)
        return end(&unlocked, failed);
    for (Py_ssize_t k = 0; k < port->nin; k++) {
        port->held[k] = !failed && __atomic_load_n(&in_of(port, k)->filled, __ATOMIC_ACQUIRE);
        if (port->held[k] && (failed = lock(port, in_of(port, k), &unlocked)))
            port->held[k] = 0;
    }
    if (!failed) {
        scale(port, value->row, own);
        value->p *= own;
        value->fresh = 1;
    }
    for (Py_ssize_t k = 0; k < port->nin; k++) {
        Record *slot = in_of(port, k);
        if (!port->held[k])
            continue;
        if (!failed && weight_of(args[1], k, &w)) {
            take(port, value->row, slot->row, w);
            value->p += w * slot->p;
            if (reset) {
                memset(slot->row, 0, bytes_of(port));
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
static PyObject *port_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Port *port = (Port *)self;
    Py_ssize_t k;
    if (nargs != 2 || number_of(args[0], port->nin, &k) || !source_of(port, k))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "get takes the number of a neighbour on this node, and a factor");
    double w = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred())
        return NULL;
    Record *source = source_of(port, k), *slot = in_of(port, k);
    PyThreadState *unlocked = begin(port);
    int failed = lock(port, source, &unlocked);
    if (!failed) {
        if (!(failed = lock(port, slot, &unlocked))) {
            write_slot(port, slot, source->row, w, w * source->p, 0, NULL);
            unlock(slot);
        }
        unlock(source);
    }
    return end(&unlocked, failed);
}

/* arrive(k, row, w, p, transfers, replaced): put or add w times a row and p, which a message has brought, into slot k. */
static PyObject *port_arrive(PyObject *self, PyObject *args)
{
    Port *port = (Port *)self;
    PyObject *row;
    Py_ssize_t k;
    double w, p;
    unsigned long long transfers;
    int replaced;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "nOddKp", &k, &row, &w, &p, &transfers, &replaced))
        return NULL;
    if (k < 0 || k >= port->nin)
        return PyErr_Format(PyExc_IndexError, "there is no slot %zd", k);
    if (row_of(port, row, &view, PyBUF_SIMPLE))
        return NULL;
    Record *slot = in_of(port, k);
    PyThreadState *unlocked = begin(port);
    int failed = lock(port, slot, &unlocked);
    if (!failed) {
        write_slot(port, slot, view.buf, w, w * p, !replaced, NULL);
        slot->transfers += transfers - 1;
        unlock(slot);
    }
    relock(&unlocked);
    PyBuffer_Release(&view);
    return end(&unlocked, failed);
}

/* Copy a record into a row; (p, transfers, whether it replaces), and empty it if `emptied`. */
static PyObject *copy_record(Port *port, Record *record, PyObject *into, int emptied)
{
    Py_buffer view;
    if (row_of(port, into, &view, PyBUF_WRITABLE))
        return NULL;
    PyThreadState *unlocked = begin(port);
    double p = 0.0;
    unsigned long long transfers = 0;
    int replaced = 0, failed = lock(port, record, &unlocked);
    if (!failed) {
        memcpy(view.buf, record->row, bytes_of(port));
        p = record->p, transfers = record->transfers, replaced = (int)record->replaced;
        if (emptied) {
            memset(record->row, 0, bytes_of(port));
            record->p = 0.0, record->transfers = record->replaced = record->filled = 0;
        }
        unlock(record);
    }
    relock(&unlocked);
    PyBuffer_Release(&view);
    return failed ? NULL : Py_BuildValue("dKi", p, transfers, replaced);
}

/* leave(k, into): empty the outbox of out-neighbour k into a row: (p, transfers, whether it replaces). */
static PyObject *port_leave(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Port *port = (Port *)self;
    Py_ssize_t k;
    if (nargs != 2 || number_of(args[0], port->nout, &k))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "leave takes a number and a row");
    return copy_record(port, out_of(port, k), args[1], 1);
}

/* read(k, into): copy slot k, or the value for k = -1, into a row: (p, transfers, whether it replaces). */
static PyObject *port_read(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Port *port = (Port *)self;
    Py_ssize_t k;
    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "read takes a number and a row");
    if ((k = PyLong_AsSsize_t(args[0])) == -1 && !PyErr_Occurred())
        return copy_record(port, value_of(port), args[1], 0);
    return number_of(args[0], port->nin, &k) ? NULL : copy_record(port, in_of(port, k), args[1], 0);
}

/* take(k, into): copy slot k into a row and empty it: (p, transfers, whether it replaces). */
static PyObject *port_take(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Port *port = (Port *)self;
    Py_ssize_t k;
    if (nargs != 2 || number_of(args[0], port->nin, &k))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "take takes a number and a row");
    return copy_record(port, in_of(port, k), args[1], 1);
}

/* set(row): the value becomes a row. */
static PyObject *port_set(PyObject *self, PyObject *row)
{
    Port *port = (Port *)self;
    Py_buffer view;
    if (row_of(port, row, &view, PyBUF_SIMPLE))
        return NULL;
    PyThreadState *unlocked = begin(port);
    int failed = lock(port, value_of(port), &unlocked);
    if (!failed) {
        memmove(value_of(port)->row, view.buf, bytes_of(port));
        value_of(port)->fresh = 1;
        unlock(value_of(port));
    }
    relock(&unlocked);
    PyBuffer_Release(&view);
    return end(&unlocked, failed);
}

/* shown(): the 16-bit numbers beside the value are those of its row. */
static PyObject *port_shown(PyObject *self, PyObject *unused)
{
    Port *port = (Port *)self;
    PyThreadState *unlocked = NULL;
    int failed = lock(port, value_of(port), &unlocked);
    if (!failed) {
        value_of(port)->fresh = 0;
        unlock(value_of(port));
    }
    return end(&unlocked, failed);
}

/* look(k, shown, row, into): the value of in-neighbour k on this node, or the own one for k = -1, to `row` if that is newer than the
 * 16-bit numbers `shown` beside it, otherwise those to `into`: (p, whether it is the row). */
static PyObject *port_look(PyObject *self, PyObject *args)
{
    Port *port = (Port *)self;
    Py_ssize_t k;
    Py_buffer shown, row, into;
    if (!PyArg_ParseTuple(args, "ny*w*w*", &k, &shown, &row, &into))
        return NULL;
    PyObject *result = NULL;
    Record *record = k == -1 ? value_of(port) : k >= 0 && k < port->nin ? source_of(port, k) : NULL;
    if (!record || shown.len != into.len || (size_t)row.len != bytes_of(port)) {
        PyErr_SetString(PyExc_ValueError, "the arguments of look do not fit together");
    } else {
        PyThreadState *unlocked = begin(port);
        double p = 0.0;
        int fresh = 0, failed = lock(port, record, &unlocked);
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
static PyObject *port_fill(PyObject *self, PyObject *unused)
{
    Port *port = (Port *)self;
    for (Py_ssize_t k = 0; k < port->nin; k++) {
        memcpy(in_of(port, k)->row, value_of(port)->row, bytes_of(port));
        in_of(port, k)->filled = 1;
    }
    Py_RETURN_NONE;
}

static PyObject *port_versions(PyObject *self, PyObject *unused)
{
    Port *port = (Port *)self;
    PyObject *list = PyList_New(port->nin);
    for (Py_ssize_t k = 0; list && k < port->nin; k++)
        PyList_SET_ITEM(list, k, PyLong_FromUnsignedLongLong(__atomic_load_n(&in_of(port, k)->transfers, __ATOMIC_ACQUIRE)));
    return list;
}

/* waiting(k): the transfers in the outbox of out-neighbour k. */
static PyObject *port_waiting(PyObject *self, PyObject *number)
{
    Port *port = (Port *)self;
    Py_ssize_t k;
    return number_of(number, port->nout, &k) ? NULL : PyLong_FromUnsignedLongLong(out_of(port, k)->transfers);
}

static PyObject *port_get_p(PyObject *self, void *unused) { return PyFloat_FromDouble(value_of((Port *)self)->p); }

static int port_set_p(PyObject *self, PyObject *given, void *unused)
{
    Port *port = (Port *)self;
    double p = given ? PyFloat_AsDouble(given) : 0.0;
    if (PyErr_Occurred())
        return -1;
    PyThreadState *unlocked = NULL;
    if (lock(port, value_of(port), &unlocked)) {
        relock(&unlocked);
        return -1;
    }
    value_of(port)->p = p;
    unlock(value_of(port));
    relock(&unlocked);
    return 0;
}

/* Port(me, count, single, patience, value, scratch, ins, outs, sources): records are writable buffers; a source may be None. */
static PyObject *port_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    unsigned long long me;
    Py_ssize_t count;
    int single;
    double patience;
    PyObject *value, *scratch, *ins, *outs, *sources;
    if (!PyArg_ParseTuple(args, "KnpdOOO!O!O!", &me, &count, &single, &patience, &value, &scratch, &PyList_Type, &ins, &PyList_Type,
                          &outs, &PyList_Type, &sources))
        return NULL;
    Port *port = (Port *)type->tp_alloc(type, 0);
    if (!port)
        return NULL;
    port->me = me, port->count = count, port->single = single, port->patience = patience;
    port->nin = PyList_GET_SIZE(ins), port->nout = PyList_GET_SIZE(outs);
    Py_ssize_t all = 2 + 2 * port->nin + port->nout;
    port->buffers = PyMem_Calloc(all, sizeof *port->buffers);
    port->held = PyMem_Calloc(port->nin, 1);
    if (!port->buffers || !port->held || PyList_GET_SIZE(sources) != port->nin) {
        Py_DECREF(port);
        return PyErr_Format(PyExc_ValueError, "the arguments of Port do not fit together");
    }
    for (Py_ssize_t k = 0; k < all; k++) {
        PyObject *record = k == 0 ? value : k == 1 ? scratch : k < 2 + port->nin ? PyList_GET_ITEM(ins, k - 2)
                           : k < 2 + port->nin + port->nout ? PyList_GET_ITEM(outs, k - 2 - port->nin)
                                                            : PyList_GET_ITEM(sources, k - 2 - port->nin - port->nout);
        if (record == Py_None && k >= 2 + port->nin + port->nout)
            continue;
        size_t least = bytes_of(port) + (k == 1 ? 0 : HEADER);
        if (PyObject_GetBuffer(record, &port->buffers[k], PyBUF_WRITABLE) || (size_t)port->buffers[k].len < least
            || (uintptr_t)port->buffers[k].buf % HEADER) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "a record is too short, or not aligned");
            Py_DECREF(port);
            return NULL;
        }
    }
    return (PyObject *)port;
}

static void port_dealloc(PyObject *self)
{
    Port *port = (Port *)self;
    for (Py_ssize_t k = 0; port->buffers && k < 2 + 2 * port->nin + port->nout; k++)
        if (port->buffers[k].obj)
            PyBuffer_Release(&port->buffers[k]);
    PyMem_Free(port->buffers);
    PyMem_Free(port->held);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef port_methods[] = {
    {"send", (PyCFunction)(void (*)(void))port_send, METH_FASTCALL, "Write to slots of the out-neighbours."},
    {"update", (PyCFunction)(void (*)(void))port_update, METH_FASTCALL, "Combine the value and the slots."},
    {"get", (PyCFunction)(void (*)(void))port_get, METH_FASTCALL, "Read the value of an in-neighbour into its slot."},
    {"arrive", port_arrive, METH_VARARGS, "Write what a message has brought to a slot."},
    {"leave", (PyCFunction)(void (*)(void))port_leave, METH_FASTCALL, "Empty an outbox."},
    {"read", (PyCFunction)(void (*)(void))port_read, METH_FASTCALL, "Copy a slot, or the value."},
    {"take", (PyCFunction)(void (*)(void))port_take, METH_FASTCALL, "Copy a slot and empty it."},
    {"set", port_set, METH_O, "Set the value."},
    {"shown", port_shown, METH_NOARGS, "The 16-bit numbers beside the value are those of its row."},
    {"look", port_look, METH_VARARGS, "Copy a value of 16-bit numbers."},
    {"fill", port_fill, METH_NOARGS, "Copy the value into all slots."},
    {"versions", port_versions, METH_NOARGS, "The transfers into each slot."},
    {"waiting", port_waiting, METH_O, "The transfers in an outbox."},
    {0},
};
static PyGetSetDef port_properties[] = {{"p", port_get_p, port_set_p, "The push-sum weight of the value.", NULL}, {0}};
static PyTypeObject PortType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "mpidec.comm.rma._records.Port",
    .tp_doc = "All that one agent does with records.",
    .tp_basicsize = sizeof(Port),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = port_new,
    .tp_dealloc = port_dealloc,
    .tp_methods = port_methods,
    .tp_getset = port_properties,
};
#endif
