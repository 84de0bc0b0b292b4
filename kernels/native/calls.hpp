// One call of a sparse operation: operands are viewed and checked, the pattern is looked up, the kernel runs.
//
//   operands that kernels can read as they are?          no: Python converts them, or says what is wrong
//   a prepared matrix: the kernel that Python bound      none for these shapes: Python binds one
//   index arrays that came before: their checked copy    changed meanwhile and not forgotten: ValueError
//   other index arrays: checked in this call
//
// Answers are kDone, kAsk (nothing was written, Python decides) and kError (an exception is set). State is on the stack
// or in objects that are counted, so calls may interrupt each other.

#pragma once

#include <cmath>
#include <new>

#include "patterns.hpp"

namespace sparloom::native {

enum class Answer : int8_t { kDone, kAsk, kError };

constexpr int64_t kKeepLock = 1 << 14;  // elements of dense rows below which releasing the interpreter's lock takes as long

struct Request {
    Op op;
    PyObject* matrix;
    PyObject* dense[kMaxAxes];
    int32_t count;                            // of dense operands
    PyObject *out = nullptr, *values = nullptr;  // null: not given
    bool mean = false, argmax = false;
    bool transposed = false;                  // AT X
    int32_t threads = 0;                      // 0: as many as processors
    int64_t cols = 0;                         // of A, where the operation is transposed
    Home home = Home::kNumpy;                 // of the result
};

// Operands whose shapes fit.
struct Operands {
    View dense[kMaxAxes], values, out;
    int64_t columns[kMaxAxes] = {};  // of each dense operand, all heads together
    int64_t heads = 1, rows, cols, nnz;
    Type type;
    Shape result;
    const int32_t* order = nullptr;  // of the values that the kernel reads; null: as they are
    bool has_values = true;          // else they are ones

    int64_t elements() const { return (nnz + rows) * (columns[0] + columns[1] + columns[2]); }
};

struct Counters {
    int64_t known = 0, fresh = 0, prepared = 0, asked = 0;
};

inline Counters& counters() {
    static Counters all;
    return all;
}

// What so many threads hold in their caches.
struct Limits {
    int32_t threads;
    double near_bytes, far_bytes;
};

struct Settings {
    int32_t threads = 0;
    std::vector<Limits> limits;
};

inline Settings& settings() {
    static Settings all;
    return all;
}

// The kernel for a pattern that is not prepared: by its sizes if there is little work, else also by its statistics.
inline Launch choose(const Request& request, const Operands& o, const Limits& limits, const PatternStatistics& statistics) {
    const ChoiceCase in{o.columns[0], static_cast<int32_t>(bytes_of(o.type)), limits.threads, limits.near_bytes, limits.far_bytes};
    Choice choice;
    functions().choose(request.op, 0, &statistics, &in, &choice);
    return {choice.prefetch * (request.op == kSddmm ? 2048 : 1024), choice.strip == 0 ? INT32_MAX : choice.strip,
            choice.stream, choice.together > 1, choice.group};
}

// A copy, as another thread may add limits during the call; of 0 threads: nothing is known of so many.
inline Limits limits_of(const Request& request) {
    const int32_t threads = request.threads > 0 ? request.threads : settings().threads;
    for (const Limits& each : settings().limits) {
        if (each.threads == threads) return each;
    }
    return {};
}

inline PatternStatistics sizes_of(const Operands& o) {
    PatternStatistics sizes{};
    sizes.rows = o.rows;
    sizes.cols = o.cols;
    sizes.nnz = o.nnz;
    return sizes;
}

// Whether an operand suits the result: a tensor results from tensors, an array from all that could be arrays and require
// no gradient.
inline bool suits(const Request& request, PyObject* operand, const View& view) {
    static PyObject* const kName = name_of("requires_grad");
    if (view.home == Home::kNumpy || request.home == Home::kTorch) return view.home == request.home;
    if (view.type == kBF16) return false;  // NumPy does not have it
    const Ref answer(PyObject_GetAttr(operand, kName));
    if (!answer) PyErr_Clear();
    return answer.get() == Py_False;
}

// Views the dense operands, and checks that they are contiguous numbers of one type.
inline bool view_dense(const Request& request, Operands& o) {
    for (int i = 0; i < request.count; ++i) {
        View& view = o.dense[i];
        if (!view_of(request.dense[i], view) || !view.contiguous || !is_float(view.type)) return false;
        if (view.type != o.dense[0].type || view.axes != o.dense[0].axes) return false;
        if (!suits(request, request.dense[i], view)) return false;
    }
    o.type = o.dense[0].type;
    const int32_t axes = o.dense[0].axes;
    if (axes != 2 && !(axes == 3 && request.op == kAttention)) return false;
    for (int i = 0; i < request.count; ++i) o.columns[i] = o.dense[i].shape[1] * (axes == 3 ? o.dense[i].shape[2] : 1);
    o.heads = axes == 3 ? o.dense[0].shape[1] : 1;
    return o.columns[0] > 0;
}

// Checks the sizes of dense operands against those of the matrix, and sets the shape of the result.
inline bool shapes_fit(const Request& request, Operands& o) {
    const auto& dense = o.dense;
    switch (request.op) {
        case kSpmm:
        case kSpmmMax:
            o.result = {2, {o.rows, o.columns[0], 1}};
            return dense[0].shape[0] == o.cols;
        case kSddmm:
            o.result = {1, {o.nnz, 1, 1}};
            return dense[0].shape[0] == o.rows && dense[1].shape[0] == o.cols && o.columns[0] == o.columns[1];
        case kAttention: {
            const bool flat = dense[0].axes == 2;
            if (flat) {
                o.result = {2, {o.rows, dense[2].shape[1], 1}};
            } else {
                o.result = {3, {o.rows, o.heads, dense[2].shape[2]}};
            }
            return dense[0].shape[0] == o.rows && dense[1].shape[0] == o.cols && dense[2].shape[0] == o.cols
                && o.columns[0] == o.columns[1] && o.columns[2] > 0
                && (flat || (dense[1].shape[1] == o.heads && dense[2].shape[1] == o.heads));
        }
    }
    return false;
}

inline bool out_fits(const Request& request, Operands& o, const Csr* csr) {
    View& out = o.out;
    if (!view_of(request.out, out) || out.home != request.home || !out.contiguous || !out.writable || out.type != o.type
        || out.axes != o.result.axes
        || !std::equal(out.shape, out.shape + kMaxAxes, o.result.extents) || request.argmax) {
        return false;
    }
    for (int i = 0; i < request.count; ++i) {
        if (out.overlaps(o.dense[i])) return false;
    }
    return !out.overlaps(o.values) && (csr == nullptr || !(out.overlaps(csr->indptr) || out.overlaps(csr->indices)));
}

union Arguments {
    Rows rows;
    Spmm spmm;
    SpmmMax spmm_max;
    Sddmm sddmm;
    Attention attention;
};

// Room for the partial results of pieces that share rows.
struct Carries {
    int64_t bytes = 0, argmax_bytes = 0;

    Carries(const Request& request, const Operands& o, int32_t pieces, bool cut) {
        const int64_t sum_bytes = o.type == kF64 ? 8 : 4, parts = 2 * static_cast<int64_t>(pieces);
        if (request.op == kAttention) {
            if (cut || is_half(o.type)) bytes = parts * (o.columns[2] + 2 * o.heads) * sum_bytes;
        } else if (cut && request.op != kSddmm) {
            bytes = parts * o.columns[0] * sum_bytes;
            if (request.argmax) argmax_bytes = parts * o.columns[0] * 4;
        }
    }

    int64_t room() const { return Scratch::room<char>(bytes) + Scratch::room<char>(argmax_bytes); }
};

inline Arguments arguments_of(
    const Request& request, const Operands& o, const Rows& rows, const Launch& launch, bool mean, char* result,
    int32_t* places, Scratch& scratch, const Carries& carries) {
    void* const sums = carries.bytes > 0 ? scratch.take<char>(carries.bytes) : nullptr;
    auto* const carried_places = carries.argmax_bytes > 0 ? scratch.take<int32_t>(carries.argmax_bytes / 4) : nullptr;
    const auto& dense = o.dense;
    Arguments arguments;
    switch (request.op) {
        case kSpmm:
            arguments.spmm = {rows, dense[0].data, result, sums, o.columns[0], launch.strip, launch.ahead, launch.stream,
                              launch.together, mean};
            break;
        case kSpmmMax:
            arguments.spmm_max = {rows, dense[0].data, result, sums, places, carried_places, o.columns[0], launch.ahead};
            break;
        case kSddmm:
            arguments.sddmm = {rows, dense[0].data, dense[1].data, result, o.columns[0], launch.ahead, launch.group};
            break;
        case kAttention: {
            const int64_t width = o.columns[0] / o.heads;
            arguments.attention = {rows, dense[0].data, dense[1].data, dense[2].data, result, sums, o.heads, width,
                                   o.columns[2] / o.heads, std::pow(static_cast<double>(width), -0.5), launch.ahead};
            break;
        }
    }
    return arguments;
}

inline bool expects(Py_ssize_t count, Py_ssize_t wanted) {
    if (count == wanted) return true;
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", wanted, count);
    return false;
}

// Releases the interpreter's lock while it lives, if so much work is worth it.
class Unlocked {
   public:
    explicit Unlocked(int64_t elements) : state_(elements < kKeepLock ? nullptr : PyEval_SaveThread()) {}
    ~Unlocked() {
        if (state_ != nullptr) PyEval_RestoreThread(state_);
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    PyThreadState* state_;
};

// The result of a call, with its argmax if that is asked for.
struct Result {
    Ref object, places_object;
    char* data = nullptr;
    char* places = nullptr;

    bool allocate(const Request& request, const Operands& o) {
        if (request.out != nullptr) {
            object = Ref::borrowed(request.out);
            data = o.out.data;
            return true;
        }
        object = new_result(request.home, o.type, o.result, &data);
        if (object && request.argmax) places_object = new_result(request.home, kI32, o.result, &places);
        return object && (!request.argmax || places_object);
    }

    PyObject* release() {
        return places_object ? PyTuple_Pack(2, object.get(), places_object.get()) : object.release();
    }
};

inline Answer out_of_memory() {
    PyErr_NoMemory();
    return Answer::kError;
}

template <typename T>
void permute(const char* from, const int32_t* order, int64_t count, char* to) {
    const T* const values = reinterpret_cast<const T*>(from);
    T* const permuted = reinterpret_cast<T*>(to);
    for (int64_t n = 0; n < count; ++n) permuted[n] = values[order[n]];
}

// Writes the values that the kernel reads, if they are not those of the matrix as they are.
inline void write_values(const Operands& o, char* to) {
    if (o.has_values) {
        switch (bytes_of(o.type)) {
            case 8: return permute<uint64_t>(o.values.data, o.order, o.nnz, to);
            case 4: return permute<uint32_t>(o.values.data, o.order, o.nnz, to);
            default: return permute<uint16_t>(o.values.data, o.order, o.nnz, to);
        }
    }
    switch (o.type) {
        case kF64: std::fill_n(reinterpret_cast<double*>(to), o.nnz, 1.0); break;
        case kF32: std::fill_n(reinterpret_cast<float*>(to), o.nnz, 1.0f); break;
        default: std::fill_n(reinterpret_cast<uint16_t*>(to), o.nnz, o.type == kF16 ? 0x3c00 : 0x3f80); break;
    }
}

// Runs the kernel on checked rows.
inline Answer run_rows(const Request& request, const Operands& o, Rows rows, bool cut, const Launch& launch, Result& result) {
    const bool divides = request.mean && !is_half(o.type), writes = o.order != nullptr || !o.has_values;
    const Carries carries(request, o, rows.pieces, cut);
    const int64_t values_bytes = o.nnz * bytes_of(o.type);
    const int64_t bytes = carries.room() + (divides + writes) * Scratch::room<char>(values_bytes);
    Scratch scratch(bytes);
    if (scratch.failed(bytes)) return out_of_memory();
    rows.values = o.values.data;
    if (writes && request.op != kAttention) {
        char* const values = scratch.take<char>(values_bytes);
        write_values(o, values);
        rows.values = values;
    }
    if (divides) {
        char* const values = scratch.take<char>(values_bytes);
        functions().divide_by_row(&rows, o.rows, static_cast<int32_t>(bytes_of(o.type)), values);
        rows.values = values;
    }
    const Arguments arguments = arguments_of(
        request, o, rows, launch, request.mean && !divides, result.data, reinterpret_cast<int32_t*>(result.places), scratch,
        carries);
    const Unlocked unlocked(o.elements());
    functions().kernels[request.op][o.type](&arguments);
    return Answer::kDone;
}

inline Launch known_launch(const Request& request, const Operands& o, Pattern& pattern, const Limits& limits) {
    const Chosen key{request.op, o.type, o.columns[0], limits.threads};
    for (const auto& [chosen, launch] : pattern.chosen) {
        if (chosen == key) return launch;
    }
    if (pattern.statistics.rows == 0) {
        functions().statistics(pattern.indptr.data(), pattern.indices.data(), o.rows, o.cols, &pattern.statistics);
    }
    const Launch launch = choose(request, o, limits, pattern.statistics);
    pattern.chosen.emplace_back(key, launch);
    return launch;
}

inline Answer run_known(const Request& request, const Operands& o, Pattern& pattern, int32_t threads, const Limits& limits,
                        Result& result) {
    const Launch launch = known_launch(request, o, pattern, limits);
    const Pieces& pieces = pattern.pieces_of(threads);
    const Rows rows{pattern.indptr.data(), pattern.indices.data(), nullptr, pattern.indptr.data(), counted(o.rows), nullptr,
                    pieces.rows.data(), pieces.nonzeros.data(), o.nnz, static_cast<int32_t>(pieces.rows.size() - 1), 0, threads};
    ++counters().known;
    return run_rows(request, o, rows, pieces.cut, launch, result);
}

// Checks the index arrays, and runs the kernel on them or on converted copies that live as long as the call.
inline Answer run_fresh(const Request& request, const Operands& o, const Csr& csr, int32_t threads, bool ascending,
                        const Limits& limits, Result& result) {
    const bool widen = csr.indptr.type == kI32, narrow = csr.indices.type == kI64;
    const int32_t pieces = pieces_for(threads);
    const int64_t bytes = 2 * Scratch::room<int64_t>(pieces + 1) + (widen ? Scratch::room<int64_t>(o.rows + 1) : 0)
        + (narrow ? Scratch::room<int32_t>(o.nnz) : 0);
    Scratch scratch(bytes);
    if (scratch.failed(bytes)) return out_of_memory();
    Checked checked{};
    checked.indptr = csr.indptr.data;
    checked.indices = csr.indices.data;
    checked.rows = o.rows;
    checked.cols = o.cols;
    checked.nnz = o.nnz;
    checked.indptr_bytes = static_cast<int32_t>(bytes_of(csr.indptr.type));
    checked.index_bytes = static_cast<int32_t>(bytes_of(csr.indices.type));
    checked.threads = threads;
    checked.pieces = pieces;
    checked.piece_rows = scratch.take<int64_t>(pieces + 1);
    checked.piece_nonzeros = scratch.take<int64_t>(pieces + 1);
    checked.wide = widen ? scratch.take<int64_t>(o.rows + 1) : nullptr;
    checked.narrow = narrow ? scratch.take<int32_t>(o.nnz) : nullptr;
    int32_t fault;
    {
        const Unlocked unlocked(o.elements());
        fault = functions().check_indices(&checked);
    }
    if (fault != 0 || (ascending && !checked.ascending)) return Answer::kAsk;
    if (!result.allocate(request, o)) return Answer::kError;
    const auto* const indptr = widen ? checked.wide : static_cast<const int64_t*>(checked.indptr);
    const auto* const indices = narrow ? checked.narrow : static_cast<const int32_t*>(checked.indices);
    const Rows rows{indptr, indices, nullptr, indptr, counted(o.rows), nullptr, checked.piece_rows, checked.piece_nonzeros,
                    o.nnz, pieces, 0, threads};
    PatternStatistics statistics = sizes_of(o);
    if (o.elements() >= kGrain) functions().statistics(indptr, indices, o.rows, o.cols, &statistics);
    const Launch launch = choose(request, o, limits, statistics);
    const Answer answer = run_rows(request, o, rows, checked.cut, launch, result);
    if (answer != Answer::kDone) return answer;
    ++counters().fresh;
    if (patterns().recurs(csr, checked.checksum)) {
        if (auto pattern = copy_pattern(csr, threads)) patterns().add(csr, std::move(pattern));
    }
    return answer;
}

inline Answer refuse_change(int32_t array) {
    PyErr_Format(PyExc_ValueError, "%s of A was changed in place since A was prepared: call once with changed=True, or "
                 "prepare A anew", array == 1 ? "indptr" : "indices");
    return Answer::kError;
}

inline Answer run_csr(const Request& request, Operands& o, Result& result) {
    const bool by_cols = request.op == kSpmm || request.op == kSpmmMax;
    Csr csr;
    if (!csr_of(request.matrix, request.transposed ? request.cols : o.dense[by_cols ? 0 : 1].shape[0], csr)) {
        return Answer::kAsk;
    }
    o.rows = request.transposed ? csr.cols : csr.rows;
    o.cols = request.transposed ? csr.rows : csr.cols;
    o.nnz = csr.nnz;
    o.values = csr.values;
    o.has_values = csr.has_values;
    if (request.op != kAttention && csr.has_values && csr.values.type != o.type) return Answer::kAsk;
    const bool of_tensors = request.home == Home::kTorch;
    if ((csr.has_values ? !suits(request, csr.values_object.get(), csr.values) : by_cols || !of_tensors)
        || (of_tensors && (csr.indptr.home != Home::kTorch || csr.indices.home != Home::kTorch))) {
        return Answer::kAsk;
    }
    const Limits limits = limits_of(request);
    if (!shapes_fit(request, o) || limits.threads == 0 || (request.argmax && o.nnz > INT32_MAX)
        || (request.out != nullptr && !out_fits(request, o, &csr))) {
        return Answer::kAsk;
    }
    const int32_t threads = o.elements() >= kGrain ? limits.threads : 1;
    const bool ascending = csr.canonical || request.op != kSpmm || request.mean || request.home == Home::kTorch;
    std::shared_ptr<Pattern> pattern = patterns().find(csr);
    if (pattern != nullptr && !unchanged(csr, *pattern)) {
        patterns().forget(csr.indptr.data, csr.indices.data);
        pattern = nullptr;
    }
    if (request.transposed) {
        if (pattern == nullptr) pattern = copy_pattern(csr, threads);
        if (pattern == nullptr || o.nnz > INT32_MAX || (ascending && !pattern->ascending)) return Answer::kAsk;
        if (patterns().may_keep(csr)) patterns().add(csr, pattern);
        Pattern& other = transposed(*pattern);
        o.order = other.order.data();
        if (!result.allocate(request, o)) return Answer::kError;
        return run_known(request, o, other, threads, limits, result);
    }
    if (pattern == nullptr) return run_fresh(request, o, csr, threads, ascending, limits, result);
    const int32_t changed = functions().changed(&pattern->watch);
    if (changed != 0) return refuse_change(changed);
    if (ascending && !pattern->ascending) return Answer::kAsk;
    if (!result.allocate(request, o)) return Answer::kError;
    return run_known(request, o, *pattern, threads, limits, result);
}

// A product with a pattern that its holder passes, by the values of this call in the order of the pattern.
inline Answer run_pattern(const Request& request, Operands& o, Result& result) {
    const std::shared_ptr<Pattern> held = *reinterpret_cast<PatternObject*>(request.matrix)->pattern;
    const Limits limits = limits_of(request);
    Pattern& pattern = request.transposed && held->nnz <= INT32_MAX ? transposed(*held) : *held;
    if (request.transposed) {
        if (&pattern == held.get()) return Answer::kAsk;
        o.order = pattern.order.data();
    }
    o.rows = pattern.rows;
    o.cols = pattern.cols;
    o.nnz = pattern.nnz;
    if (limits.threads == 0 || request.values == nullptr || !view_of(request.values, o.values) || !o.values.contiguous
        || o.values.axes != 1 || o.values.shape[0] < o.nnz || o.values.type != o.type || !shapes_fit(request, o)
        || request.op != kSpmm || (request.out != nullptr && !out_fits(request, o, nullptr)) || !result.allocate(request, o)) {
        return PyErr_Occurred() != nullptr ? Answer::kError : Answer::kAsk;
    }
    return run_known(request, o, pattern, o.elements() >= kGrain ? limits.threads : 1, limits, result);
}

inline Answer run_prepared(const Request& request, Operands& o, Result& result) {
    auto* const prepared = reinterpret_cast<PreparedObject*>(request.matrix);
    o.rows = prepared->rows;
    o.cols = prepared->cols;
    o.nnz = prepared->nnz;
    PyObject* const values = request.values != nullptr ? request.values : prepared->values;
    if (!view_of(values, o.values) || !suits(request, values, o.values) || !o.values.contiguous
        || o.values.axes != 1 || o.values.shape[0] != o.nnz || (request.op != kAttention && o.values.type != o.type)
        || !shapes_fit(request, o) || (request.out != nullptr && !out_fits(request, o, nullptr))) {
        return Answer::kAsk;
    }
    const Bound* bound = nullptr;
    const bool divides_sums = request.mean && is_half(o.type);  // else values are divided
    for (const auto& each : *prepared->bounds) {
        if (each->op == request.op && each->type == o.type && each->heads == o.heads && each->mean == divides_sums
            && std::equal(o.columns, o.columns + kMaxAxes, each->columns)) {
            bound = each.get();
        }
    }
    if (bound == nullptr) return Answer::kAsk;
    if (prepared->watch != nullptr && functions().changed(prepared->watch) != 0) return Answer::kAsk;
    const Ref alive = Ref::borrowed(bound->kept.get());
    const Rows rows = bound->rows;
    const Launch launch = bound->launch;
    const bool cut = bound->cut;
    if (!result.allocate(request, o)) return Answer::kError;
    ++counters().prepared;
    return run_rows(request, o, rows, cut, launch, result);
}

inline Answer run(const Request& request, Result& result) {
    Operands operands;
    if (!view_dense(request, operands) || functions().kernels[request.op][operands.type] == nullptr
        || functions().choose == nullptr) {
        return Answer::kAsk;
    }
    try {
        return is_prepared(request.matrix) ? run_prepared(request, operands, result)
            : is_pattern(request.matrix) ? run_pattern(request, operands, result)
            : run_csr(request, operands, result);
    } catch (const std::bad_alloc&) {
        return out_of_memory();
    }
}

// Computes an operation; Python's None: ask Python.
inline PyObject* answer(const Request& request) {
    Result result;
    const Answer state = run(request, result);
    if (state == Answer::kDone) return result.release();
    if (state == Answer::kError) return nullptr;
    ++counters().asked;
    Py_RETURN_NONE;
}

}  // namespace sparloom::native
