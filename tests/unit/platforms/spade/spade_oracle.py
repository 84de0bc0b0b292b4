"""The front and the row-granular trace once more in plain Python, slow and obvious."""

from collections import Counter, OrderedDict


def tiles_of(pattern, row_panel, column_panel):
    """[(row panel, column panel, [(row, column), ...]), ...] in schedule order without barriers."""
    found = {}
    for row in range(pattern.rows):
        for column in pattern.indices[pattern.indptr[row]:pattern.indptr[row + 1]].tolist():
            found.setdefault((row // row_panel, column // column_panel), []).append((row, column))
    return [(*key, found[key]) for key in sorted(found)]


def deal(tiles, op, pes, barrier):
    """phase -> PE -> list of tiles."""
    if barrier:
        columns = sorted({column for _, column, _ in tiles})
        groups = [[tile for tile in tiles if tile[1] == column] for column in columns]
    else:
        groups = [tiles] if tiles else []
    phases, running = [], 0
    for group in groups:
        phase = [[] for _ in range(pes)]
        for place, tile in enumerate(group):
            phase[tile[0] % pes if op == "spmm" else (running + place) % pes].append(tile)
        running += len(group)
        phases.append(phase)
    return phases


def deal_to_first_free(tiles, op, pes, barrier, costs):
    """phase -> PE -> list of tiles; each goes to the element with the least cost so far, SpMM's row panels stay."""
    columns = sorted({column for _, column, _ in tiles})
    groups = [[tile for tile in tiles if tile[1] == column] for column in columns] if barrier else [tiles]
    phases, owner = [], {}
    for group in groups:
        phase, load = [[] for _ in range(pes)], [0] * pes
        for place, (row, column, inside) in enumerate(group):
            unit = row if op == "spmm" else (column, place)
            pe = owner.setdefault(unit, load.index(min(load)))
            phase[pe].append((row, column, inside))
            load[pe] += costs[0] * len(inside) + costs[1]
        phases.append(phase)
    return phases


class Lru:
    """Sets of rows in order of use, the oldest first; each row maps to its dirty flag."""

    def __init__(self, sets, ways):
        self.sets, self.ways = [OrderedDict() for _ in range(sets)], ways

    def access(self, row, dirty):
        """Returns (hit, dirty row that left or None)."""
        home = self.sets[row % len(self.sets)]
        if row in home:
            home.move_to_end(row)
            home[row] |= dirty
            return True, None
        left = None
        if len(home) == self.ways:
            row_left, was_dirty = home.popitem(last=False)
            left = row_left if was_dirty else None
        home[row] = dirty
        return False, left

    def mark(self, row):
        home = self.sets[row % len(self.sets)]
        if row in home:
            home[row] = True
        return row in home

    def dirty(self):
        return [row for home in self.sets for row, flag in home.items() if flag]


class Trace:
    """Counts by (phase, PE, name), and the dirty rows at the end, for one setting of rMatrix bypass."""

    def __init__(self, geometry, cols, bypass):
        g = self.g = geometry
        self.cols, self.bypass = cols, bypass
        self.l1 = [Lru(g.l1_sets, g.l1_ways) if g.l1_sets else None for _ in range(g.pes)]
        self.l2 = [Lru(g.l2_sets, g.l2_ways) if g.l2_sets else None for _ in range(-(-g.pes // g.pes_per_l2))]
        self.llc = Lru(g.llc_sets, g.llc_ways) if g.llc_sets else None
        self.victim = [Lru(g.victim_sets, g.victim_ways) if g.victim_sets else None for _ in range(g.pes)]
        self.registers = [[] for _ in range(g.pes)]  # newest first
        self.row = [None] * g.pes
        self.run = [0] * g.pes
        self.group = [None] * g.pes
        self.window = [self.fresh() for _ in range(g.pes)]
        self.count = Counter()

    @staticmethod
    def fresh():
        return {"nonzeros": 0, "loads": 0, "slowest": 0}

    def play(self, phases, first_of):
        """phases[phase][pe] = tiles; first_of(tile) = place of its first nonzero in the tiled arrays."""
        g = self.g
        for phase, per_pe in enumerate(phases):
            streams = []
            for pe, tiles in enumerate(per_pe):
                for tile in tiles:
                    self.start_tile((phase, pe), first_of(tile), len(tile[2]))
                streams.append([nonzero for tile in tiles for nonzero in tile[2]])
            for turn in range(0, max(map(len, streams), default=0), g.quantum):
                for pe, stream in enumerate(streams):
                    for row, column in stream[turn:turn + g.quantum]:
                        self.nonzero((phase, pe), row, column)
            for pe, tiles in enumerate(per_pe):
                if tiles:
                    self.end_run((phase, pe))
                    self.close((phase, pe))
        return self.count

    def start_tile(self, key, first, size):
        lines = range(first // 16, (first + size - 1) // 16 + 1)
        self.count[*key, "tiles"] += 1
        self.count[*key, "sparse_lines"] += 3 * sum(line != self.group[key[1]] for line in lines)
        self.count[*key, "output_lines"] += -(-size // 16)
        self.group[key[1]] = lines[-1]

    def nonzero(self, key, r, c):
        pe, r_row = key[1], self.cols + r
        if self.row[pe] != r_row:
            self.end_run(key)
            self.row[pe] = r_row
            self.count[*key, "runs"] += 1
            self.r_access(key, r_row)
        self.run[pe] += 1
        hit = self.touch(pe, c)
        self.touch(pe, r_row)
        if not hit:
            self.load(key, self.read(key, c, False))
        self.count[*key, "nonzeros"] += 1
        window = self.window[pe]
        window["nonzeros"] += 1
        if window["nonzeros"] == max(1, self.g.reservation_stations // self.g.row_lines):
            self.close(key)

    def r_access(self, key, row):
        pe = key[1]
        hit = self.touch(pe, row)
        if self.bypass:
            cache = self.victim[pe]
            if hit:
                self.count[*key, "writes"] += cache is None or not cache.mark(row)
                return
            found, left = cache.access(row, True) if cache else (False, row)
            self.count[*key, "victim" if found else "dram"] += 1
            self.count[*key, "writes"] += left is not None
            self.load(key, 0 if found else 3)
        elif hit:
            self.write(key, self.levels(pe), row)
        else:
            self.load(key, self.read(key, row, True))

    def touch(self, pe, row):
        """Make a row the newest of the registers; True when it was there."""
        held = self.registers[pe]
        hit = row in held
        if hit:
            held.remove(row)
        held.insert(0, row)
        del held[self.g.vector_registers // self.g.row_lines:]
        return hit

    def levels(self, pe):
        named = [("l1", self.l1[pe]), ("l2", self.l2[pe // self.g.pes_per_l2]), ("llc", self.llc)]
        return [(name, cache) for name, cache in named if cache is not None]

    def read(self, key, row, dirty):
        levels = self.levels(key[1])
        for depth, (name, cache) in enumerate(levels):
            hit, left = cache.access(row, dirty)
            if hit:
                self.count[*key, name] += 1
                return {"l1": 0, "l2": 1, "llc": 2}[name]
            if left is not None:
                self.write(key, levels[depth + 1:], left)
            dirty = False
        self.count[*key, "dram"] += 1
        self.count[*key, "writes"] += dirty
        return 3

    def write(self, key, levels, row):
        if not any(cache.mark(row) for _, cache in levels):
            self.count[*key, "writes"] += 1

    def load(self, key, level):
        window = self.window[key[1]]
        if window["loads"] == max(1, self.g.dense_loads // self.g.row_lines):
            self.close(key)
            window = self.window[key[1]]
        window["loads"] += 1
        window["slowest"] = max(window["slowest"], level)

    def close(self, key):
        window = self.window[key[1]]
        name = (None, "l2", "llc", "dram")[window["slowest"]]
        if name:
            self.count[*key, f"windows_{name}"] += 1
            self.count[*key, f"nonzeros_{name}"] += window["nonzeros"]
        self.window[key[1]] = self.fresh()

    def end_run(self, key):
        length = self.run[key[1]]
        self.count[*key, "chain"] += length * min(self.g.reservation_stations, length * self.g.row_lines)
        self.run[key[1]] = 0

    def flush(self):
        """Dirty rows, each counted once however many caches hold it."""
        left = 0
        for pe, cache in enumerate(self.l1):
            if cache:
                left += sum(not any(lower.mark(row) for name, lower in self.levels(pe) if name != "l1")
                            for row in cache.dirty())
        for cache in self.l2:
            if cache:
                left += sum(self.llc is None or not self.llc.mark(row) for row in cache.dirty())
        left += len(self.llc.dirty()) if self.llc else 0
        return left + sum(len(cache.dirty()) for cache in self.victim if cache)
