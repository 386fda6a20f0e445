/* Events of a timeline: a call is noted down in about 0.1 us, and a thread that never holds Python's lock writes them as text.
 *
 * A Log is a ring of events: who holds Python's lock adds to it, and who holds `lock` writes them to the file.  A kind, a bytes object,
 * is all the text of an event but its thread, times and number; it lives until its place in the ring is used again.  The same without
 * a compiler is events_in_python.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 1 << 12, LANES = 256, TEXT = 1 << 16 };

typedef struct {
    PyObject *kind;
    unsigned long thread;
    int64_t begin, end, number;                                 /* nanoseconds; -1: without a number */
} Event;

typedef struct {
    PyObject_HEAD
    int file, rank, error, lanes;                               /* error: what has ended the writing */
    _Atomic int stopped;
    PyThread_type_lock lock;
    _Atomic uint64_t added, written;
    unsigned long lane[LANES];                                  /* the thread of each */
    size_t used;
    char text[TEXT];
    Event events[EVENTS];
} Log;

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Writing: with `lock`, perhaps without Python's lock. */

static void send(Log *log)
{
    for (size_t sent = 0; sent < log->used && !log->error;) {
        ssize_t some = write(log->file, log->text + sent, log->used - sent);
        if (some >= 0)
            sent += some;
        else if (errno != EINTR)
            log->error = errno, log->stopped = 1;
    }
    log->used = 0;
}

static void put(Log *log, const char *from, size_t length)
{
    while (length) {
        size_t some = length < TEXT - log->used ? length : TEXT - log->used;
        memcpy(log->text + log->used, from, some);
        log->used += some, from += some, length -= some;
        if (log->used == TEXT)
            send(log);
    }
}

static char *copied(char *to, const char *words)
{
    size_t length = strlen(words);
    memcpy(to, words, length);
    return to + length;
}

static char *digits(char *to, int64_t number)
{
    char made[20];
    int first = 20;
    do
        made[--first] = '0' + number % 10;
    while (number /= 10);
    memcpy(to, made + first, 20 - first);
    return to + 20 - first;
}

static int lane_of(Log *log, unsigned long thread)
{
    int lane = 0;
    while (lane < log->lanes && log->lane[lane] != thread)
        lane++;
    if (lane == log->lanes && lane < LANES) {
        char line[128];
        log->lane[log->lanes++] = thread;
        put(log, line, snprintf(line, sizeof line, "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": %d, "
                                "\"args\": {\"name\": \"thread %d\"}},\n", log->rank, lane, lane));
    }
    return lane;
}

/* Write all events so far, and then `more`. */
static void write_out(Log *log, const char *more, size_t length)
{
    PyThread_acquire_lock(log->lock, WAIT_LOCK);
    uint64_t until = atomic_load_explicit(&log->added, memory_order_acquire);
    for (uint64_t at = log->written; at < until && !log->stopped; at++) {
        const Event *event = &log->events[at % EVENTS];
        char times[128], *to = digits(copied(times, "{\"tid\":"), lane_of(log, event->thread));
        to = digits(copied(to, ",\"ts\":"), event->begin / 1000);
        to = digits(copied(to, ",\"dur\":"), event->end / 1000 - event->begin / 1000);
        put(log, times, to - times);
        put(log, PyBytes_AS_STRING(event->kind), PyBytes_GET_SIZE(event->kind));
        to = event->number < 0 ? times : digits(times, event->number);
        to = copied(to, "}},\n");
        put(log, times, to - times);
    }
    put(log, more, log->stopped ? 0 : length);
    send(log);
    atomic_store_explicit(&log->written, until, memory_order_release);
    PyThread_release_lock(log->lock);
}

/* Adding: with Python's lock. */

static void note(Log *log, PyObject *kind, int64_t begin, int64_t end, int64_t number)
{
    while (log->added - atomic_load_explicit(&log->written, memory_order_acquire) == EVENTS && !log->stopped) {
        Py_BEGIN_ALLOW_THREADS
        write_out(log, "", 0);
        Py_END_ALLOW_THREADS
    }
    if (log->stopped)
        return;
    Event *event = &log->events[log->added % EVENTS];
    PyObject *before = event->kind;
    *event = (Event){Py_NewRef(kind), PyThread_get_thread_ident(), begin, end, number};
    atomic_store_explicit(&log->added, log->added + 1, memory_order_release);
    Py_XDECREF(before);
}

/* Log(file, rank): of a file descriptor, which it closes. */
static PyObject *log_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    int file, rank;
    if (!PyArg_ParseTuple(args, "ii", &file, &rank))
        return NULL;
    Log *log = (Log *)type->tp_alloc(type, 0);
    if (!log)
        return NULL;
    log->file = file, log->rank = rank;
    log->lane[log->lanes++] = PyThread_get_thread_ident();
    if (!(log->lock = PyThread_allocate_lock())) {
        Py_DECREF(log);
        return PyErr_NoMemory();
    }
    return (PyObject *)log;
}

static void log_dealloc(PyObject *self)
{
    Log *log = (Log *)self;
    for (int i = 0; i < EVENTS; i++)
        Py_XDECREF(log->events[i].kind);
    if (log->lock)
        PyThread_free_lock(log->lock);
    close(log->file);
    Py_TYPE(self)->tp_free(self);
}

/* add(kind, begin, end, number) */
static PyObject *log_add(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "add takes a kind, two times and a number");
        return NULL;
    }
    int64_t begin = PyLong_AsLongLong(args[1]), end = PyLong_AsLongLong(args[2]), number = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred())
        return NULL;
    note((Log *)self, args[0], begin, end, number);
    Py_RETURN_NONE;
}

/* write(text): all events so far, and then the text. */
static PyObject *log_write(PyObject *self, PyObject *text)
{
    if (!PyBytes_Check(text)) {
        PyErr_SetString(PyExc_TypeError, "write takes bytes");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    write_out((Log *)self, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* keep_writing(pause): until the log is stopped. */
static PyObject *log_keep_writing(PyObject *self, PyObject *number)
{
    Log *log = (Log *)self;
    double seconds = PyFloat_AsDouble(number);
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    while (!log->stopped) {
        nanosleep(&(struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (time_t)seconds))}, NULL);
        if (log->added != log->written)
            write_out(log, "", 0);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* stop(): take no more events; without the lock, which a forked child never gets. */
static PyObject *log_stop(PyObject *self, PyObject *unused)
{
    ((Log *)self)->stopped = 1;
    Py_RETURN_NONE;
}

/* A function whose calls are events, unless it returns None, or a larger call is under way. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *log, *function, *start, *kind, *numbers, *busy;
} Timed;

static PyObject *timed_call(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    Timed *t = (Timed *)self;
    Log *log = (Log *)t->log;
    if (PyByteArray_AS_STRING(t->busy)[0])
        return PyObject_Vectorcall(t->function, args, count, names);
    int64_t begin = now();
    PyObject *result = PyObject_Vectorcall(t->function, args, count, names);
    if (!result || result == Py_None)
        return result;
    int64_t end = now();
    PyObject *next = PyIter_Next(t->numbers);
    int64_t number = next ? PyLong_AsLongLong(next) : 0;
    Py_XDECREF(next);
    if (PyErr_Occurred()) {
        Py_DECREF(result);
        return NULL;
    }
    if (t->start != Py_None)
        note(log, t->start, begin, begin, number);
    note(log, t->kind, begin, end, number);
    return result;
}

static void timed_dealloc(PyObject *self)
{
    Timed *t = (Timed *)self;
    for (PyObject **held = &t->log; held <= &t->busy; held++)
        Py_XDECREF(*held);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject TimedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.comm.timeline._events.Timed",
    .tp_basicsize = sizeof(Timed),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "A function whose calls are events.",
    .tp_dealloc = timed_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Timed, call),
};

/* timed(function, start, kind, numbers, busy): start is None, or the kind of an event at the begin of each call. */
static PyObject *log_timed(PyObject *self, PyObject *args)
{
    PyObject *function, *start, *kind, *numbers, *busy;
    if (!PyArg_ParseTuple(args, "OOSOY", &function, &start, &kind, &numbers, &busy))
        return NULL;
    if (!PyByteArray_GET_SIZE(busy) || !PyIter_Check(numbers) || (start != Py_None && !PyBytes_Check(start))) {
        PyErr_SetString(PyExc_TypeError, "timed takes a function, two kinds, an iterator of numbers, and a byte");
        return NULL;
    }
    Timed *t = (Timed *)TimedType.tp_alloc(&TimedType, 0);
    if (!t)
        return NULL;
    t->call = timed_call;
    t->log = Py_NewRef(self), t->function = Py_NewRef(function), t->start = Py_NewRef(start);
    t->kind = Py_NewRef(kind), t->numbers = Py_NewRef(numbers), t->busy = Py_NewRef(busy);
    return (PyObject *)t;
}

static PyMethodDef log_methods[] = {
    {"add", (PyCFunction)(void (*)(void))log_add, METH_FASTCALL, "Add an event of this thread."},
    {"write", log_write, METH_O, "Write all events so far, and a text."},
    {"keep_writing", log_keep_writing, METH_O, "Write every so many seconds until the log is stopped."},
    {"stop", log_stop, METH_NOARGS, "Take no more events."},
    {"timed", log_timed, METH_VARARGS, "A function whose calls are events."},
    {0},
};
static PyMemberDef log_members[] = {
    {"error", T_INT, offsetof(Log, error), READONLY, "The error number that has ended the writing, or 0."},
    {0},
};
static PyTypeObject LogType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpidec.comm.timeline._events.Log",
    .tp_basicsize = sizeof(Log),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Events, and the file that they are written to.",
    .tp_new = log_new,
    .tp_dealloc = log_dealloc,
    .tp_methods = log_methods,
    .tp_members = log_members,
};

/* clock(): nanoseconds. */
static PyObject *read_clock(PyObject *self, PyObject *unused) { return PyLong_FromLongLong(now()); }

static PyMethodDef functions[] = {
    {"clock", read_clock, METH_NOARGS, "Nanoseconds of the monotonic clock."},
    {0},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_events", "Events of a timeline.", -1, functions};

PyMODINIT_FUNC PyInit__events(void)
{
    PyObject *made = PyType_Ready(&TimedType) ? NULL : PyModule_Create(&module);
    if (made && PyModule_AddType(made, &LogType))
        Py_CLEAR(made);
    return made;
}
