// Cuts a CSR pattern into tiles and deals them to processing elements.
//
// A tile is row_panel rows by column_panel columns; empty tiles do not exist. All functions write into arrays that the
// caller has allocated; sizes are given at each parameter.
#include "tiling.hpp"

#include <algorithm>
#include <exception>
#include <vector>

extern "C" {

// Returns -1 where there is no memory, which is all that can be thrown; else what is said here, or 0.

// indptr (rows + 1,), indices (nnz,) sorted within each row. Out: row, column, source (nnz,): source is the position of
// the nonzero in the CSR arrays; tile_row, tile_column (nnz,) panel numbers; begin (nnz + 1,). Returns the number of
// tiles. source may be null.
int64_t spade_tile(int64_t rows, int64_t cols, const int64_t* indptr, const int32_t* indices, int64_t row_panel,
                   int64_t column_panel, int32_t* row, int32_t* column, int64_t* source, int32_t* tile_row,
                   int32_t* tile_column, int64_t* begin) try {
    const int64_t panels = (cols + column_panel - 1) / column_panel;
    std::vector<int64_t> next(static_cast<size_t>(panels), 0);  // nonzeros, then write position, of a column panel
    std::vector<int32_t> touched;
    int64_t tiles = 0;
    for (int64_t first = 0; first < rows; first += row_panel) {
        const int64_t last = std::min(rows, first + row_panel);
        touched.clear();
        for (int64_t k = indptr[first]; k < indptr[last];) {
            const auto panel = static_cast<int32_t>(indices[k] / column_panel);
            const int64_t limit = (panel + 1) * column_panel;
            if (next[panel]++ == 0) touched.push_back(panel);
            for (++k; k < indptr[last] && indices[k] > indices[k - 1] && indices[k] < limit; ++k) ++next[panel];
        }
        std::sort(touched.begin(), touched.end());
        int64_t position = indptr[first];
        for (const int32_t panel : touched) {
            tile_row[tiles] = static_cast<int32_t>(first / row_panel);
            tile_column[tiles] = panel;
            begin[tiles++] = position;
            position += next[panel];
            next[panel] = begin[tiles - 1];
        }
        for (int64_t i = first; i < last; ++i)
            for (int64_t k = indptr[i]; k < indptr[i + 1];) {
                const int64_t panel = indices[k] / column_panel;
                const int64_t limit = (panel + 1) * column_panel;
                int64_t to = next[panel];
                for (; k < indptr[i + 1] && indices[k] < limit; ++k, ++to) {
                    row[to] = static_cast<int32_t>(i);
                    column[to] = indices[k];
                    if (source) source[to] = k;
                }
                next[panel] = to;
            }
        for (const int32_t panel : touched) next[panel] = 0;
    }
    begin[tiles] = indptr[rows];
    return tiles;
} catch (const std::exception&) {
    return -1;
}

// Deals tiles to PEs, in schedule order; by_panel keeps all tiles of a row panel on one PE. Both costs 0: in turn (panel
// modulo pes, or running tile number modulo pes); else to the PE with the least cost so far in its phase, the cost of a
// tile being nonzero_cost per nonzero + tile_cost. barrier: a phase per non-empty column panel, otherwise one phase.
// begin (tiles + 1,). Out: order (tiles,), start (phases * pes + 1,) with at most `panels` phases, panels = number of
// column panels. Returns the phases.
int64_t spade_schedule(int64_t tiles, const int32_t* tile_row, const int32_t* tile_column, const int64_t* begin,
                       int64_t panels, int64_t pes, int64_t by_panel, int64_t barrier, int64_t nonzero_cost,
                       int64_t tile_cost, int32_t* order, int64_t* start) try {
    std::vector<int64_t> count(static_cast<size_t>(barrier ? panels : 1), 0);
    for (int64_t t = 0; t < tiles; ++t) ++count[barrier ? tile_column[t] : 0];
    std::vector<int64_t> phase_of(count.size(), 0), first(count.size(), 0);
    int64_t phases = 0, before = 0;
    for (size_t panel = 0; panel < count.size(); ++panel) {
        phase_of[panel] = phases;
        first[panel] = before;
        before += count[panel];
        phases += count[panel] > 0;
    }
    std::vector<int64_t> sequence(static_cast<size_t>(tiles)), place(first);
    for (int64_t t = 0; t < tiles; ++t) sequence[place[barrier ? tile_column[t] : 0]++] = t;

    const bool in_turn = nonzero_cost == 0 && tile_cost == 0;
    std::vector<int64_t> slot(static_cast<size_t>(tiles)), load(static_cast<size_t>(pes), 0);
    std::vector<int64_t> owner(tiles ? static_cast<size_t>(tile_row[tiles - 1]) + 1 : 0, -1);
    std::fill(start, start + phases * pes + 1, 0);
    for (int64_t n = 0; n < tiles; ++n) {
        const int64_t t = sequence[n], group = barrier ? tile_column[t] : 0;
        if (n == first[group]) std::fill(load.begin(), load.end(), 0);
        int64_t& kept = owner[tile_row[t]];
        int64_t pe = kept;
        if (in_turn) pe = (by_panel ? tile_row[t] : n) % pes;
        else if (!by_panel || kept < 0) pe = std::min_element(load.begin(), load.end()) - load.begin();
        kept = pe;
        load[pe] += (begin[t + 1] - begin[t]) * nonzero_cost + tile_cost;
        slot[t] = phase_of[group] * pes + pe;
        ++start[slot[t] + 1];
    }
    for (int64_t s = 0; s < phases * pes; ++s) start[s + 1] += start[s];
    std::vector<int64_t> next(start, start + phases * pes);
    for (int64_t t = 0; t < tiles; ++t) order[next[slot[t]]++] = static_cast<int32_t>(t);
    return phases;
} catch (const std::exception&) {
    return -1;
}

}  // extern "C"
