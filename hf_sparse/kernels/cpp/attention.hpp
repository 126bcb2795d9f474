// entmax attention, forward and backward, by tiles of queries. The scores of a tile against all keys stay in cache, as
// rows of keys with the tile's queries side by side, so that thresholds of all of them are solved at once. Nothing of
// size queries x keys is stored: the backward pass computes the scores again, from the thresholds of the forward.
//
// Of the keys, blocks above whose scores all thresholds lie are skipped. What is left is multiplied whole where it is
// crowded, and else key by key, from a list for each query.
//
// With w = u^(P - 1), u = [x - tau]_+, and g_j = <dout, v_j>: the derivative in score j is w_j (g_j - delta), where
// delta is the mean of g under w (Peters et al. 2019, Proposition 2); that in alpha is the sum of
// w_j (g_j - delta) (f_j - mean f) / (alpha - 1)^2, f = u - u log u (Correia et al. 2019, Proposition 1).

#pragma once

#include <utility>
#include <vector>

#include "newton.hpp"
#include "parallel.hpp"
#include "product.hpp"
#include "tiles.hpp"

extern "C" {

// (batch, heads, rows, columns), columns side by side and a multiple of LANES; how far apart the others are.
struct Rows { float* at; int64_t batch, head, row; };
// The same in bfloat16.
struct HalfRows { const uint16_t* at; int64_t batch, head, row; };
// (batch, heads, queries, keys) or null.
struct Pairs { const float* at; int64_t batch, head, query, key; };

struct AttentionCall {
    Rows q, k, v, out;
    Rows dout, dq, dk, dv;          // dk and dv are zero at first; of each part of the queries there is one
    int64_t dk_part, dv_part;       // how far apart those are
    HalfRows half_q, half_k, half_v;  // what tiles multiply, null without them; of values the columns, a row each, of
                                      // all keys and KEYS zeros, and only in the forward pass
    Pairs added[2];                 // to scores; -inf hides
    const float *alpha, *temperature;  // (heads)
    const float* sinks;             // (heads) or null
    float* tau;                     // (batch, heads, queries): thresholds in x less base_of, NO_SUPPORT without keys
    float* dalpha;                  // the same shape, or null
    float* dsinks;                  // the same shape, or null
    int64_t num_sequences, num_heads, num_key_heads, num_queries, num_keys, head_dim, value_dim;
    int64_t num_parts;              // of the queries, in the backward pass
    int64_t window;                 // keys that a query sees, 0 for all; only with causal
    float scaling, softcap;         // softcap 0 for none
    int32_t causal;                 // the last query sees the last key
};

}  // extern "C"

namespace {

constexpr int VECTORS = LANES == 16 ? 2 : 4;
constexpr int64_t TILE = VECTORS * LANES;  // queries
constexpr int64_t KEYS = 64;         // of a block; as many as are summed up in float32
constexpr size_t RUN = 4;            // blocks that are multiplied together
constexpr float NO_SUPPORT = 1e30f;
static_assert(!HF_SPARSE_TILES || (TILE == TILE_COLUMNS && KEYS % DEPTH == 0), "see tiles.hpp");
// Lists pay off up to this part of the pairs in a tile, one in so many: of products by tiles up to a smaller one.
constexpr int64_t CROWDED = 5, CROWDED_FOR_TILES = 50;

// A number for each query of a tile.
struct Numbers {
    Floats of[VECTORS];
    static Numbers at(const float* p) { return load_as<Numbers>(p); }
    static Numbers all_of(float v) {
        Numbers same;
        for (auto& part : same.of) part = all(v);
        return same;
    }
    void store(float* p) const { std::memcpy(p, of, sizeof of); }
};

// Memory of a thread, kept for the next call.
struct Scratch {
    static constexpr uintptr_t ALIGNMENT = 64;  // bytes
    std::vector<float> memory;
    float *x, *g, *slope, *turned_q, *turned_dout, *rows, *value;
    int32_t* column;
    std::vector<int32_t> live;
    int64_t count[TILE];

    void resize(const AttentionCall& call, bool backward) {
        const int64_t pairs = TILE * (call.num_keys + KEYS), widest = TILE * std::max(call.head_dim, call.value_dim);
        const bool capped = backward && call.softcap > 0;
        const size_t size = (3 + backward + capped) * pairs + 3 * widest + ALIGNMENT / sizeof(float);
        if (memory.size() < size) memory.resize(size);
        float* next = memory.data() + (-reinterpret_cast<uintptr_t>(memory.data()) & (ALIGNMENT - 1)) / sizeof(float);
        const auto take = [&](int64_t n) { return std::exchange(next, next + n); };
        x = take(pairs), value = take(pairs), column = reinterpret_cast<int32_t*>(take(pairs));
        g = backward ? take(pairs) : nullptr, slope = capped ? take(pairs) : nullptr;
        turned_q = take(widest), turned_dout = take(widest), rows = take(widest);
    }
};
Scratch& scratch_for(const AttentionCall& call, bool backward) {
    thread_local Scratch scratch;
    scratch.resize(call, backward);
    return scratch;
}

// A tile of queries of one head, and the keys that one of them sees.
struct Tile {
    int64_t batch, head, key_head, query, num_queries, first, end;
    float scale, exponent;  // of x, the scores times alpha - 1; P
    int64_t num_keys() const { return end - first; }
    int64_t num_blocks() const { return (num_keys() + KEYS - 1) / KEYS; }
};

template <class Of> auto row_of(const Of& x, int64_t batch, int64_t head, int64_t row) {
    return x.at + batch * x.batch + head * x.head + row * x.row;
}

// P = 1 / (alpha - 1), exactly whole where rounding alone keeps it from that, as far as products are taken.
inline float exponent_of(float alpha) {
    const float exponent = 1 / (alpha - 1), whole = std::nearbyint(exponent);
    return whole <= LARGEST_WHOLE && std::fabs(exponent - whole) < 8 * EPS * whole ? whole : exponent;
}

Tile tile_at(const AttentionCall& call, int64_t batch, int64_t head, int64_t query) {
    Tile tile{batch, head, head / (call.num_heads / call.num_key_heads), query};
    tile.num_queries = std::min(TILE, call.num_queries - query);
    const int64_t offset = call.num_keys - call.num_queries;
    tile.end = call.causal ? std::max<int64_t>(0, query + tile.num_queries + offset) : call.num_keys;
    tile.first = call.window ? std::min(tile.end, std::max<int64_t>(0, query + offset - call.window + 1)) : 0;
    tile.scale = (call.alpha[head] - 1) / call.temperature[head];
    tile.exponent = exponent_of(call.alpha[head]);
    return tile;
}

// (columns, TILE): rows of the tile, times a factor, turned; zeros beside them.
void turn(const float* rows, int64_t step, int64_t num_rows, int64_t columns, float factor, float* turned) {
    if (num_rows < TILE) std::fill_n(turned, columns * TILE, 0.0f);
    for (int64_t i = 0; i < num_rows; i++)
        for (int64_t d = 0; d < columns; d++) turned[d * TILE + i] = rows[i * step + d] * factor;
}

// The same of rows of bfloat16, in pairs of columns: (columns / 2, TILE).
void turn_pairs(const uint16_t* rows, int64_t step, int64_t num_rows, int64_t columns, uint32_t* turned) {
    if (num_rows < TILE) std::fill_n(turned, columns / 2 * TILE, 0);
    for (int64_t i = 0; i < num_rows; i++)
        for (int64_t d = 0; d < columns; d += 2) std::memcpy(turned + d / 2 * TILE + i, rows + i * step + d, 4);
}

// c (num_rows, TILE): rows of bfloat16 times the rows of a tile, turned in pairs. What is left of them at the end is
// multiplied beside rows of zeros.
void multiply_rows(BRows rows, int64_t num_rows, BPairs turned, int64_t depth, float* c) {
    int64_t i = 0;
    for (; i + TILE <= num_rows; i += TILE)
        tile_product({rows.at + i * rows.step, rows.step}, turned, depth, c + i * TILE, false);
    const int64_t left = num_rows - i;
    if (left == 0) return;
    static thread_local std::vector<uint16_t> last;
    last.assign(TILE * depth, 0);
    for (int64_t k = 0; k < left; k++) std::copy_n(rows.at + (i + k) * rows.step, depth, &last[k * depth]);
    float made[TILE * TILE];
    tile_product({last.data(), depth}, turned, depth, made, false);
    std::copy_n(made, left * TILE, c + i * TILE);
}

inline Floats tanh_of(Floats v) {
    const Floats large = 1.0f - 2.0f / (exp2_of(smallest(all(64.0f), v * 2.8853900817779268f)) + 1.0f);
    const Floats s = v * v;  // near zero the difference above has few digits left: the series of tanh has all
    const Floats series = v + v * s * (-1.0f / 3 + s * (2.0f / 15 + s * (-17.0f / 315 + s * (62.0f / 2835))));
    return s < 0.09f ? series : large;
}

// ---- Scores -----------------------------------------------------------------------------------------------------

void add_pairs(const Pairs& pairs, const Tile& tile, float* x) {
    const float* from = pairs.at + tile.batch * pairs.batch + tile.head * pairs.head + tile.query * pairs.query;
    for (int64_t j = tile.first; j < tile.end; j++, x += TILE) {
        const float* of_key = from + j * pairs.key;
        const auto add = [&](int64_t i, float v) { x[i] = v == -INF ? v : x[i] + v; };  // hidden, whatever the key holds
        if (pairs.query == 0)
            for (int64_t i = 0; i < TILE; i++) add(i, *of_key);
        else
            for (int64_t i = 0; i < tile.num_queries; i++) add(i, of_key[i * pairs.query]);
    }
}

// Rows of keys from `begin` to `end`, of which not every query of the tile sees every key.
void hide(const AttentionCall& call, const Tile& tile, int64_t begin, int64_t end, float* x) {
    const int64_t offset = call.num_keys - call.num_queries;
    for (int64_t j = std::max(begin, tile.first); j < std::min(end, tile.end); j++)
        for (int64_t i = 0; i < TILE; i++) {
            const int64_t distance = tile.query + i + offset - j;
            if (distance < 0 || (call.window && distance >= call.window)) x[(j - tile.first) * TILE + i] = -INF;
        }
}

// (alpha - 1) times the scores of the keys that the tile sees, -inf for those that a query does not.
void write_scores(const AttentionCall& call, const Tile& tile, Scratch& scratch) {
    const bool plain = call.softcap == 0 && !call.added[0].at && !call.added[1].at;
    const float factor = plain ? call.scaling * tile.scale : call.scaling;
    const int64_t size = tile.num_keys() * TILE;
    float* x = scratch.x;
    if (call.half_k.at) {
        uint32_t* const turned = reinterpret_cast<uint32_t*>(scratch.turned_q);
        turn_pairs(row_of(call.half_q, tile.batch, tile.head, tile.query), call.half_q.row, tile.num_queries,
                   call.head_dim, turned);
        multiply_rows({row_of(call.half_k, tile.batch, tile.key_head, tile.first), call.half_k.row}, tile.num_keys(),
                      {turned, TILE}, call.head_dim, x);
        for (int64_t i = 0; i < size; i++) x[i] *= factor;
    } else {
        turn(row_of(call.q, tile.batch, tile.head, tile.query), call.q.row, tile.num_queries, call.head_dim, factor,
             scratch.turned_q);
        product({row_of(call.k, tile.batch, tile.key_head, tile.first), call.k.row, 1}, {scratch.turned_q, TILE},
                {x, TILE}, tile.num_keys(), TILE, call.head_dim, false);
    }
    if (call.softcap > 0)
        for (int64_t i = 0; i < size; i += LANES) {
            const Floats t = tanh_of(load(x + i) / call.softcap), capped = t * call.softcap, slope = 1.0f - t * t;
            std::memcpy(x + i, &capped, sizeof capped);
            if (scratch.slope) std::memcpy(scratch.slope + i, &slope, sizeof slope);
        }
    for (const Pairs& pairs : call.added)
        if (pairs.at) add_pairs(pairs, tile, x);
    if (!plain)
        for (int64_t i = 0; i < size; i++) x[i] *= tile.scale;
    const int64_t seen_by_first = tile.query + call.num_keys - call.num_queries + 1;
    if (call.causal) hide(call, tile, seen_by_first, tile.end, x);
    if (call.window) hide(call, tile, tile.first, std::min(tile.first + TILE, seen_by_first), x);
}

// ---- Thresholds ---------------------------------------------------------------------------------------------------

// Calls body(row of x) for every key of a block, or body(part of a row, vector within it) for every vector of them.
template <class Body> inline void in_rows(const Tile& tile, int64_t block, Body body) {
    const int64_t end = std::min(tile.num_keys(), (block + 1) * KEYS);
    for (int64_t j = block * KEYS; j < end; j++) body(j * TILE);
}
template <class Body> inline void in_block(const Tile& tile, int64_t block, Body body) {
    in_rows(tile, block, [&](int64_t at) {
        for (int k = 0; k < VECTORS; k++) body(at + k * LANES, k);
    });
}

inline bool any_above(const Numbers& a, const Numbers& b, float slack = 0) {
    uint32_t any = 0;
    for (int k = 0; k < VECTORS; k++) any |= beyond(a.of[k], b.of[k] - slack);
    return any != 0;
}

inline Floats root_of(Floats v) {
    for (int k = 0; k < LANES; k++) v[k] = std::sqrt(v[k]);
    return v;
}
inline Floats excess(Floats x, Floats tau) { return largest(x - tau, Floats{}); }

// u = [x - tau]_+ of a key's row of x, and u ^ (P - 1).
struct Slopes { Floats u[VECTORS], s[VECTORS]; };
template <int K, bool ROUGH = false> inline Slopes slopes_of(const float* x, const Numbers& tau, float power) {
    Slopes found;
    Excess e[VECTORS];
    for (int k = 0; k < VECTORS; k++) {
        const Floats u = found.u[k] = excess(load(x + k * LANES), tau.of[k]);
        e[k] = {u, u - 1.0f};
    }
    slope_powers<K, ROUGH>(e, power, found.s);
    return found;
}

// Lower bounds of the thresholds, as in dense_rows.hpp, from the keys above the bounds so far: a look without powers.
void raise_bounds(const Tile& tile, const Scratch& scratch, Numbers& tau) {
    Numbers number{}, total{};
    for (const int32_t block : scratch.live) {
        Numbers part{};
        in_block(tile, block, [&](int64_t at, int k) {
            const Floats u = excess(load(scratch.x + at), tau.of[k]);
            number.of[k] += u > 0.0f ? all(1.0f) : Floats{};
            part.of[k] += u;
        });
        for (int k = 0; k < VECTORS; k++) total.of[k] += part.of[k];
    }
    for (int k = 0; k < VECTORS; k++) {
        const Floats n = largest(number.of[k], all(1.0f));
        const Floats risen = total.of[k] / n - exp2_of(log2_of(n) / -tile.exponent) - MARGIN;
        tau.of[k] += largest(risen, Floats{});
    }
}

// What x is measured from: its highest, 0 where that is no number. Far from zero float32 has few digits left, and a
// threshold that lacks them gives all weights too much.
Numbers base_of(const Numbers& top) {
    Numbers base;
    for (int k = 0; k < VECTORS; k++) base.of[k] = (top.of[k] < INF) & (top.of[k] > -INF) ? top.of[k] : Floats{};
    return base;
}
void measure_from(const Numbers& base, const Tile& tile, float* x) {
    for (int64_t block = 0; block < tile.num_blocks(); block++)
        in_block(tile, block, [&](int64_t at, int k) { store(x + at, load(x + at) - base.of[k]); });
}

// The threshold of each query above its base. NaN where a score is NaN or infinite, NO_SUPPORT where all are hidden.
struct Thresholds { Numbers tau, base; };

// `live` lists the blocks that hold support.
template <int K>
Thresholds solve_tile(const AttentionCall& call, const Tile& tile, Scratch& scratch) {
    float* x = scratch.x;
    const float power = tile.exponent, sink = call.sinks ? call.sinks[tile.head] * tile.scale : -INF;
    Numbers top = Numbers::all_of(sink);
    Ints nan[VECTORS] = {};
    static thread_local std::vector<Numbers> tops;
    tops.resize(tile.num_blocks());
    for (int64_t block = 0; block < tile.num_blocks(); block++) {
        Numbers highest = Numbers::all_of(-INF);
        in_block(tile, block, [&](int64_t at, int k) {
            const Floats v = load(x + at);
            highest.of[k] = largest(v, highest.of[k]);
            nan[k] |= v != v;
        });
        tops[block] = highest;
        for (int k = 0; k < VECTORS; k++) top.of[k] = largest(highest.of[k], top.of[k]);
    }
    const Numbers base = base_of(top);
    measure_from(base, tile, x);
    for (Numbers& highest : tops)
        for (int k = 0; k < VECTORS; k++) highest.of[k] -= base.of[k];
    Numbers tau;
    for (int k = 0; k < VECTORS; k++) {
        nan[k] |= top.of[k] == INF;
        tau.of[k] = nan[k] || top.of[k] == -INF ? all(NO_SUPPORT) : all(-1.0f);
    }
    scratch.live.clear();
    for (int64_t block = 0; block < tile.num_blocks(); block++)
        if (any_above(tops[block], tau)) scratch.live.push_back(block);
    const Numbers least = tau;
    const float tolerance = power >= 2 ? 1e-4f : 2e-6f, near = static_cast<float>(near_of(power));
    // Where P is any number, from better bounds, the more so where supports are small, and on rough powers first, which may
    // end above the root by less than the slack.
    const int num_bounds = K != ANY ? 0 : power < 4 ? 3 : 1;
    for (int k = 0; k < num_bounds; k++) raise_bounds(tile, scratch, tau);
    const float slack = K == ANY ? 1e-3f : 0;
    bool rough = K == ANY, from_either_side = K == ANY;
    for (int step = 0; step < 30; step++) {
        Numbers mass{}, slope{};
        size_t kept = 0;
        for (const int32_t block : scratch.live) {
            if (!any_above(tops[block], tau, slack)) continue;
            scratch.live[kept++] = block;
            Numbers part{}, part_slope{};
            const auto add = [&](auto is_rough) {
                in_rows(tile, block, [&](int64_t at) {
                    const Slopes found = slopes_of<K, is_rough>(x + at, tau, power);
                    for (int k = 0; k < VECTORS; k++) {
                        part.of[k] += found.s[k] * found.u[k];
                        part_slope.of[k] += found.s[k];
                    }
                });
            };
            if (rough) add(std::true_type{});
            else add(std::false_type{});
            for (int k = 0; k < VECTORS; k++) mass.of[k] += part.of[k], slope.of[k] += part_slope.of[k];
        }
        scratch.live.resize(kept);
        Numbers error;
        for (int k = 0; k < VECTORS; k++) {
            if (call.sinks) {
                const Floats u = excess(sink - base.of[k], tau.of[k]), s = slope_power<K>(u, power);
                mass.of[k] += s * u;
                slope.of[k] += s;
            }
            const Floats root = K == 1 ? all(1.0f) : K == 2 ? root_of(mass.of[k])
                                                            : ::power(mass.of[k], 1 - 1 / power);
            const Floats norm = from_either_side ? mass.of[k] - root : largest(mass.of[k] - root, Floats{});
            const Floats stepped = tau.of[k] + norm / largest(slope.of[k], all(1e-30f));
            const Floats above = mass.of[k] - 1.0f, off = from_either_side ? largest(above, -above) : above;
            error.of[k] = (stepped > tau.of[k]) | (stepped < tau.of[k]) ? off : Floats{};  // none of a row with NaN
            tau.of[k] = largest(stepped, least.of[k]);
        }
        const bool done = !any_above(error, Numbers::all_of(rough ? near : tolerance));
        if (done && !rough) break;
        from_either_side = rough;  // and so in the first exact step, which ends below the root
        rough &= !done;
    }
    for (int k = 0; k < VECTORS; k++) tau.of[k] = nan[k] ? all(std::numeric_limits<float>::quiet_NaN()) : tau.of[k];
    return {tau, base};
}

// Runs of a few live blocks next to each other, as keys of the tile: body(begin, end).
template <class Body> void in_runs(const Tile& tile, const std::vector<int32_t>& live, Body body) {
    for (size_t i = 0, k; i < live.size(); i = k) {
        for (k = i + 1; k < live.size() && live[k] == live[k - 1] + 1 && k < i + RUN;) k++;
        body(live[i] * KEYS, std::min(tile.num_keys(), (live[k - 1] + 1) * KEYS));
    }
}

// Lists the support of each query: column, and x - tau. False, and no lists, if it holds one pair in `crowded` or more.
bool list_support(const Tile& tile, const Numbers& tau, int64_t crowded, Scratch& scratch) {
    int64_t total = 0;
    for (const int32_t block : scratch.live)
        in_block(tile, block, [&](int64_t at, int k) {
            total += __builtin_popcount(beyond(load(scratch.x + at), tau.of[k]));
        });
    if (total > tile.num_keys() * TILE / crowded) return false;
    std::fill_n(scratch.count, TILE, 0);
    float taus[TILE];
    tau.store(taus);
    const int64_t room = tile.num_keys();
    for (const int32_t block : scratch.live)
        in_block(tile, block, [&](int64_t at, int k) {
            for (uint32_t bits = beyond(load(scratch.x + at), tau.of[k]); bits; bits &= bits - 1) {
                const int64_t i = k * LANES + __builtin_ctz(bits), n = i * room + scratch.count[i]++;
                scratch.column[n] = static_cast<int32_t>(at / TILE);
                scratch.value[n] = scratch.x[at - k * LANES + i] - taus[i];
            }
        });
    return true;
}

// ---- Forward ----------------------------------------------------------------------------------------------------------

// Multiplies with the lists of a query: out (columns) = sum of value[i] times row column[i]. Rows are read as they lie.
template <int COUNT, class T>
void gather_part(const float* value, const int32_t* column, int64_t n, const T* rows, int64_t step, float* out) {
    Floats sums[COUNT] = {};
    for (int64_t i = 0; i < n; i++) {
        const T* row = rows + column[i] * step;
        for (int j = 0; j < COUNT; j++) sums[j] += value[i] * load(row + j * LANES);
    }
    std::memcpy(out, sums, sizeof sums);
}
template <class T>
void gather(const float* value, const int32_t* column, int64_t n, const T* rows, int64_t step, int64_t columns,
            float* out) {
    int64_t j = 0;
    for (; j + 4 * LANES <= columns; j += 4 * LANES) gather_part<4>(value, column, n, rows + j, step, out + j);
    for (; j < columns; j += LANES) gather_part<1>(value, column, n, rows + j, step, out + j);
}

// Weights u^P written over u, n of them and up to a vector more; their sum.
template <int K> float write_list_weights(float* u, int64_t n, float power) {
    Floats total = {};
    for (int64_t i = 0; i < n; i += LANES) {
        const Floats v = load_some(u + i, n - i), p = slope_power<K>(v, power) * v;
        store_some(u + i, p, n - i);
        total += p;
    }
    return sum(total);
}

typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));

// The numbers in bfloat16, rounded, each in the upper half of a word. They are taken off `v`.
inline Bits take_halves(Floats& v) {
    const Bits halves = ((Bits)v + 0x8000u) & 0xffff0000u;
    v -= (Floats)halves;
    return halves;
}

// Two rows of TILE numbers become a row of pairs in bfloat16, and a row of pairs of what is left.
inline void split_rows(float* two) {
    for (int k = 0; k < VECTORS; k++) {
        float *const at = two + k * LANES, *const below = at + TILE;
        Floats first = load(at), second = load(below);
        const Bits pairs = take_halves(first) >> 16 | take_halves(second);
        const Bits rest = take_halves(first) >> 16 | take_halves(second);
        std::memcpy(at, &pairs, sizeof pairs);
        std::memcpy(below, &rest, sizeof rest);
    }
}

// The weights in the live blocks of x times values, by tiles. A weight is a number in bfloat16 and what is left of it,
// also in bfloat16: together they have 16 bits, and what is lost is far below the rounding of the result.
void multiply_weights(const AttentionCall& call, const Tile& tile, Scratch& scratch) {
    float* const x = scratch.x;
    for (const int32_t block : scratch.live) {
        const int64_t begin = block * KEYS, end = begin + KEYS, seen = std::min(end, tile.num_keys());
        std::fill_n(x + seen * TILE, (end - seen) * TILE, 0.0f);
        for (int64_t j = begin; j < end; j += 2) split_rows(x + j * TILE);
    }
    const int64_t step = call.half_v.row;
    const uint16_t* const v = row_of(call.half_v, tile.batch, tile.key_head, 0) + tile.first;
    for (int64_t d = 0; d < call.value_dim; d += TILE) {
        float made[TILE * TILE] = {};
        in_runs(tile, scratch.live, [&](int64_t begin, int64_t end) {
            const BRows columns{v + d * step + begin, step};
            const uint32_t* const pairs = reinterpret_cast<const uint32_t*>(x + begin * TILE);
            const int64_t depth = (end - begin + KEYS - 1) / KEYS * KEYS;
            tile_product(columns, {pairs, 2 * TILE}, depth, made, true);
            tile_product(columns, {pairs + TILE, 2 * TILE}, depth, made, true);
        });
        for (int64_t i = 0; i < tile.num_queries; i++)
            for (int64_t k = 0; k < TILE; k++) scratch.rows[i * call.value_dim + d + k] = made[k * TILE + i];
    }
}

template <int K> void attend_tile(const AttentionCall& call, const Tile& tile, Scratch& scratch) {
    write_scores(call, tile, scratch);
    const Thresholds found = solve_tile<K>(call, tile, scratch);
    const Numbers &tau = found.tau, &base = found.base;
    const float* v = row_of(call.v, tile.batch, tile.key_head, tile.first);
    const float power = tile.exponent;
    const int64_t width = call.value_dim;
    float mass[TILE], taus[TILE], bases[TILE];
    tau.store(taus), base.store(bases);
    const bool listed = list_support(tile, tau, call.half_v.at ? CROWDED_FOR_TILES : CROWDED, scratch);
    if (listed) {
        for (int64_t i = 0; i < tile.num_queries; i++) {
            const int64_t start = i * tile.num_keys(), n = scratch.count[i];
            mass[i] = write_list_weights<K>(scratch.value + start, n, power);
            gather(scratch.value + start, scratch.column + start, n, v, call.v.row, width, scratch.rows + i * width);
        }
    } else {
        Numbers total{};
        for (const int32_t block : scratch.live) {
            Numbers part{};
            in_rows(tile, block, [&](int64_t at) {
                const Slopes found = slopes_of<K>(scratch.x + at, tau, power);
                for (int k = 0; k < VECTORS; k++) {
                    const Floats p = found.s[k] * found.u[k];
                    store(scratch.x + at + k * LANES, p);
                    part.of[k] += p;
                }
            });
            for (int k = 0; k < VECTORS; k++) total.of[k] += part.of[k];
        }
        total.store(mass);
        if (call.half_v.at) {
            multiply_weights(call, tile, scratch);
        } else {
            std::fill_n(scratch.rows, tile.num_queries * width, 0.0f);
            in_runs(tile, scratch.live, [&](int64_t begin, int64_t end) {
                product({scratch.x + begin * TILE, 1, TILE}, {v + begin * call.v.row, call.v.row},
                        {scratch.rows, width}, tile.num_queries, width, end - begin, true);
            });
        }
    }
    if (call.sinks) {
        const float sink = call.sinks[tile.head] * tile.scale;
        for (int64_t i = 0; i < tile.num_queries; i++) {
            const Floats u = excess(all(sink - bases[i]), all(taus[i]));
            mass[i] += (slope_power<K>(u, power) * u)[0];
        }
    }
    float* tau_out = call.tau + (tile.batch * call.num_heads + tile.head) * call.num_queries + tile.query;
    for (int64_t i = 0; i < tile.num_queries; i++) {
        const bool nan = taus[i] != taus[i];
        const float factor = nan ? std::numeric_limits<float>::quiet_NaN() : mass[i] > 0 ? 1 / mass[i] : 0;
        float* out = row_of(call.out, tile.batch, tile.head, tile.query + i);
        for (int64_t d = 0; d < width; d++) out[d] = scratch.rows[i * width + d] * factor;
        tau_out[i] = nan ? NO_SUPPORT : taus[i];
    }
}

// ---- Backward ---------------------------------------------------------------------------------------------------------

inline Floats f_of(Floats u) {
    const Ints support = u > std::numeric_limits<float>::min();
    return support ? u - u * (log2_of(support ? u : all(1.0f)) * 0.6931471805599453f) : Floats{};
}

// What a tile has beside its keys: thresholds, w and f of the sink, and what comes out for each query.
struct Solved { Numbers tau, w_sink, f_sink, delta, dalpha; };
// Where the derivatives go: in queries of the tile, and in keys and values from the first that it sees.
struct Gradients { Rows dq, dk, dv; };

inline Floats divided(Floats a, Floats b) { return b > 0.0f ? a / (b > 0.0f ? b : all(1.0f)) : Floats{}; }

// By products with all live blocks.
template <int K>
void differentiate_whole(const AttentionCall& call, const Tile& tile, Solved& solved, Scratch& scratch,
                         Gradients& out) {
    const float* v = row_of(call.v, tile.batch, tile.key_head, tile.first);
    const float* k_rows = row_of(call.k, tile.batch, tile.key_head, tile.first);
    const float* q = row_of(call.q, tile.batch, tile.head, tile.query);
    const float* dout = row_of(call.dout, tile.batch, tile.head, tile.query);
    const float power = tile.exponent, factor = call.scaling / call.temperature[tile.head];
    const bool learned = call.dalpha != nullptr;
    float *x = scratch.x, *g = scratch.g, *kept = scratch.value;  // w, where there is no list
    turn(dout, call.dout.row, tile.num_queries, call.value_dim, 1, scratch.turned_dout);
    in_runs(tile, scratch.live, [&](int64_t begin, int64_t end) {
        product({v + begin * call.v.row, call.v.row, 1}, {scratch.turned_dout, TILE}, {g + begin * TILE, TILE},
                end - begin, TILE, call.value_dim, false);
    });
    Numbers total = solved.w_sink, weighted{}, mean;
    for (int k = 0; k < VECTORS; k++) mean.of[k] = solved.w_sink.of[k] * solved.f_sink.of[k];
    for (const int32_t block : scratch.live) {
        Numbers part{}, part_weighted{}, part_mean{};
        in_rows(tile, block, [&](int64_t row) {
            const Slopes found = slopes_of<K>(x + row, solved.tau, power);
            for (int k = 0; k < VECTORS; k++) {
                const int64_t at = row + k * LANES;
                const Floats w = found.s[k];
                store(kept + at, w);
                part.of[k] += w;
                part_weighted.of[k] += w * load(g + at);
                if (learned) part_mean.of[k] += w * f_of(found.u[k]);
            }
        });
        for (int k = 0; k < VECTORS; k++) {
            total.of[k] += part.of[k], weighted.of[k] += part_weighted.of[k], mean.of[k] += part_mean.of[k];
        }
    }
    for (int k = 0; k < VECTORS; k++) {
        solved.delta.of[k] = divided(weighted.of[k], total.of[k]);
        mean.of[k] = divided(mean.of[k], total.of[k]);
        solved.dalpha.of[k] = -solved.w_sink.of[k] * solved.delta.of[k] * (solved.f_sink.of[k] - mean.of[k]);
    }
    for (const int32_t block : scratch.live)
        in_block(tile, block, [&](int64_t at, int k) {
            const Floats u = excess(load(x + at), solved.tau.of[k]), w = load(kept + at), p = w * u;
            Floats ds = w * (load(g + at) - solved.delta.of[k]);
            if (learned) solved.dalpha.of[k] += ds * (f_of(u) - mean.of[k]);
            ds *= factor;
            if (scratch.slope) ds *= load(scratch.slope + at);
            std::memcpy(x + at, &p, sizeof p);
            std::memcpy(g + at, &ds, sizeof ds);
        });
    in_runs(tile, scratch.live, [&](int64_t begin, int64_t end) {
        const int64_t n = end - begin, at = begin * TILE;
        product({x + at, TILE, 1}, {dout, call.dout.row}, {out.dv.at + begin * out.dv.row, out.dv.row}, n,
                call.value_dim, tile.num_queries, true);
        product({g + at, TILE, 1}, {q, call.q.row}, {out.dk.at + begin * out.dk.row, out.dk.row}, n, call.head_dim,
                tile.num_queries, true);
        product({g + at, 1, TILE}, {k_rows + begin * call.k.row, call.k.row}, {out.dq.at, out.dq.row},
                tile.num_queries, call.head_dim, n, true);
    });
}

inline float dot_of_rows(const float* a, const float* b, int64_t n) {
    Floats total = {};
    for (int64_t i = 0; i < n; i += LANES) total += load(a + i) * load(b + i);
    return sum(total);
}
inline void add_scaled(float factor, const float* a, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += LANES) {
        const Floats v = load(out + i) + factor * load(a + i);
        std::memcpy(out + i, &v, sizeof v);
    }
}

// Key by key, from the lists.
template <int K>
void differentiate_listed(const AttentionCall& call, const Tile& tile, Solved& solved, Scratch& scratch,
                          Gradients& out) {
    const float* v = row_of(call.v, tile.batch, tile.key_head, tile.first);
    const float* k_rows = row_of(call.k, tile.batch, tile.key_head, tile.first);
    const float power = tile.exponent, factor = call.scaling / call.temperature[tile.head];
    for (int64_t i = 0; i < tile.num_queries; i++) {
        const float* q = row_of(call.q, tile.batch, tile.head, tile.query + i);
        const float* dout = row_of(call.dout, tile.batch, tile.head, tile.query + i);
        const int64_t start = i * tile.num_keys(), n = scratch.count[i];
        float *u = scratch.value + start, *g = scratch.g + start;
        const int32_t* column = scratch.column + start;
        for (int64_t j = 0; j < n; j++) g[j] = dot_of_rows(dout, v + column[j] * call.v.row, call.value_dim);
        Floats totals = {}, weighteds = {}, means = {};
        for (int64_t j = 0; j < n; j += LANES) {
            const Floats some = load_some(u + j, n - j), w = slope_power<K>(some, power);
            totals += w;
            weighteds += w * load_some(g + j, n - j);
            if (call.dalpha) means += w * f_of(some);
        }
        const float w_sink = solved.w_sink.of[i / LANES][i % LANES], f_sink = solved.f_sink.of[i / LANES][i % LANES];
        const float total = sum(totals) + w_sink, delta = total > 0 ? sum(weighteds) / total : 0;
        const float mean = total > 0 ? (sum(means) + w_sink * f_sink) / total : 0;
        Floats dalpha = {};
        for (int64_t j = 0; j < n; j += LANES) {
            const Floats some = load_some(u + j, n - j), w = slope_power<K>(some, power), p = w * some;
            const Floats ds = w * (load_some(g + j, n - j) - delta);
            if (call.dalpha) dalpha += ds * (f_of(some) - mean);
            store_some(u + j, p, n - j);
            store_some(g + j, ds * factor, n - j);
        }
        solved.delta.of[i / LANES][i % LANES] = delta;
        solved.dalpha.of[i / LANES][i % LANES] = sum(dalpha) - w_sink * delta * (f_sink - mean);
        if (scratch.slope)
            for (int64_t j = 0; j < n; j++) g[j] *= scratch.slope[column[j] * TILE + i];
        gather(g, column, n, k_rows, call.k.row, call.head_dim, out.dq.at + i * out.dq.row);
        for (int64_t j = 0; j < n; j++) {
            add_scaled(g[j], q, call.head_dim, out.dk.at + column[j] * out.dk.row);
            add_scaled(u[j], dout, call.value_dim, out.dv.at + column[j] * out.dv.row);
        }
    }
}

template <int K>
void differentiate_tile(const AttentionCall& call, const Tile& tile, int64_t part, Scratch& scratch) {
    write_scores(call, tile, scratch);
    const int64_t first = (tile.batch * call.num_heads + tile.head) * call.num_queries + tile.query;
    float numbers[TILE];
    std::fill_n(numbers, TILE, NO_SUPPORT);
    std::copy_n(call.tau + first, tile.num_queries, numbers);
    Solved solved{};
    solved.tau = Numbers::at(numbers);
    const float sink = call.sinks ? call.sinks[tile.head] * tile.scale : -INF;
    Numbers top = Numbers::all_of(sink);
    for (int64_t block = 0; block < tile.num_blocks(); block++)
        in_block(tile, block, [&](int64_t at, int k) { top.of[k] = largest(load(scratch.x + at), top.of[k]); });
    const Numbers base = base_of(top);
    measure_from(base, tile, scratch.x);
    if (call.sinks)
        for (int k = 0; k < VECTORS; k++) {
            const Floats u = excess(sink - base.of[k], solved.tau.of[k]);
            solved.w_sink.of[k] = slope_power<K>(u, tile.exponent);
            solved.f_sink.of[k] = f_of(u);
        }
    scratch.live.clear();
    for (int64_t block = 0; block < tile.num_blocks(); block++) {
        Ints found = {};
        in_block(tile, block, [&](int64_t at, int k) { found |= load(scratch.x + at) > solved.tau.of[k]; });
        if (any(found)) scratch.live.push_back(block);
    }
    const auto from = [&](const Rows& x, int64_t head, int64_t row, int64_t offset) {
        return Rows{x.at + offset + tile.batch * x.batch + head * x.head + row * x.row, 0, 0, x.row};
    };
    Gradients out{from(call.dq, tile.head, tile.query, 0), from(call.dk, tile.key_head, tile.first, part * call.dk_part),
                  from(call.dv, tile.key_head, tile.first, part * call.dv_part)};
    for (int64_t i = 0; i < tile.num_queries; i++) std::fill_n(out.dq.at + i * out.dq.row, call.head_dim, 0.0f);
    if (list_support(tile, solved.tau, CROWDED, scratch)) differentiate_listed<K>(call, tile, solved, scratch, out);
    else differentiate_whole<K>(call, tile, solved, scratch, out);
    for (int64_t i = 0; i < tile.num_queries; i++) {
        const int k = i / LANES, lane = i % LANES;
        const float scale = call.alpha[tile.head] - 1;
        if (call.dalpha) call.dalpha[first + i] = solved.dalpha.of[k][lane] / (scale * scale);
        const float by_sink = -solved.w_sink.of[k][lane] * solved.delta.of[k][lane];
        if (call.dsinks) call.dsinks[first + i] = by_sink / call.temperature[tile.head];
    }
}

// ---- All tiles --------------------------------------------------------------------------------------------------------

void attend(const AttentionCall& call, int num_threads) {
    const int64_t tiles = (call.num_queries + TILE - 1) / TILE;
    by_rows(call.num_sequences * call.num_heads * tiles, TILE * call.num_keys * 8, num_threads,
            [&](int64_t first, int64_t last) {
        Scratch& scratch = scratch_for(call, false);
        const TilesInUse in_use(call.half_k.at);
        for (int64_t task = first; task < last; task++) {
            const int64_t of_head = task / tiles;
            const Tile tile =
                tile_at(call, of_head / call.num_heads, of_head % call.num_heads, task % tiles * TILE);
            BY_EXPONENT(attend_tile, tile.exponent, call, tile, scratch);
        }
    });
}

void differentiate(const AttentionCall& call, int num_threads) {
    const int64_t tiles = (call.num_queries + TILE - 1) / TILE, group = call.num_heads / call.num_key_heads;
    const int64_t tasks = call.num_sequences * call.num_key_heads * call.num_parts;
    by_rows(tasks, call.num_queries * group * call.num_keys * 8 / call.num_parts, num_threads,
            [&](int64_t first, int64_t last) {
        Scratch& scratch = scratch_for(call, true);
        const TilesInUse in_use(call.half_k.at);
        for (int64_t task = first; task < last; task++) {
            const int64_t part = task % call.num_parts, of_head = task / call.num_parts;
            const int64_t batch = of_head / call.num_key_heads, key_head = of_head % call.num_key_heads;
            for (int64_t head = key_head * group; head < (key_head + 1) * group; head++)
                for (int64_t i = part * tiles / call.num_parts; i < (part + 1) * tiles / call.num_parts; i++) {
                    const Tile tile = tile_at(call, batch, head, i * TILE);
                    BY_EXPONENT(differentiate_tile, tile.exponent, call, tile, part, scratch);
                }
        }
    });
}

}  // namespace
