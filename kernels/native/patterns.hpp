// Patterns of sparse matrices: as operands of one call, as copies of index arrays that came several times, and prepared.
//
//   Csr         the arrays of a matrix as they were passed, which nothing has checked
//   Pattern     checked copies of index arrays: kernels never read what their owner may change
//   Patterns    finds the Pattern of index arrays by their addresses; weak references to the owners of the memory make
//               sure that an address still means the same arrays, checksums of their content that they are unchanged
//   Prepared    a Python object that holds a matrix for which Python has chosen and bound kernels

#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "cpu/arguments.hpp"
#include "cpu/choice.hpp"
#include "results.hpp"

namespace sparloom::native {

enum Op : int8_t { kSpmm, kSddmm, kAttention, kSpmmMax };  // as in kernels/cpu/choose.cpp
constexpr int kOps = 4;
constexpr int kFullTypes = 2;  // kF32 and kF64, those of layers

// The functions of the libraries of kernels, which Python loads for this processor when they are first needed.
struct Functions {
    void (*kernels[kOps][kFloatTypes])(const void*) = {};
    int32_t (*check_indices)(Checked*) = nullptr;
    int32_t (*cut_rows)(const int64_t*, int64_t, int32_t, int64_t*, int64_t*) = nullptr;
    void (*divide_by_row)(const Rows*, int64_t, int32_t, void*) = nullptr;
    void (*watch)(const void*) = nullptr;
    int32_t (*changed)(void*) = nullptr;
    void (*statistics)(const int64_t*, const int32_t*, int64_t, int64_t, PatternStatistics*) = nullptr;
    void (*choose)(int32_t, int32_t, const PatternStatistics*, const ChoiceCase*, Choice*) = nullptr;
    void (*row_pass[kFullTypes])(const RowPass*) = {};
    int64_t (*row_pass_room[kFullTypes])(const RowPass*) = {};
};

inline Functions& functions() {
    static Functions all;
    return all;
}

// How a kernel is called, besides its operands and rows.
struct Launch {
    int32_t ahead, strip, stream, together, group;
};

constexpr int32_t kPiecesPerThread = 8;

inline int32_t pieces_for(int32_t threads) { return threads > 1 ? kPiecesPerThread * threads : 1; }

// 0, 1, 2, ..: at least so many; never freed.
inline const int32_t* counted(int64_t rows) {
    static std::vector<int32_t>* by_bits[33] = {};
    int bits = 10;
    while ((int64_t{1} << bits) < rows) ++bits;
    if (by_bits[bits] == nullptr) {
        auto* const numbers = new std::vector<int32_t>(int64_t{1} << bits);
        for (size_t i = 0; i < numbers->size(); ++i) (*numbers)[i] = static_cast<int32_t>(i);
        by_bits[bits] = numbers;
    }
    return by_bits[bits]->data();
}

struct Csr {
    View indptr, indices, values;
    Ref indptr_object, indices_object, values_object;
    int64_t rows = 0, cols = -1, nnz = 0;
    bool canonical = false;   // the matrix says that columns ascend, so they must
    bool has_values = true;   // else they count as ones
};

// What a choice depends on, besides the pattern.
struct Chosen {
    Op op;
    Type type;
    int64_t width;
    int32_t threads;

    bool operator==(const Chosen& other) const {
        return op == other.op && type == other.type && width == other.width && threads == other.threads;
    }
};

struct Pieces {
    int32_t threads;
    std::vector<int64_t> rows, nonzeros;
    bool cut;
};

struct Pattern {
    int64_t rows, cols, nnz;
    std::vector<int64_t> indptr;
    std::vector<int32_t> indices;
    bool ascending;
    std::vector<std::unique_ptr<Pieces>> pieces;
    PatternStatistics statistics = {};
    std::vector<std::pair<Chosen, Launch>> chosen;
    std::vector<uint64_t> sums[2];
    Watched watched[2];
    Watch watch;
    Ref owners[2];
    int64_t versions[2];  // of tensors, which PyTorch counts up with every write; else 0
    int64_t last_use = 0;
    std::unique_ptr<Pattern> transposed;  // made when it is first needed
    std::vector<int32_t> order;           // of the transposed one: positions of its nonzeros in the other

    bool alive() const { return is_alive(owners[0]) && is_alive(owners[1]); }

    const Pieces& pieces_of(int32_t threads) {
        for (const auto& each : pieces) {
            if (each->threads == threads) return *each;
        }
        const int32_t count = pieces_for(threads);
        auto made = std::make_unique<Pieces>(Pieces{threads, std::vector<int64_t>(count + 1), std::vector<int64_t>(count + 1), false});
        if (rows > 0) made->cut = functions().cut_rows(indptr.data(), rows, count, made->rows.data(), made->nonzeros.data());
        pieces.push_back(std::move(made));
        return *pieces.back();
    }
};

// The number of writes to a tensor so far; -1: PyTorch does not count them.
inline int64_t version_of(PyObject* object, Home home) {
    if (home == Home::kNumpy) return 0;
    static PyObject* const kVersion = PyUnicode_InternFromString("_version");
    const Ref number(PyObject_GetAttr(object, kVersion));
    const int64_t version = number ? PyLong_AsLongLong(number.get()) : -1;
    if (PyErr_Occurred() != nullptr) PyErr_Clear();
    return version;
}

// Checks and copies the index arrays of a matrix; null: they are no matrix. A copy that `follows` its arrays notices
// changes of them; null if they have no owner.
inline std::shared_ptr<Pattern> copy_pattern(const Csr& matrix, int32_t threads, bool follows = true) {
    auto pattern = std::make_shared<Pattern>();
    pattern->rows = matrix.rows;
    pattern->cols = matrix.cols;
    pattern->nnz = matrix.nnz;
    pattern->indptr.resize(matrix.rows + 1);
    pattern->indices.resize(matrix.nnz);
    int64_t piece_rows[2], piece_nonzeros[2];
    Checked checked{matrix.indptr.data, matrix.indices.data, matrix.rows, matrix.cols, matrix.nnz,
                    static_cast<int32_t>(bytes_of(matrix.indptr.type)), static_cast<int32_t>(bytes_of(matrix.indices.type)),
                    threads, 1, pattern->indptr.data(), pattern->indices.data(), piece_rows, piece_nonzeros, 0, 0, 0};
    if (functions().check_indices(&checked) != 0) return nullptr;
    pattern->ascending = checked.ascending != 0;
    if (!follows) return pattern;
    pattern->owners[0] = owner_of(matrix.indptr_object.get(), matrix.indptr.home);
    pattern->owners[1] = owner_of(matrix.indices_object.get(), matrix.indices.home);
    if (!pattern->owners[0] || !pattern->owners[1]) return nullptr;
    pattern->versions[0] = version_of(matrix.indptr_object.get(), matrix.indptr.home);
    pattern->versions[1] = version_of(matrix.indices_object.get(), matrix.indices.home);
    constexpr int64_t kWindow = 1024;  // words, as in kernels/cpu/watch.cpp
    const View* const arrays[2] = {&matrix.indptr, &matrix.indices};
    for (int i = 0; i < 2; ++i) {
        const int64_t words = arrays[i]->bytes() / 4;
        pattern->sums[i].resize((words + kWindow - 1) / kWindow);
        pattern->watched[i] = {reinterpret_cast<const uint32_t*>(arrays[i]->data), words, pattern->sums[i].data()};
    }
    pattern->watch = {pattern->watched, 2, 0, 0};
    functions().watch(&pattern->watch);
    return pattern;
}

template <typename J>
bool equals(const View& view, const std::vector<J>& copy) {
    const auto same = [&](const auto* from) {
        return std::equal(copy.begin(), copy.end(), from, [](auto one, auto other) { return one == other; });
    };
    return view.type == kI32 ? same(reinterpret_cast<const int32_t*>(view.data)) : same(reinterpret_cast<const int64_t*>(view.data));
}

// Whether index arrays are as they were when they were copied; where PyTorch counted writes they are compared.
inline bool unchanged(const Csr& matrix, Pattern& pattern) {
    if (matrix.indptr.home == Home::kNumpy && matrix.indices.home == Home::kNumpy) return true;
    const int64_t versions[2] = {version_of(matrix.indptr_object.get(), matrix.indptr.home),
                                 version_of(matrix.indices_object.get(), matrix.indices.home)};
    if (versions[0] >= 0 && versions[1] >= 0 && versions[0] == pattern.versions[0] && versions[1] == pattern.versions[1]) {
        return functions().changed(&pattern.watch) == 0;
    }
    std::copy(versions, versions + 2, pattern.versions);
    return equals(matrix.indptr, pattern.indptr) && equals(matrix.indices, pattern.indices);
}

// The transposed pattern, with its nonzeros by column and then by row.
inline Pattern& transposed(Pattern& pattern) {
    if (pattern.transposed != nullptr) return *pattern.transposed;
    auto other = std::make_unique<Pattern>();
    other->rows = pattern.cols;
    other->cols = pattern.rows;
    other->nnz = pattern.nnz;
    other->ascending = true;
    other->indptr.assign(pattern.cols + 1, 0);
    other->indices.resize(pattern.nnz);
    other->order.resize(pattern.nnz);
    for (const int32_t column : pattern.indices) ++other->indptr[column + 1];
    for (int64_t column = 0; column < pattern.cols; ++column) other->indptr[column + 1] += other->indptr[column];
    std::vector<int64_t> next(other->indptr.begin(), other->indptr.end() - 1);
    for (int64_t row = 0; row < pattern.rows; ++row) {
        for (int64_t n = pattern.indptr[row]; n < pattern.indptr[row + 1]; ++n) {
            const int64_t at = next[pattern.indices[n]]++;
            other->indices[at] = static_cast<int32_t>(row);
            other->order[at] = static_cast<int32_t>(n);
        }
    }
    pattern.transposed = std::move(other);
    return *pattern.transposed;
}

class Patterns {
 public:
    // The pattern of these very arrays; null: there is none.
    std::shared_ptr<Pattern> find(const Csr& matrix) {
        const auto entry = known_.find(Key(matrix));
        if (entry == known_.end()) return nullptr;
        if (!entry->second->alive()) {
            drop_dead();
            return nullptr;
        }
        entry->second->last_use = ++uses_;
        return entry->second;
    }

    // Forgets what has one of these arrays, with any shape; null stands for none.
    void forget(const void* indptr, const void* indices) {
        for (auto each = known_.begin(); each != known_.end();) {
            const bool has = (indptr != nullptr && each->first.indptr == indptr)
                || (indices != nullptr && each->first.indices == indices);
            each = has ? known_.erase(each) : std::next(each);
        }
    }

    bool may_keep(const Csr& matrix) const { return (matrix.rows + matrix.nnz) * 12 <= limit_bytes_; }

    // Counts a call with arrays that are in no pattern; tells whether they came often enough to be copied.
    bool recurs(const Csr& matrix, uint32_t checksum) {
        if (!may_keep(matrix)) return false;
        if (seen_.size() >= kSeen) seen_.clear();
        Sighting& sighting = seen_[Key(matrix)];
        sighting.calls = sighting.checksum == checksum ? sighting.calls + 1 : 1;
        sighting.checksum = checksum;
        if (sighting.calls < kCallsToCopy) return false;
        seen_.erase(Key(matrix));
        return true;
    }

    void add(const Csr& matrix, std::shared_ptr<Pattern> pattern) {
        if (known_.size() >= kKnown) drop_dead();
        if (known_.size() >= kKnown) {
            auto oldest = known_.begin();
            for (auto each = known_.begin(); each != known_.end(); ++each) {
                if (each->second->last_use < oldest->second->last_use) oldest = each;
            }
            known_.erase(oldest);
        }
        pattern->last_use = ++uses_;
        known_[Key(matrix)] = std::move(pattern);
    }

    void clear() {
        known_.clear();
        seen_.clear();
    }

    size_t size() {
        drop_dead();
        return known_.size();
    }

    void set_limit(int64_t bytes) { limit_bytes_ = bytes; }

 private:
    static constexpr size_t kKnown = 64, kSeen = 256;
    static constexpr int32_t kCallsToCopy = 3;

    struct Key {
        const void *indptr, *indices;
        int64_t rows, cols, nnz;
        int32_t types;

        explicit Key(const Csr& matrix)
            : indptr(matrix.indptr.data), indices(matrix.indices.data), rows(matrix.rows), cols(matrix.cols),
              nnz(matrix.nnz), types(matrix.indptr.type * 16 + matrix.indices.type) {}
        bool operator==(const Key& other) const {
            return indptr == other.indptr && indices == other.indices && rows == other.rows && cols == other.cols
                && nnz == other.nnz && types == other.types;
        }
    };

    struct Hash {
        size_t operator()(const Key& key) const {
            return (reinterpret_cast<size_t>(key.indptr) >> 4) * 0x9E3779B97F4A7C15ull
                ^ (reinterpret_cast<size_t>(key.indices) >> 4);
        }
    };

    struct Sighting {
        uint32_t checksum = 0;
        int32_t calls = 0;
    };

    void drop_dead() {
        for (auto each = known_.begin(); each != known_.end();) each = each->second->alive() ? std::next(each) : known_.erase(each);
    }

    std::unordered_map<Key, std::shared_ptr<Pattern>, Hash> known_;
    std::unordered_map<Key, Sighting, Hash> seen_;
    int64_t uses_ = 0, limit_bytes_ = int64_t{1} << 30;
};

inline Patterns& patterns() {
    static Patterns* all = new Patterns;
    return *all;
}

// ---- matrices that are passed to a call ---------------------------------------------------------------------------

constexpr int64_t kMaxExtent = INT32_MAX;  // rows, and columns

inline PyObject* name_of(const char* text) { return PyUnicode_InternFromString(text); }

inline bool shape_of(PyObject* shape, int64_t& rows, int64_t& cols) {
    if (shape == nullptr || !PyTuple_Check(shape) || PyTuple_Size(shape) != 2) return false;
    rows = PyLong_AsLongLong(PyTuple_GetItem(shape, 0));
    cols = PyLong_AsLongLong(PyTuple_GetItem(shape, 1));
    if (PyErr_Occurred() == nullptr) return true;
    PyErr_Clear();
    return false;
}

inline bool csr_of_tuple(PyObject* matrix, int64_t columns, Csr& csr) {
    const Py_ssize_t count = PyTuple_Size(matrix);
    if (count != 3 && count != 4) return false;
    csr.indptr_object = Ref::borrowed(PyTuple_GetItem(matrix, 0));
    csr.indices_object = Ref::borrowed(PyTuple_GetItem(matrix, 1));
    csr.values_object = Ref::borrowed(PyTuple_GetItem(matrix, 2));
    if (count == 4) return shape_of(PyTuple_GetItem(matrix, 3), csr.rows, csr.cols) && csr.rows >= 0;
    csr.rows = -1;  // as many as indptr has
    csr.cols = columns;
    return true;
}

inline bool csr_of_scipy(PyObject* matrix, Csr& csr) {
    static PyObject* const kIndptr = name_of("indptr");
    static PyObject* const kIndices = name_of("indices");
    static PyObject* const kData = name_of("data");
    static PyObject* const kShape = name_of("_shape");
    static PyObject* const kCanonical = name_of("_has_canonical_format");
    const Ref fields(PyObject_GenericGetDict(matrix, nullptr));
    if (!fields) {
        PyErr_Clear();
        return false;
    }
    csr.indptr_object = Ref::borrowed(PyDict_GetItemWithError(fields.get(), kIndptr));
    csr.indices_object = Ref::borrowed(PyDict_GetItemWithError(fields.get(), kIndices));
    csr.values_object = Ref::borrowed(PyDict_GetItemWithError(fields.get(), kData));
    csr.canonical = PyDict_GetItemWithError(fields.get(), kCanonical) == Py_True;
    return shape_of(PyDict_GetItemWithError(fields.get(), kShape), csr.rows, csr.cols);
}

inline bool csr_of_tensor(PyObject* matrix, Csr& csr) {
    static PyObject* const kShape = name_of("shape");
    csr.indptr_object = Ref(PyObject_CallMethod(matrix, "crow_indices", nullptr));
    if (csr.indptr_object) csr.indices_object = Ref(PyObject_CallMethod(matrix, "col_indices", nullptr));
    if (csr.indices_object) csr.values_object = Ref(PyObject_CallMethod(matrix, "values", nullptr));
    if (csr.values_object) {
        const Ref shape(PyObject_GetAttr(matrix, kShape));
        if (shape_of(shape.get(), csr.rows, csr.cols)) return true;
    }
    PyErr_Clear();  // it has another layout
    return false;
}

inline bool csr_of_sparse_matrix(PyObject* matrix, Csr& csr) {
    static PyObject* const kPattern = name_of("pattern");
    static PyObject* const kIndptr = name_of("indptr");
    static PyObject* const kIndices = name_of("indices");
    static PyObject* const kValues = name_of("values");
    static PyObject* const kShape = name_of("shape");
    const Ref pattern(PyObject_GetAttr(matrix, kPattern));
    if (pattern) {
        csr.indptr_object = Ref(PyObject_GetAttr(pattern.get(), kIndptr));
        csr.indices_object = Ref(PyObject_GetAttr(pattern.get(), kIndices));
        csr.values_object = Ref(PyObject_GetAttr(matrix, kValues));
        const Ref shape(PyObject_GetAttr(pattern.get(), kShape));
        if (shape_of(shape.get(), csr.rows, csr.cols)) return true;
    }
    PyErr_Clear();
    return false;
}

// Reads the arrays of a matrix; false: it is none that can be computed with as it is.
inline bool csr_of(PyObject* matrix, int64_t columns, Csr& csr) {
    auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(matrix));
    const bool has_arrays = Py_TYPE(matrix) == &PyTuple_Type ? csr_of_tuple(matrix, columns, csr)
        : type == classes().csr_matrix || type == classes().csr_array ? csr_of_scipy(matrix, csr)
        : type == classes().sparse_matrix ? csr_of_sparse_matrix(matrix, csr)
        : is_tensor(matrix) && csr_of_tensor(matrix, csr);
    if (!has_arrays || !csr.indptr_object || !csr.indices_object || !csr.values_object) return false;
    csr.has_values = csr.values_object.get() != Py_None;
    if (!view_of(csr.indptr_object.get(), csr.indptr) || !view_of(csr.indices_object.get(), csr.indices)
        || (csr.has_values && !view_of(csr.values_object.get(), csr.values))) {
        return false;
    }
    const auto is_vector = [](const View& view) { return view.axes == 1 && view.contiguous; };
    csr.nnz = csr.indices.shape[0];
    if (csr.rows < 0) csr.rows = csr.indptr.shape[0] - 1;
    return is_vector(csr.indptr) && is_vector(csr.indices) && is_index(csr.indptr.type) && is_index(csr.indices.type)
        && csr.rows >= 0 && csr.rows <= kMaxExtent && csr.cols >= 0 && csr.cols <= kMaxExtent
        && csr.indptr.shape[0] == csr.rows + 1
        && (!csr.has_values || (is_vector(csr.values) && is_float(csr.values.type) && csr.values.shape[0] == csr.nnz));
}

// ---- prepared matrices ---------------------------------------------------------------------------------------------

// A kernel that Python has chosen for operands of certain shapes, with the rows in its order.
struct Bound {
    Op op;
    Type type;
    int64_t columns[kMaxAxes];  // of each dense operand, all heads together
    int64_t heads;
    bool mean;
    Launch launch;
    Rows rows;  // without values
    bool cut;
    Ref kept;   // owns the arrays of `rows`
};

struct PreparedObject {
    PyObject_HEAD
    int64_t rows, cols, nnz;
    bool ascending;
    PyObject* values;  // NumPy array
    void* watch;       // of the arrays that the matrix came in; null: nothing to notice
    PyObject* kept;    // owns `watch`
    std::vector<std::unique_ptr<Bound>>* bounds;
};

inline PyObject*& prepared_type() {
    static PyObject* type = nullptr;
    return type;
}

// A pattern that its holder passes to calls: its columns may be in any order, and may be there twice.
struct PatternObject {
    PyObject_HEAD
    std::shared_ptr<Pattern>* pattern;
};

inline PyObject*& pattern_type() {
    static PyObject* type = nullptr;
    return type;
}

inline bool is_pattern(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == pattern_type(); }

inline bool is_prepared(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == prepared_type(); }

}  // namespace sparloom::native
