// Tries the functions of kernels/cuda/index.cuh on all small cases and at the ends of their numbers. Ends with 0, or
// names the function that is wrong and ends with 1.

#include "index.cuh"

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

typedef __int128 Wide;

// Volatile, as overflows are not told where the compiler knows the numbers.
const volatile unsigned kLastBlock = 0x7ffffffe;  // of a grid
const volatile Offset kLastRow = 0x7ffffffe;      // numbers of hub rows and of carries are int
const volatile int kWidest = 0x7fffffff - 1023;   // columns of a dense matrix

constexpr Offset kGuard = 1000000000000000000;  // beyond both ends of an indptr

void check(bool holds, const char* what) {
    if (holds) return;
    std::printf("%s\n", what);
    std::exit(1);
}

// Every one of 0 .. count is taken once.
class Cover {
   public:
    explicit Cover(Offset count) : times_(count) {}

    void take(Offset place, const char* what) {
        check(place >= 0 && place < Offset(times_.size()) && times_[place]++ == 0, what);
    }
    void complete(const char* what) const {
        for (char times : times_) check(times == 1, what);
    }

   private:
    std::vector<char> times_;
};

void threads_are_lanes_of_groups() {
    const char* const what = "lane_of, group_of, groups_of: a thread is one lane of one group";
    for (int lanes = 1; lanes <= kWarp; lanes *= 2) {
        for (int threads = lanes; threads <= 1024; threads += lanes) {
            const int groups = groups_of(threads, lanes);
            check(groups * lanes == threads, what);
            Cover cover(threads);
            for (int thread = 0; thread < threads; ++thread) {
                const int lane = lane_of(thread, lanes), group = group_of(thread, lanes);
                check(lane >= 0 && lane < lanes && group >= 0 && group < groups, what);
                cover.take(group * lanes + lane, what);
            }
            cover.complete(what);
        }
    }
}

void groups_are_counted_along_blocks() {
    const char* const what = "group_number: groups have numbers in order";
    for (int groups = 1; groups <= 32; ++groups) {
        Offset next = 0;
        for (unsigned block = 0; block < 6; ++block) {
            for (int group = 0; group < groups; ++group) check(group_number(block, groups, group) == next++, what);
        }
    }
    check(group_number(kLastBlock, 1024, 1023) == Wide(kLastBlock) * 1024 + 1023, what);
}

void masks_are_of_groups() {
    const char* const what = "lane_mask: the lanes of one group in one warp";
    for (int lanes = 1; lanes <= kWarp; lanes *= 2) {
        for (unsigned thread = 0; thread < 1024; ++thread) {
            const unsigned mask = lane_mask(thread, lanes), warp = thread / kWarp * kWarp;
            for (unsigned bit = 0; bit < kWarp; ++bit) {
                const bool together = group_of(warp + bit, lanes) == group_of(thread, lanes);
                check((mask >> bit & 1) == unsigned(together), what);
            }
            for (int step = lanes / 2; step > 0; step /= 2) check(mask >> (thread % kWarp ^ step) & 1, what);
        }
    }
}

struct Packs {
    int lanes, vector, packs;

    int tile_width() const { return lanes * vector * packs; }
};

void tiles_hold_every_column(const Packs& of, int width) {
    const char* const what = "tile_origin, pack_column: a column is in one pack of one tile";
    const int tiles = (width + of.tile_width() - 1) / of.tile_width();
    Cover cover(width);
    Offset next = 0;
    for (int tile = 0; tile < tiles; ++tile) {
        const int origin = tile_origin(tile, of.tile_width()), columns = tile_columns(origin, of.tile_width(), width);
        check(origin == next && columns > 0 && columns <= of.tile_width(), "tile_columns: tiles lie side by side");
        next = origin + columns;
        for (int lane = 0; lane < of.lanes; ++lane) {
            for (int pack = 0; pack < of.packs; ++pack) {
                const int column = origin + pack_column(pack, lane, of.lanes, of.vector);
                check(column % of.vector == 0, "pack_column: packs are aligned");
                for (int v = 0; v < of.vector && column < width; ++v) cover.take(column + v, what);
            }
        }
    }
    check(next == width, "tile_columns: tiles end where the matrix does");
    cover.complete(what);
}

void lanes_go_through_every_column(const Packs& of, int width) {
    const char* const what = "pack_column, pack_stride: a column is met by one lane once";
    Cover cover(width);
    for (int lane = 0; lane < of.lanes; ++lane) {
        for (int column = pack_column(0, lane, of.lanes, of.vector); column < width;
             column += pack_stride(of.lanes, of.vector)) {
            for (int v = 0; v < of.vector; ++v) cover.take(column + v, what);
        }
    }
    cover.complete(what);
}

void groups_have_slots_of_their_own(const Packs& of) {
    const char* const what = "slot_of: a sum of a group has one slot";
    for (int groups = 1; groups <= 4; ++groups) {
        Cover cover(groups * of.tile_width());
        for (int group = 0; group < groups; ++group) {
            for (int lane = 0; lane < of.lanes; ++lane) {
                for (int pack = 0; pack < of.packs; ++pack) {
                    const int place = pack_column(pack, lane, of.lanes, of.vector);
                    for (int v = 0; v < of.vector; ++v) cover.take(slot_of(group, of.tile_width(), place + v), what);
                }
            }
        }
        cover.complete(what);
    }
}

void widest_matrices_have_numbers_of_columns(const Packs& of) {
    const int width = kWidest / of.vector * of.vector, tile = (width - 1) / of.tile_width();
    const int origin = tile_origin(tile, of.tile_width()), stride = pack_stride(of.lanes, of.vector);
    check(origin == Wide(tile) * of.tile_width(), "tile_origin: the last tile of the widest matrix");
    check(origin + Wide(tile_columns(origin, of.tile_width(), width)) == width, "tile_columns: the last tile");
    for (int lane = 0; lane < of.lanes; ++lane) {
        const int last = origin + pack_column(of.packs - 1, lane, of.lanes, of.vector);
        check(last >= origin, "pack_column: behind the last column");
        int column = pack_column(width / stride - 1, lane, of.lanes, of.vector), met = 0;
        check(column >= 0 && column < width, "pack_column: the last columns");
        for (; column < width; column += stride) ++met;
        check(column >= width && met <= 2, "pack_column, pack_stride: behind the last column");
    }
}

void columns() {
    for (int lanes : {1, 8, 16, 32}) {
        for (int vector : {1, 2, 4}) {
            for (int packs : {1, 2, 3, 4, 5, 6, 7, 8, 16, 32}) {
                const Packs of{lanes, vector, packs};
                if (vector * packs > 32) continue;
                for (int width = vector; width <= 2 * of.tile_width() + 2 * vector; width += vector) {
                    tiles_hold_every_column(of, width);
                    lanes_go_through_every_column(of, width);
                }
                groups_have_slots_of_their_own(of);
                widest_matrices_have_numbers_of_columns(of);
            }
        }
    }
}

void elements_have_places_of_their_own() {
    const char* const start = "row_start: rows follow each other";
    const char* const elements = "row_of_element, column_of_element: elements are counted through rows";
    const char* const vectors = "vector_number, row_of_vector, head_of_vector: vectors are counted through rows";
    for (int heads = 1; heads <= 9; ++heads) {
        Offset next = 0;
        for (Offset row = 0; row < 9; ++row) {
            check(row_start(row, heads) == next, start);
            for (int head = 0; head < heads; ++head, ++next) {
                check(row_of_element(next, heads) == row && column_of_element(next, heads) == head, elements);
                check(vector_number(row, head, heads) == next, vectors);
                check(row_of_vector(next, heads) == row && head_of_vector(next, heads) == head, vectors);
                const unsigned block = unsigned(next);
                check(row_of_vector(block, heads) == unsigned(row) && head_of_vector(block, heads) == head, vectors);
            }
        }
    }
    check(row_start(kLastRow, kWidest) == Wide(kLastRow) * kWidest, start);
    const Offset element = row_start(kLastRow, kWidest) + kWidest - 1;
    check(row_of_element(element, kWidest) == kLastRow && column_of_element(element, kWidest) == kWidest - 1, elements);
    const Offset vector = vector_number(kLastRow, 1022, 1023);
    check(vector == Wide(kLastRow) * 1023 + 1022, vectors);
    check(row_of_vector(vector, 1023) == kLastRow && head_of_vector(vector, 1023) == 1022, vectors);
    check(row_of_vector(kLastBlock, 1) == kLastBlock && head_of_vector(kLastBlock, 1023) == int(kLastBlock % 1023),
          vectors);
}

void parts_make_the_range(Range range, int parts) {
    const char* const what = "Range::part: parts are adjacent and equal but for one";
    Offset next = range.begin;
    for (int part = 0; part < parts; ++part) {
        const Range mine = range.part(part, parts);
        check(mine.begin == next && mine.length() >= range.length() / parts, what);
        check(mine.length() <= range.length() / parts + 1 && mine.empty() == (mine.begin == mine.end), what);
        next = mine.end;
    }
    check(next == range.end, what);
}

void pieces_make_the_count(Offset size, Offset count) {
    const char* const what = "piece_of: pieces are adjacent, and empty beyond the last";
    const Offset pieces = count / size + (count % size != 0);
    const Offset first = pieces > 64 ? pieces - 64 : 0;
    Offset next = first * size;
    for (Offset number = first; number < pieces + 3; ++number) {
        const Range piece = piece_of(number, size, count);
        check(piece.begin == next && piece.empty() == (number >= pieces), what);
        check(piece.length() <= size && (number + 1 >= pieces || piece.length() == size), what);
        next = piece.end;
    }
    check(next == count, what);
}

void ranges() {
    for (Offset begin = 0; begin < 3; ++begin) {
        for (Offset length = 0; length <= 70; ++length) {
            for (int parts = 1; parts <= 33; ++parts) parts_make_the_range(Range{begin, begin + length}, parts);
        }
    }
    for (Offset length : {0x7fffffffLL, 0x80000001LL, 1LL << 40}) parts_make_the_range(Range{length, 2 * length}, 128);
    for (Offset count = 0; count <= 70; ++count) {
        for (Offset size = 1; size <= 72; ++size) pieces_make_the_count(size, count);
    }
    for (Offset count : {0x7fffffffLL, 0x80000001LL, 1LL << 40}) {
        for (Offset size : {1LL, 64LL, 0x7fffffffLL}) pieces_make_the_count(size, count);
    }
    const Range last = piece_of(kLastBlock, 0x7fffffff, 1LL << 62);
    check(last.begin == Wide(kLastBlock) * 0x7fffffff, "piece_of: the last block");
    for (Offset end = 1; end < 5; ++end) {
        for (Offset first = 0; first < end; ++first) {
            check(existing<1>(first, 0, end) == first, "existing: the nonzero");
            for (int after = 0; after < 5; ++after) {
                const Offset n = existing<5>(first, after, end);
                check(n == (first + after < end ? first + after : end - 1), "existing: a nonzero there is");
            }
        }
    }
}

// The row pointers of a matrix, between guards.
class Rows {
   public:
    explicit Rows(const std::vector<Offset>& lengths) : store_(lengths.size() + 3, kGuard) {
        store_[0] = -kGuard;
        store_[1] = 0;
        for (std::size_t row = 0; row < lengths.size(); ++row) store_[row + 2] = store_[row + 1] + lengths[row];
    }

    const Offset* indptr() const { return store_.data() + 1; }
    Offset rows() const { return Offset(store_.size()) - 3; }
    Offset nonzeros() const { return indptr()[rows()]; }
    Offset items() const { return rows() + nonzeros(); }
    bool holds(Offset row, Offset n) const {
        return row >= 0 && row < rows() && indptr()[row] <= n && n < indptr()[row + 1];
    }

   private:
    std::vector<Offset> store_;
};

void nonzero_has_its_row(const Rows& of, Offset n) {
    const Offset row = row_of(of.indptr(), of.rows(), n);
    check(of.holds(row, n), "row_of: the row holds the nonzero");
    const Range range = row_range(of.indptr(), row);
    check(range.begin <= n && n < range.end, "row_range: the nonzeros of the row");
    for (Offset from = 0; from <= row; ++from) {
        check(row_from(of.indptr(), from, n) == row, "row_from: the row holds the nonzero");
    }
}

// As groups of SDDMM take them: kSize side by side, whatever their rows.
template <int kSize>
void pieces_hold_every_nonzero(const Rows& of) {
    const char* const what = "piece_of, existing, row_from: a nonzero is taken once, in its row";
    Cover cover(of.nonzeros());
    for (Offset number = 0; number <= of.nonzeros() / kSize + 2; ++number) {
        const Range mine = piece_of(number, kSize, of.nonzeros());
        if (mine.empty()) continue;
        Offset row = row_of(of.indptr(), of.rows(), mine.begin);
        for (int c = 0; c < kSize; ++c) {
            const Offset n = existing<kSize>(mine.begin, c, mine.end);
            row = row_from(of.indptr(), row, n);
            check(of.holds(row, n), what);
            if (mine.begin + c < mine.end) cover.take(mine.begin + c, what);
        }
    }
    cover.complete(what);
}

void merge_path_is_walked(const Rows& of) {
    const char* const what = "ends_before: the merge path, one item after the other";
    Offset row = 0, n = 0;
    for (Offset diagonal = 0; diagonal <= of.items(); ++diagonal) {
        const Offset ends = ends_before(of.indptr(), of.rows(), diagonal);
        check(ends == row && diagonal - ends == n, what);
        if (diagonal == of.items()) break;
        if (n < of.indptr()[row + 1]) ++n;
        else ++row;
    }
    check(row == of.rows() && n == of.nonzeros(), "ends_before: the path ends at (rows, nonzeros)");
}

// The same where there are too many items to walk: on the path an end follows the nonzeros of its row.
void merge_path_is_met(const Rows& of, Offset diagonal) {
    const Offset row = ends_before(of.indptr(), of.rows(), diagonal), n = diagonal - row;
    const bool after = row >= 0 && row <= of.rows() && of.indptr()[row] <= n;
    check(after && (row == of.rows() ? n == of.nonzeros() : n <= of.indptr()[row + 1]), "ends_before: on the path");
}

// As groups of SpMM take them and put together what they carry.
void walks_make_every_row(const Rows& of, Offset size) {
    const char* const what = "walk_of, next_row: nonzeros are met in order, and a row is written once";
    const char* const together = "begins_carry, ending_group: a row is put together from its first nonzero to its last";
    const Offset* const indptr = of.indptr();
    const Offset groups = of.items() / size + (of.items() % size != 0);
    std::vector<Range> carries, rests;
    std::vector<int> carry_rows, rest_rows;
    Cover rows(of.rows());
    Offset next = 0;  // nonzero
    for (Offset group = 0; group < groups + 2; ++group) {
        const Range items = piece_of(group, size, of.items());
        check(items.empty() == (group >= groups), "piece_of: items for every group");
        if (items.empty()) continue;
        Walk walk = walk_of(indptr, of.rows(), items);
        rests.push_back(Range{-1, -1});
        rest_rows.push_back(-1);
        if (walk.ends_row() && !walk.began_row(indptr)) {
            rests.back() = walk.rest_of_row(indptr);
            rest_rows.back() = int(walk.row);
            check(walk.row < of.rows() && walk.n == next, "began_row: the rest of a row");
            check(walk.n > indptr[walk.row], "began_row: somebody else has nonzeros of the row");
            next = rests.back().end;
            walk.next_row(indptr);
        }
        for (; walk.ends_row(); walk.next_row(indptr)) {
            const Range row = walk.rest_of_row(indptr);
            check(row.begin == next && row.begin == indptr[walk.row] && row.end == indptr[walk.row + 1], what);
            rows.take(walk.row, what);
            next = row.end;
        }
        carries.push_back(walk.carry());
        carry_rows.push_back(carries.back().empty() ? -1 : int(walk.last));
        check(walk.row == walk.last && carries.back().begin <= carries.back().end, what);
        if (carries.back().empty()) continue;
        check(walk.row < of.rows() && carries.back().begin == next && carries.back().end <= indptr[walk.row + 1], what);
        next = carries.back().end;
    }
    check(next == of.nonzeros(), what);
    carry_rows.push_back(-2);
    for (Offset group = 0; group < groups; ++group) {
        if (!begins_carry(carry_rows.data(), group)) continue;
        const Offset row = carry_rows[group], ending = ending_group(carry_rows.data(), group);
        check(ending < groups && rest_rows[ending] == row, together);
        Offset n = indptr[row];
        for (Offset part = group; part < ending; ++part) {
            check(carry_rows[part] == row && carries[part].begin == n, together);
            n = carries[part].end;
        }
        check(rests[ending].begin == n && rests[ending].end == indptr[row + 1], together);
        rows.take(row, together);
    }
    rows.complete("walk_of, begins_carry: every row is written");
}

// All matrices of so many rows with at most `longest` nonzeros in each.
void small_matrices(int rows, Offset longest) {
    std::vector<Offset> lengths(rows, 0);
    for (int row = 0;;) {
        const Rows of(lengths);
        for (Offset n = 0; n < of.nonzeros(); ++n) nonzero_has_its_row(of, n);
        pieces_hold_every_nonzero<1>(of);
        pieces_hold_every_nonzero<2>(of);
        pieces_hold_every_nonzero<4>(of);
        merge_path_is_walked(of);
        for (Offset size = 1; size <= of.items() + 1; ++size) walks_make_every_row(of, size);
        for (row = 0; row < rows && ++lengths[row] > longest; ++row) lengths[row] = 0;
        if (row == rows) return;
    }
}

void large_matrices() {
    const Offset half = 0x7fffffff;
    for (const std::vector<Offset>& lengths : {std::vector<Offset>{half, 0, 1, half, half, 0},
                                               std::vector<Offset>{0, half - 2, 1, 1, 1, 3},
                                               std::vector<Offset>{1LL << 40, 5, 0, 1LL << 33}}) {
        const Rows of(lengths);
        for (Offset row = 0; row <= of.rows(); ++row) {
            for (Offset near = -9; near <= 9; ++near) {
                const Offset n = of.indptr()[row] + near, diagonal = n + row;
                if (n >= 0 && n < of.nonzeros()) nonzero_has_its_row(of, n);
                if (diagonal >= 0 && diagonal <= of.items()) merge_path_is_met(of, diagonal);
            }
        }
        for (Offset groups = 1; groups <= 300; ++groups) walks_make_every_row(of, of.items() / groups + 1);
    }
}

}  // namespace

int main() {
    threads_are_lanes_of_groups();
    groups_are_counted_along_blocks();
    masks_are_of_groups();
    columns();
    elements_have_places_of_their_own();
    ranges();
    for (int rows = 0; rows <= 4; ++rows) small_matrices(rows, 5);
    small_matrices(5, 4);
    small_matrices(6, 3);
    small_matrices(7, 2);
    large_matrices();
    return 0;
}
