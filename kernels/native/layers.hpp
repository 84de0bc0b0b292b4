// Layers of graph networks and their gradients, from Python to the passes of kernels/cpu/row_pass.hpp, in one call each.
//
//   D = A X W^T + R V^T + b      A of a pattern that its holder passes, X W^T before or after the product by A
//   dX = A^T dD W, dW = (A^T dD)^T X or dD^T (A X), db = sums of dD, dR = dD V, dV = dD^T R
//
// Operands are contiguous tensors of float or double; for all others the answer is None, and Python computes the layer
// by separate operations. Results are new tensors from the pool.

#pragma once

#include "calls.hpp"

namespace sparloom::native {

// A pass over rows that is being prepared: operands, workspace, and how much work it is.
class LayerPass {
   public:
    LayerPass(Type type, const Limits& limits, int64_t rows) : type_(type) {
        pass_ = {};
        pass_.rows = rows;
        pass_.threads = limits.threads;
        pass_.cache_bytes = limits.far_bytes;
    }

    RowPass* operator->() { return &pass_; }

    void multiply(Pattern& pattern, const char* values) {
        constexpr double kEqualShare = 0.2;  // of nonzeros in rows like their predecessor, from which looking for them pays off
        pass_.indptr = pattern.indptr.data();
        pass_.indices = pattern.indices.data();
        pass_.values = values;
        pass_.nnz = pattern.nnz;
        if (pattern.nnz * pass_.width < kGrain) return;
        if (pattern.statistics.rows == 0) {
            functions().statistics(pass_.indptr, pass_.indices, pattern.rows, pattern.cols, &pattern.statistics);
        }
        pass_.together = pattern.statistics.equal >= kEqualShare;
    }

    // False: there is no memory for it.
    bool run() {
        const int64_t bytes = functions().row_pass_room[type_](&pass_);
        Scratch scratch(bytes);
        if (scratch.failed(bytes)) return false;
        pass_.workspace = scratch.take<char>(bytes);
        const Unlocked unlocked(pass_.nnz * pass_.width + pass_.rows * (pass_.width + pass_.out + pass_.left_columns));
        functions().row_pass[type_](&pass_);
        return true;
    }

   private:
    RowPass pass_;
    Type type_;
};

// The tensors of a layer, all of one type; sizes of absent ones are 0.
struct Layer {
    std::shared_ptr<Pattern> held;
    View values, x, weight, bias, root, root_weight, grad, aggregated;
    Type type = kOther;
    Limits limits;

    Pattern& pattern() const { return *held; }

    // Views a tensor, a vector if it is to have 0 columns; null or None: absent. False: it has another type or shape, or
    // is not contiguous.
    bool view(PyObject* object, int64_t rows, int64_t columns, View& to) const {
        if (object == nullptr || object == Py_None) {
            to.shape[0] = to.shape[1] = 0;
            return true;
        }
        return is_tensor(object) && view_of(object, to) && to.contiguous && to.type == type && to.shape[0] == rows
            && (columns == 0 ? to.axes == 1 : to.axes == 2 && to.shape[1] == columns);
    }

    bool view_values(PyObject* object) {
        if (object == Py_None) return true;
        return is_tensor(object) && view_of(object, values) && values.contiguous && values.axes == 1 && values.type == type
            && values.shape[0] >= held->nnz;
    }

    // Views pattern, X, W and the threads, by which all other shapes are known.
    bool begin(PyObject* held_pattern, PyObject* features, PyObject* weights, PyObject* threads) {
        if (!is_pattern(held_pattern) || !is_tensor(weights) || !view_of(weights, weight)) return false;
        held = *reinterpret_cast<PatternObject*>(held_pattern)->pattern;
        type = weight.type;
        Request request{kSpmm, nullptr, {}, 0};
        request.threads = static_cast<int32_t>(PyLong_AsLong(threads));
        limits = limits_of(request);
        return PyErr_Occurred() == nullptr && type < kFullTypes && functions().row_pass[type] != nullptr && limits.threads > 0
            && weight.axes == 2 && weight.contiguous && weight.size() > 0 && held->rows > 0 && held->cols > 0
            && view(features, held->cols, inputs(), x);
    }

    int64_t inputs() const { return weight.shape[1]; }
    int64_t outputs() const { return weight.shape[0]; }

    bool view_root(PyObject* features, PyObject* weights) {
        if (weights == Py_None) {
            root.shape[1] = root_weight.shape[1] = 0;
            return features == Py_None;
        }
        return is_tensor(weights) && view_of(weights, root_weight) && root_weight.axes == 2 && root_weight.size() > 0
            && view(weights, outputs(), root_weight.shape[1], root_weight)
            && view(features, held->rows, root_weight.shape[1], root);
    }

    // Makes a result, a vector if it is to have 0 columns.
    Ref result(int64_t rows, int64_t columns, char** data) const {
        return new_result(Home::kTorch, type, {columns == 0 ? 1 : 2, {rows, columns == 0 ? 1 : columns, 1}}, data);
    }
};

// convolve(pattern, values, x, weight, bias, root, root_weight, aggregates first, keeps A X, threads): D, or D and A X
inline PyObject* convolve(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (!expects(count, 10)) return nullptr;
    Layer layer;
    const bool first = a[7] == Py_True, keeps = a[8] == Py_True;
    if (!layer.begin(a[0], a[2], a[3], a[9]) || a[1] == Py_None || a[2] == Py_None || !layer.view_values(a[1])
        || !layer.view(a[4], layer.outputs(), 0, layer.bias) || !layer.view_root(a[5], a[6]) || (keeps && !first)) {
        if (PyErr_Occurred() != nullptr) return nullptr;
        Py_RETURN_NONE;
    }
    Pattern& pattern = layer.pattern();
    const int64_t inputs = layer.inputs(), outputs = layer.outputs();
    char *d = nullptr, *aggregated = nullptr;
    const Ref result = layer.result(pattern.rows, outputs, &d);
    const Ref kept = result && keeps ? layer.result(pattern.rows, inputs, &aggregated) : Ref();
    if (!result || (keeps && !kept)) return nullptr;
    const int64_t sent_bytes = first ? 0 : pattern.cols * outputs * bytes_of(layer.type);
    Scratch scratch(sent_bytes);
    if (scratch.failed(sent_bytes)) return PyErr_NoMemory();
    char* const sent = first ? layer.x.data : scratch.take<char>(sent_bytes);
    if (!first) {
        LayerPass transform(layer.type, layer.limits, pattern.cols);
        transform->g = layer.x.data;
        transform->width = inputs;
        transform->c = layer.weight.data;
        transform->c_transposed = true;
        transform->out = outputs;
        transform->d = sent;
        if (!transform.run()) return PyErr_NoMemory();
    }
    LayerPass pass(layer.type, layer.limits, pattern.rows);
    pass->y = sent;
    pass->width = first ? inputs : outputs;
    pass->g = aggregated;
    pass.multiply(pattern, layer.values.data);
    if (!first && layer.bias.data == nullptr && layer.root.data == nullptr) {
        pass->g = d;
    } else {
        pass->c = first ? layer.weight.data : nullptr;
        pass->c_transposed = true;
        pass->out = outputs;
        pass->d = d;
        pass->bias = layer.bias.data;
        pass->root = layer.root.data;
        pass->root_c = layer.root_weight.data;
        pass->root_columns = layer.root.shape[1];
    }
    if (!pass.run()) return PyErr_NoMemory();
    return keeps ? PyTuple_Pack(2, result.get(), kept.get()) : Ref::borrowed(result.get()).release();
}

enum Needs : int32_t { kX = 1, kWeight = 2, kBias = 4, kRoot = 8, kRootWeight = 16, kRootIsX = 32 };

// convolve_gradients(pattern, values, grad, x, weight, A X or None, root, root_weight, needs, threads): those of X, W, b,
// R and V, None where they are not needed. values: by `transposed_values`; None without a product by A^T. kRootIsX: the
// gradient of the root is part of that of X.
inline PyObject* convolve_gradients(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (!expects(count, 10)) return nullptr;
    Layer layer;
    const auto needs = static_cast<int32_t>(PyLong_AsLong(a[8]));
    if (!layer.begin(a[0], a[3], a[4], a[9]) || !layer.view_values(a[1])
        || !layer.view(a[2], layer.pattern().rows, layer.outputs(), layer.grad)
        || !layer.view(a[5], layer.pattern().rows, layer.inputs(), layer.aggregated) || !layer.view_root(a[6], a[7])
        || layer.pattern().nnz > INT32_MAX) {
        if (PyErr_Occurred() != nullptr) return nullptr;
        Py_RETURN_NONE;
    }
    Pattern& pattern = layer.pattern();
    const int64_t inputs = layer.inputs(), outputs = layer.outputs(), root_columns = layer.root_weight.shape[1];
    const bool root_of_x = (needs & kRoot) != 0 && (needs & kRootIsX) != 0;
    const bool root_alone = (needs & kRoot) != 0 && !root_of_x;
    const bool weight_by_aggregated = (needs & kWeight) != 0 && layer.aggregated.data != nullptr;
    const bool by_senders = (needs & kX) != 0 || ((needs & kWeight) != 0 && !weight_by_aggregated);
    if (by_senders && ((pattern.nnz > 0 && layer.values.data == nullptr) || (root_of_x && pattern.rows != pattern.cols))) Py_RETURN_NONE;
    char *dx = nullptr, *dw = nullptr, *db = nullptr, *dr = nullptr, *dv = nullptr;
    Ref results[5];
    const auto wants = [&](int place, int32_t need, int64_t rows, int64_t columns, char** data) {
        const bool wanted = (needs & need) != 0 && !(need == kRoot && root_of_x);
        results[place] = wanted ? layer.result(rows, columns, data) : Ref::borrowed(Py_None);
        return static_cast<bool>(results[place]);
    };
    if (!wants(0, kX, pattern.cols, inputs, &dx) || !wants(1, kWeight, outputs, inputs, &dw) || !wants(2, kBias, outputs, 0, &db)
        || !wants(3, kRoot, pattern.rows, root_columns, &dr) || !wants(4, kRootWeight, outputs, root_columns, &dv)) {
        return nullptr;
    }
    const bool sums_by_senders = by_senders && db != nullptr && pattern.rows == pattern.cols;
    if (by_senders) {
        LayerPass pass(layer.type, layer.limits, pattern.cols);
        pass->y = layer.grad.data;
        pass->width = outputs;
        pass.multiply(transposed(pattern), layer.values.data);
        if (dx != nullptr) {
            pass->c = layer.weight.data;
            pass->out = inputs;
            pass->d = dx;
            if (root_of_x) {
                pass->root = layer.grad.data;
                pass->root_c = layer.root_weight.data;
                pass->root_columns = outputs;
            }
        }
        if ((needs & kWeight) != 0 && !weight_by_aggregated) {
            pass->left_columns = outputs;
            pass->right = layer.x.data;
            pass->right_columns = inputs;
            pass->s = dw;
        }
        if (sums_by_senders) {
            pass->summed = layer.grad.data;
            pass->summed_columns = outputs;
            pass->sums = db;
        }
        if (!pass.run()) return PyErr_NoMemory();
    }
    const auto by_receivers = [&](const View& right, char* s, bool first) {
        LayerPass pass(layer.type, layer.limits, pattern.rows);
        if (s != nullptr) {
            pass->left = layer.grad.data;
            pass->left_columns = outputs;
            pass->right = right.data;
            pass->right_columns = right.shape[1];
            pass->s = s;
        }
        if (first && db != nullptr && !sums_by_senders) {
            pass->summed = layer.grad.data;
            pass->summed_columns = outputs;
            pass->sums = db;
        }
        if (first && root_alone) {
            pass->g = layer.grad.data;
            pass->width = outputs;
            pass->c = layer.root_weight.data;
            pass->out = root_columns;
            pass->d = dr;
        }
        return (pass->right_columns == 0 && pass->summed_columns == 0 && pass->out == 0) || pass.run();
    };
    const bool done = by_receivers(layer.root, dv, true)
        && (!weight_by_aggregated || by_receivers(layer.aggregated, dw, false));
    if (!done) return PyErr_NoMemory();
    return PyTuple_Pack(5, results[0].get(), results[1].get(), results[2].get(), results[3].get(), results[4].get());
}

// transposed_values(pattern, values): in the order of the transposed pattern
inline PyObject* transposed_values(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (!expects(count, 2)) return nullptr;
    View values;
    if (!is_pattern(a[0]) || !is_tensor(a[1]) || !view_of(a[1], values)) Py_RETURN_NONE;
    const std::shared_ptr<Pattern> held = *reinterpret_cast<PatternObject*>(a[0])->pattern;
    if (!values.contiguous || values.axes != 1 || values.type >= kFullTypes || values.shape[0] < held->nnz
        || held->nnz > INT32_MAX) {
        Py_RETURN_NONE;
    }
    char* data = nullptr;
    Ref result = new_result(Home::kTorch, values.type, {1, {held->nnz, 1, 1}}, &data);
    if (!result) return nullptr;
    const int32_t* const order = transposed(*held).order.data();
    if (values.type == kF64) {
        permute<uint64_t>(values.data, order, held->nnz, data);
    } else {
        permute<uint32_t>(values.data, order, held->nnz, data);
    }
    return result.release();
}

}  // namespace sparloom::native
