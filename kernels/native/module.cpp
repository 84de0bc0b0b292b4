// The module sparloom._native: the path of a call from Python to a kernel, in one C++ function.
//
//   objects.hpp   Python objects, views of arrays and tensors
//   results.hpp   new arrays and tensors, whose memory is reused
//   patterns.hpp  matrices: as passed, as known, as prepared
//   calls.hpp     one call of a sparse operation
//   layers.hpp    one layer of a graph network, and its gradients
//
// It uses the limited API of Python 3.11 and knows no kernel: Python loads the libraries for this processor and passes
// the addresses of their functions (platforms/cpu_kernels/core.py). sparloom.jit.prebuild compiles it.

#include "layers.hpp"

#ifndef SPARLOOM_SOURCES  // a digest of these files, by which Python tells whether they have changed since
#error "run `pip install -e .` or sparloom.warmup(), which define SPARLOOM_SOURCES"
#endif

namespace sparloom::native {
namespace {

PyObject* given(PyObject* object) { return object == Py_None ? nullptr : object; }

// Sets the options that every operation has; false: Python checks them.
bool set_options(Request& request, PyObject* out, PyObject* threads, PyObject* values, PyObject* tensors) {
    request.out = given(out);
    request.values = given(values);
    request.home = tensors == Py_True ? Home::kTorch : Home::kNumpy;
    if (threads == Py_None) return true;
    if (Py_TYPE(threads) != &PyLong_Type) return false;
    const long count = PyLong_AsLong(threads);
    if (count == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
    request.threads = static_cast<int32_t>(count);
    return count > 0 && count < INT32_MAX;  // others have no limits set
}

// spmm(matrix, dense, reduce, out, threads, values, tensors, argmax)
PyObject* spmm(PyObject*, PyObject* const* a, Py_ssize_t count) {
    static PyObject* const kSum = name_of("sum");
    static PyObject* const kMean = name_of("mean");
    static PyObject* const kMax = name_of("max");
    if (!expects(count, 8)) return nullptr;
    Request request{a[2] == kMax ? kSpmmMax : kSpmm, a[0], {a[1]}, 1};
    request.mean = a[2] == kMean;
    request.argmax = a[7] == Py_True;
    const bool reduces = a[2] == kSum || a[2] == kMean || a[2] == kMax;
    if (!reduces || !set_options(request, a[3], a[4], a[5], a[6])) Py_RETURN_NONE;
    return answer(request);
}

// spmm_transposed(matrix, dense, cols, out, threads, values, tensors): AT Y; cols of A count if it is a tuple without a
// shape
PyObject* spmm_transposed(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (!expects(count, 7)) return nullptr;
    Request request{kSpmm, a[0], {a[1]}, 1};
    request.transposed = true;
    request.cols = PyLong_AsLongLong(a[2]);
    if (request.cols == -1 && PyErr_Occurred() != nullptr) return nullptr;
    if (!set_options(request, a[3], a[4], a[5], a[6]) || is_prepared(a[0])) Py_RETURN_NONE;
    return answer(request);
}

// sddmm(matrix, left, right, out, threads, values, tensors)
PyObject* sddmm(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (!expects(count, 7)) return nullptr;
    Request request{kSddmm, a[0], {a[1], a[2]}, 2};
    if (!set_options(request, a[3], a[4], a[5], a[6])) Py_RETURN_NONE;
    return answer(request);
}

// attention(matrix, queries, keys, values, out, threads, tensors)
PyObject* attention(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (!expects(count, 7)) return nullptr;
    Request request{kAttention, a[0], {a[1], a[2], a[3]}, 3};
    if (!set_options(request, a[4], a[5], Py_None, a[6])) Py_RETURN_NONE;
    return answer(request);
}

// set_kernel(operation, type, address)
PyObject* set_kernel(PyObject*, PyObject* arguments) {
    int op, type;
    unsigned long long address;
    if (!PyArg_ParseTuple(arguments, "iiK", &op, &type, &address)) return nullptr;
    if (op < 0 || op >= kOps || type < 0 || type >= kFloatTypes) {
        PyErr_SetString(PyExc_ValueError, "no such operation or type");
        return nullptr;
    }
    functions().kernels[op][type] = reinterpret_cast<void (*)(const void*)>(address);
    Py_RETURN_NONE;
}

// set_helpers(check_indices, cut_rows, divide_by_row, watch, changed, statistics, choose): their addresses
PyObject* set_helpers(PyObject*, PyObject* arguments) {
    unsigned long long a[7];
    if (!PyArg_ParseTuple(arguments, "KKKKKKK", a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6)) return nullptr;
    Functions& all = functions();
    all.check_indices = reinterpret_cast<decltype(all.check_indices)>(a[0]);
    all.cut_rows = reinterpret_cast<decltype(all.cut_rows)>(a[1]);
    all.divide_by_row = reinterpret_cast<decltype(all.divide_by_row)>(a[2]);
    all.watch = reinterpret_cast<decltype(all.watch)>(a[3]);
    all.changed = reinterpret_cast<decltype(all.changed)>(a[4]);
    all.statistics = reinterpret_cast<decltype(all.statistics)>(a[5]);
    all.choose = reinterpret_cast<decltype(all.choose)>(a[6]);
    Py_RETURN_NONE;
}

// set_layer_kernels(type, address of a pass over rows, address of the function that tells its workspace)
PyObject* set_layer_kernels(PyObject*, PyObject* arguments) {
    int type;
    unsigned long long pass, room;
    if (!PyArg_ParseTuple(arguments, "iKK", &type, &pass, &room)) return nullptr;
    if (type < 0 || type >= kFullTypes) {
        PyErr_SetString(PyExc_ValueError, "no such type");
        return nullptr;
    }
    functions().row_pass[type] = reinterpret_cast<void (*)(const RowPass*)>(pass);
    functions().row_pass_room[type] = reinterpret_cast<int64_t (*)(const RowPass*)>(room);
    Py_RETURN_NONE;
}

// set_classes(csr_matrix, csr_array, SparseMatrix, type of bfloat16)
PyObject* set_classes(PyObject*, PyObject* arguments) {
    Classes& all = classes();
    if (!PyArg_ParseTuple(arguments, "OOOO", &all.csr_matrix, &all.csr_array, &all.sparse_matrix, &all.bfloat16)) {
        return nullptr;
    }
    for (PyObject* each : {all.csr_matrix, all.csr_array, all.sparse_matrix, all.bfloat16}) Py_INCREF(each);
    Py_RETURN_NONE;
}

// use_tensors(Tensor, Parameter): tells whether their library exchanges tensors by functions that are known here.
PyObject* use_tensors(PyObject*, PyObject* arguments) {
    PyObject *tensor, *parameter;
    if (!PyArg_ParseTuple(arguments, "OO", &tensor, &parameter)) return nullptr;
    const Ref capsule(PyObject_GetAttrString(tensor, "__dlpack_c_exchange_api__"));
    const auto* const api = !capsule ? nullptr : static_cast<const dlpack::ExchangeApi*>(
        PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
    if (api == nullptr || api->version.major != dlpack::kMajor || api->describe == nullptr) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    Py_INCREF(tensor);
    Py_INCREF(parameter);
    classes().tensor = tensor;
    classes().parameter = parameter;
    classes().exchange = api;
    Py_RETURN_TRUE;
}

// set_limits(threads, bytes of the cache of a core, of all threads together, whether calls that name none have these)
PyObject* set_limits(PyObject*, PyObject* arguments) {
    Limits limits;
    int is_default;
    if (!PyArg_ParseTuple(arguments, "iddp", &limits.threads, &limits.near_bytes, &limits.far_bytes, &is_default)) {
        return nullptr;
    }
    auto& all = settings().limits;
    const auto same = [&](const Limits& each) { return each.threads == limits.threads; };
    all.erase(std::remove_if(all.begin(), all.end(), same), all.end());
    all.push_back(limits);
    if (is_default) settings().threads = limits.threads;
    Py_RETURN_NONE;
}

// set_memory(bytes): that dead results, and copies of patterns, may keep
PyObject* set_memory(PyObject*, PyObject* arguments) {
    long long results, copies;
    if (!PyArg_ParseTuple(arguments, "LL", &results, &copies)) return nullptr;
    pool().set_limit(results);
    patterns().set_limit(copies);
    Py_RETURN_NONE;
}

// forget(matrix): its index arrays may have been changed in place
PyObject* forget(PyObject*, PyObject* matrix) {
    Csr csr;
    View indptr, indices;
    csr_of(matrix, 0, csr);
    if (csr.indptr_object) view_of(csr.indptr_object.get(), indptr);
    if (csr.indices_object) view_of(csr.indices_object.get(), indices);
    patterns().forget(indptr.data, indices.data);
    Py_RETURN_NONE;
}

// empty(shape, type): an uninitialised NumPy array in memory that is reused once nothing refers to it
PyObject* empty(PyObject*, PyObject* arguments) {
    PyObject* extents;
    int type;
    if (!PyArg_ParseTuple(arguments, "O!i", &PyTuple_Type, &extents, &type)) return nullptr;
    Shape shape{static_cast<int32_t>(PyTuple_Size(extents)), {1, 1, 1}};
    if (shape.axes > kMaxAxes || type < 0 || type >= kFloatTypes) {
        PyErr_SetString(PyExc_ValueError, "too many axes, or no such type");
        return nullptr;
    }
    for (int i = 0; i < shape.axes; ++i) {
        shape.extents[i] = PyLong_AsLongLong(PyTuple_GetItem(extents, i));
        if (PyErr_Occurred() != nullptr) return nullptr;
    }
    char* data;
    return new_result(Home::kNumpy, static_cast<Type>(type), shape, &data).release();
}

PyObject* clear(PyObject*, PyObject*) {
    pool().clear();
    patterns().clear();
    Py_RETURN_NONE;
}

PyObject* counts(PyObject*, PyObject*) {
    const Counters& c = counters();
    return Py_BuildValue("{s:L,s:L,s:L,s:L,s:n}", "known", static_cast<long long>(c.known), "fresh",
                         static_cast<long long>(c.fresh), "prepared", static_cast<long long>(c.prepared), "asked",
                         static_cast<long long>(c.asked), "patterns", static_cast<Py_ssize_t>(patterns().size()));
}

// ---- Prepared ------------------------------------------------------------------------------------------------------

PyObject* new_prepared(PyTypeObject* type, PyObject* arguments, PyObject*) {
    long long rows, cols, nnz;
    PyObject *values, *kept;
    unsigned long long watch;
    if (!PyArg_ParseTuple(arguments, "LLLOKO", &rows, &cols, &nnz, &values, &watch, &kept)) return nullptr;
    auto* const allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    auto* const prepared = reinterpret_cast<PreparedObject*>(allocate(type, 0));
    if (prepared == nullptr) return nullptr;
    prepared->rows = rows;
    prepared->cols = cols;
    prepared->nnz = nnz;
    prepared->values = Ref::borrowed(values).release();
    prepared->watch = reinterpret_cast<void*>(watch);
    prepared->kept = Ref::borrowed(kept).release();
    prepared->bounds = new std::vector<std::unique_ptr<Bound>>;
    return reinterpret_cast<PyObject*>(prepared);
}

void delete_prepared(PyObject* object) {
    auto* const prepared = reinterpret_cast<PreparedObject*>(object);
    PyTypeObject* const type = Py_TYPE(object);
    delete prepared->bounds;
    Py_XDECREF(prepared->values);
    Py_XDECREF(prepared->kept);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

// bind(operation, type, columns (3), heads, mean, (ahead, strip, stream, together, group), address of Rows, cut, kept)
PyObject* bind(PyObject* self, PyObject* arguments) {
    auto bound = std::make_unique<Bound>();
    int op, type, mean, cut;
    long long columns[kMaxAxes], heads;
    unsigned long long rows;
    PyObject* kept;
    Launch& c = bound->launch;
    if (!PyArg_ParseTuple(arguments, "ii(LLL)Lp(iiiii)KpO", &op, &type, columns, columns + 1, columns + 2, &heads, &mean,
                          &c.ahead, &c.strip, &c.stream, &c.together, &c.group, &rows, &cut, &kept)) {
        return nullptr;
    }
    bound->op = static_cast<Op>(op);
    bound->type = static_cast<Type>(type);
    std::copy(columns, columns + kMaxAxes, bound->columns);
    bound->heads = heads;
    bound->mean = mean != 0;
    bound->rows = *reinterpret_cast<const Rows*>(rows);
    bound->cut = cut != 0;
    bound->kept = Ref::borrowed(kept);
    auto& bounds = *reinterpret_cast<PreparedObject*>(self)->bounds;
    const auto same = [&](const std::unique_ptr<Bound>& each) {
        return each->op == bound->op && each->type == bound->type && each->heads == bound->heads && each->mean == bound->mean
            && std::equal(each->columns, each->columns + kMaxAxes, bound->columns);
    };
    const auto before = std::find_if(bounds.begin(), bounds.end(), same);
    if (before == bounds.end()) {
        bounds.push_back(std::move(bound));
    } else {
        std::swap(*before, bound);
    }
    Py_RETURN_NONE;
}

PyMethodDef prepared_methods[] = {{"bind", bind, METH_VARARGS, "Use a kernel for operands of these shapes from now on."},
                                  {nullptr, nullptr, 0, nullptr}};
PyType_Slot prepared_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_prepared)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(delete_prepared)},
                                {Py_tp_methods, prepared_methods},
                                {0, nullptr}};
PyType_Spec prepared_spec = {"sparloom._native.Prepared", sizeof(PreparedObject), 0, Py_TPFLAGS_DEFAULT, prepared_slots};

// ---- Pattern -------------------------------------------------------------------------------------------------------

PyObject* new_pattern(PyTypeObject* type, PyObject* arguments, PyObject*) {
    PyObject *indptr, *indices;
    long long cols;
    if (!PyArg_ParseTuple(arguments, "OOL", &indptr, &indices, &cols)) return nullptr;
    Csr matrix;
    matrix.indptr_object = Ref::borrowed(indptr);
    matrix.indices_object = Ref::borrowed(indices);
    const auto is_vector = [](PyObject* object, View& view) {
        return view_of(object, view) && view.axes == 1 && view.contiguous && is_index(view.type);
    };
    if (!is_vector(indptr, matrix.indptr) || !is_vector(indices, matrix.indices) || matrix.indptr.shape[0] < 1
        || functions().check_indices == nullptr) {
        PyErr_SetString(PyExc_TypeError, "give contiguous vectors of int32 or int64, once kernels are loaded");
        return nullptr;
    }
    matrix.rows = matrix.indptr.shape[0] - 1;
    matrix.cols = cols;
    matrix.nnz = matrix.indices.shape[0];
    const bool has_extents = matrix.rows <= kMaxExtent && cols >= 0 && cols <= kMaxExtent;
    auto pattern = has_extents ? copy_pattern(matrix, 1, false) : nullptr;
    if (pattern == nullptr) {
        PyErr_SetString(PyExc_ValueError, "indptr and indices are no matrix");
        return nullptr;
    }
    auto* const object = reinterpret_cast<PatternObject*>(
        reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0));
    if (object != nullptr) object->pattern = new std::shared_ptr<Pattern>(std::move(pattern));
    return reinterpret_cast<PyObject*>(object);
}

void delete_pattern(PyObject* object) {
    PyTypeObject* const type = Py_TYPE(object);
    delete reinterpret_cast<PatternObject*>(object)->pattern;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

PyType_Slot pattern_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_pattern)},
                               {Py_tp_dealloc, reinterpret_cast<void*>(delete_pattern)},
                               {0, nullptr}};
PyType_Spec pattern_spec = {"sparloom._native.Pattern", sizeof(PatternObject), 0, Py_TPFLAGS_DEFAULT, pattern_slots};

PyMethodDef methods[] = {
    {"spmm", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(spmm)), METH_FASTCALL, nullptr},
    {"spmm_transposed", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(spmm_transposed)), METH_FASTCALL, nullptr},
    {"sddmm", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(sddmm)), METH_FASTCALL, nullptr},
    {"attention", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(attention)), METH_FASTCALL, nullptr},
    {"convolve", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(convolve)), METH_FASTCALL, nullptr},
    {"convolve_gradients", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(convolve_gradients)), METH_FASTCALL, nullptr},
    {"transposed_values", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(transposed_values)), METH_FASTCALL, nullptr},
    {"set_kernel", set_kernel, METH_VARARGS, nullptr},
    {"set_layer_kernels", set_layer_kernels, METH_VARARGS, nullptr},
    {"set_helpers", set_helpers, METH_VARARGS, nullptr},
    {"set_classes", set_classes, METH_VARARGS, nullptr},
    {"set_limits", set_limits, METH_VARARGS, nullptr},
    {"set_memory", set_memory, METH_VARARGS, nullptr},
    {"use_tensors", use_tensors, METH_VARARGS, nullptr},
    {"forget", forget, METH_O, "Forget patterns that have the index arrays of a matrix."},
    {"empty", empty, METH_VARARGS, nullptr},
    {"clear", clear, METH_NOARGS, "Forget all patterns and free the memory of dead results."},
    {"counts", counts, METH_NOARGS, "Count calls by the way they went, and patterns that are kept."},
    {nullptr, nullptr, 0, nullptr}};

int execute(PyObject* module) {
    import_array1(-1);
    protect_forks();
    prepared_type() = PyType_FromSpec(&prepared_spec);
    pattern_type() = PyType_FromSpec(&pattern_spec);
    if (prepared_type() == nullptr || pattern_type() == nullptr) return -1;
    return PyModule_AddStringConstant(module, "SOURCES", SPARLOOM_SOURCES) == 0
        && PyModule_AddObjectRef(module, "Prepared", prepared_type()) == 0
        && PyModule_AddObjectRef(module, "Pattern", pattern_type()) == 0 ? 0 : -1;
}

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(execute)}, {0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "sparloom._native", "The path of a call from Python to a kernel.", 0,
                          methods, slots, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace sparloom::native

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&sparloom::native::definition); }
