// What a thread of the kernels works on: rows, nonzeros, columns and places in memory, as functions of numbers alone.
// Any C++ compiler takes the text, so that a test can try all small cases on the host.
//
// Threads of a block work in groups of `lanes`, a power of two of at most a warp. Rows, nonzeros and elements have
// numbers of 64 bits (`Offset`), columns of 32. A dense matrix has at most 2^31 - 1024 columns, so that those which a
// loop or a tile counts beyond the last have numbers, too.

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

typedef long long Offset;

constexpr int kWarp = 32;

HOST_DEVICE inline int lane_of(unsigned thread, int lanes) { return thread % lanes; }
HOST_DEVICE inline int group_of(unsigned thread, int lanes) { return thread / lanes; }
HOST_DEVICE inline int groups_of(unsigned threads, int lanes) { return threads / lanes; }

// Groups are counted along the blocks.
HOST_DEVICE inline Offset group_number(unsigned block, int groups, int group) {
    return Offset(block) * groups + group;
}

// The lanes of a thread's group among those of its warp, a bit for each.
HOST_DEVICE inline unsigned lane_mask(unsigned thread, int lanes) {
    const unsigned first = thread & unsigned(kWarp - lanes);
    return lanes == kWarp ? 0xffffffffu : ((1u << lanes) - 1) << first;
}

// Columns: tiles lie side by side; in a tile, and in a row that one group goes through, packs of `vector` columns lie
// side by side and lanes take them in turn.
HOST_DEVICE inline int tile_origin(unsigned tile, int tile_width) { return tile * tile_width; }
HOST_DEVICE inline int pack_column(int pack, int lane, int lanes, int vector) {
    return (pack * lanes + lane) * vector;
}
HOST_DEVICE inline int pack_stride(int lanes, int vector) { return lanes * vector; }

// In shared memory every group of a block has a tile.
HOST_DEVICE inline int slot_of(int group, int tile_width, int place) { return group * tile_width + place; }

// Columns of a tile that the matrix has.
HOST_DEVICE inline int tile_columns(int origin, int tile_width, int width) {
    return origin + tile_width < width ? tile_width : width - origin;
}

// Where a row of a dense matrix begins, in elements.
HOST_DEVICE inline Offset row_start(Offset row, Offset width) { return row * width; }

// Elements of a dense matrix are counted through all rows.
HOST_DEVICE inline Offset row_of_element(Offset element, int width) { return element / width; }
HOST_DEVICE inline int column_of_element(Offset element, int width) { return int(element % width); }

// Rows of `heads` vectors side by side: vectors are counted through all rows.
HOST_DEVICE inline Offset vector_number(Offset row, int head, int heads) { return row * heads + head; }
template <class Number>
HOST_DEVICE inline Number row_of_vector(Number vector, int heads) {
    return vector / heads;
}
template <class Number>
HOST_DEVICE inline int head_of_vector(Number vector, int heads) {
    return int(vector % heads);
}

struct Range {
    Offset begin, end;

    HOST_DEVICE Offset length() const { return end - begin; }
    HOST_DEVICE bool empty() const { return begin >= end; }

    // Part `part` of `parts` equal ones.
    HOST_DEVICE Range part(int part, int parts) const {
        return Range{begin + length() * part / parts, begin + length() * (part + 1) / parts};
    }
};

// Piece `number` of 0 .. count, which is cut into pieces of `size`; empty beyond the last.
HOST_DEVICE inline Range piece_of(Offset number, Offset size, Offset count) {
    const Offset begin = number * size;
    if (begin >= count) return Range{count, count};
    return Range{begin, begin + size < count ? begin + size : count};
}

// Number `place` of kCount nonzeros from `first` on, or the last before `end` in place of one that does not exist;
// `first` does.
template <int kCount>
HOST_DEVICE inline Offset existing(Offset first, int place, Offset end) {
    return kCount == 1 || first + place < end ? first + place : end - 1;
}

HOST_DEVICE inline Range row_range(const Offset* indptr, Offset row) { return Range{indptr[row], indptr[row + 1]}; }

// The row of nonzero n: indptr[row] <= n < indptr[row + 1].
HOST_DEVICE inline Offset row_of(const Offset* indptr, Offset rows, Offset n) {
    Offset low = 0, high = rows - 1;
    while (low < high) {
        const Offset middle = (low + high) / 2;
        if (indptr[middle + 1] <= n) low = middle + 1;
        else high = middle;
    }
    return low;
}

// The same for a nonzero of `row` or a later one.
HOST_DEVICE inline Offset row_from(const Offset* indptr, Offset row, Offset n) {
    while (indptr[row + 1] <= n) ++row;
    return row;
}

// How many row ends are among the first `diagonal` items, when the nonzeros are merged with the ends of their rows and
// an end follows the nonzeros of its row (Merrill and Garland, SC 2016).
HOST_DEVICE inline Offset ends_before(const Offset* indptr, Offset rows, Offset diagonal) {
    const Offset nonzeros = indptr[rows];
    Offset low = diagonal > nonzeros ? diagonal - nonzeros : 0, high = diagonal < rows ? diagonal : rows;
    while (low < high) {
        const Offset middle = (low + high) / 2;
        if (indptr[middle + 1] < diagonal - middle) low = middle + 1;
        else high = middle;
    }
    return low;
}

// What a group has of the nonzeros merged with the ends of their rows, and how it goes through that, row by row.
struct Walk {
    Offset row, n;      // the nonzero, or the end behind the nonzeros of the row, that comes next
    Offset last, stop;  // the same where it stops

    HOST_DEVICE bool ends_row() const { return row < last; }
    HOST_DEVICE bool began_row(const Offset* indptr) const { return n <= indptr[row]; }
    HOST_DEVICE Range rest_of_row(const Offset* indptr) const { return Range{n, indptr[row + 1]}; }
    HOST_DEVICE void next_row(const Offset* indptr) { n = indptr[++row]; }

    // What is left of the row that it does not end.
    HOST_DEVICE Range carry() const { return Range{n, stop}; }
};

// Walk of the group that takes `items` of the nonzeros merged with the ends of their rows.
HOST_DEVICE inline Walk walk_of(const Offset* indptr, Offset rows, Range items) {
    const Offset row = ends_before(indptr, rows, items.begin), last = ends_before(indptr, rows, items.end);
    return Walk{row, items.begin - row, last, items.end - last};
}

// carry_rows: for every group the row of its carry, -1 where there is none. Tells whether a group began that row.
HOST_DEVICE inline bool begins_carry(const int* carry_rows, Offset group) {
    return carry_rows[group] >= 0 && (group == 0 || carry_rows[group - 1] != carry_rows[group]);
}

// The group that ends the row which `group` began.
HOST_DEVICE inline Offset ending_group(const int* carry_rows, Offset group) {
    Offset next = group + 1;
    while (carry_rows[next] == carry_rows[group]) ++next;
    return next;
}
