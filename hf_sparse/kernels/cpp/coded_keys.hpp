// entmax attention of a few queries over many keys, which are kept twice: as they are, and in 8 bits with a bound on
// what rounding lost (see screen.hpp).
//
// The 8 bits give every score to within a bound, from below and from above. The threshold of the lower ends is at most
// that of the scores, because a threshold never falls when a score rises. A key whose upper end is below it has weight
// zero, whatever its score is. Only the others are read, and of the values those whose weight is not zero.

#pragma once

#include "few_queries.hpp"
#include "screen.hpp"

extern "C" {

struct CodedCall : FewCall {           // rows of keys and of values side by side
    int8_t* code;                      // (batch, heads, lines, groups, width / 2, LINE, 2)
    void* group;                       // (batch, heads, lines, groups, LINE)
    int64_t num_lines;
    int64_t read[3];                   // counted: keys in 8 bits, keys and values as they are
    int32_t fine;                      // whether all outputs are written, and exact
};

}  // extern "C"

namespace {

constexpr int64_t LINE = 16;          // keys whose bytes lie side by side
constexpr int PARTS_OF_LINE = LINE / LANES;

// Columns of a key, cut into groups of equal width, at most GROUP.
struct Cut {
    int64_t head_dim, num_groups, width;
    explicit Cut(int64_t head_dim) : head_dim(head_dim), num_groups((head_dim + GROUP - 1) / GROUP) {
        const int64_t each = (head_dim + num_groups - 1) / num_groups;
        width = each + each % 2;
    }
    int64_t bytes_of_line() const { return num_groups * width * LINE; }
    int64_t groups_of_line() const { return num_groups * LINE; }
    template <class T> void read(const T* row, int64_t g, float* v) const {
        read_group(row + g * width, std::min(width, head_dim - g * width), v);
    }
};

// The keys [first, num_keys) of one head in 8 bits. False if an entry is not finite, or too large for a norm.
template <class T>
bool code_head(const T* keys, const Cut& cut, int64_t first, int64_t num_keys, int8_t* code, Group* group) {
    const float rounding = rounding_of(cut.head_dim);
    for (int64_t j = first; j < num_keys; j++)
        for (int64_t g = 0; g < cut.num_groups; g++) {
            float w[GROUP];
            int8_t bytes[GROUP];
            cut.read(keys + j * cut.head_dim, g, w);
            const float norm = norm_of(w);
            if (!(norm < INF)) return false;
            group[(j / LINE * cut.num_groups + g) * LINE + j % LINE] = code_group(w, norm, rounding, bytes);
            int8_t* line = code + j / LINE * cut.bytes_of_line() + g * cut.width * LINE + 2 * (j % LINE);
            for (int64_t d = 0; d < cut.width; d++) line[d / 2 * 2 * LINE + d % 2] = bytes[d];
        }
    return true;
}

template <class T> bool code_keys(const CodedCall& call, int64_t first, int num_threads) {
    const Cut cut(call.head_dim);
    std::atomic<bool> fine{true};
    const int64_t heads = call.num_key_heads;
    by_rows(call.num_sequences * heads, (call.num_keys - first) * cut.head_dim, num_threads, [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; i++) {
            const T* keys = rows_of<T>(call.k, i / heads, i % heads);
            int8_t* code = call.code + i * call.num_lines * cut.bytes_of_line();
            Group* group = static_cast<Group*>(call.group) + i * call.num_lines * cut.groups_of_line();
            if (!code_head(keys, cut, first, call.num_keys, code, group)) fine = false;
        }
    });
    return fine;
}

// A query in 16 bits, two columns side by side, with the scale and the norm of each group.
struct CodedQuery {
    std::vector<int32_t> pairs;
    std::vector<float> scale, norm;

    CodedQuery(const float* q, const Cut& cut) {
        for (int64_t g = 0; g < cut.num_groups; g++) {
            float v[GROUP];
            int16_t whole[GROUP];
            cut.read(q, g, v);
            const float size = size_of(v);
            round_group(v, size < LEAST_ENTRY ? 0 : 32767 / size, 32767, whole);
            for (int64_t d = 0; d < cut.width; d += 2) pairs.push_back(load_as<int32_t>(whole + d));
            scale.push_back(size / 32767);
            norm.push_back(1.0001f * norm_of(v));
        }
    }
};

// Products of a line of keys with B queries, and what each may be off by.
template <int B>
inline void scan_line(const int8_t* code, const Group* group, const Cut& cut, const CodedQuery* const* q,
                      Floats (*product)[PARTS_OF_LINE], Floats (*bound)[PARTS_OF_LINE]) {
    for (int b = 0; b < B; b++)
        for (int k = 0; k < PARTS_OF_LINE; k++) product[b][k] = bound[b][k] = Floats{};
    const int64_t num_pairs = cut.width / 2;
    for (int64_t g = 0; g < cut.num_groups; g++) {
        Ints sums[B][PARTS_OF_LINE] = {};
        for (int64_t p = g * num_pairs; p < (g + 1) * num_pairs; p++)
            for (int k = 0; k < PARTS_OF_LINE; k++) {
                const Shorts c = widened(code + 2 * (p * LINE + k * LANES));
                for (int b = 0; b < B; b++) sums[b][k] += pair_products(c, (Shorts)(q[b]->pairs[p] - Ints{}));
            }
        for (int k = 0; k < PARTS_OF_LINE; k++) {
            const Ints bits = load_as<Ints>(group + g * LINE + k * LANES);
            const Floats scale = (Floats)(bits << 16), lost = (Floats)(bits & static_cast<int32_t>(0xffff0000));
            for (int b = 0; b < B; b++) {
                product[b][k] += __builtin_convertvector(sums[b][k], Floats) * scale * q[b]->scale[g];
                bound[b][k] += lost * q[b]->norm[g];
            }
        }
    }
}

inline Floats size_of(Floats v) { return largest(v, -v); }

// The scores of a query in x, from `start` on, and what they may be off by. Memory of a thread, kept for the next call.
struct Bounds {
    std::vector<float> x, slack;
    void resize(int64_t n) {
        if (static_cast<int64_t>(x.size()) < n) x.resize(n), slack.resize(n);
    }
};

inline float added_to(const CodedCall& call, const Asked& asked, int64_t j) {
    float total = 0;
    for (const Pairs& pairs : call.added)
        if (pairs.at) total += added_to(pairs, asked)[j * pairs.key];
    return total * asked.scale;
}

// Scores and bounds of B queries over lines of keys. A bound goes through the tangent as it is, whose slope is at most 1.
template <int B>
void bound_scores(const CodedCall& call, const Cut& cut, const int8_t* code, const Group* group, const Asked* asked,
                  const CodedQuery* const* q, int64_t begin, int64_t end, int64_t start, Bounds* bounds) {
    const float rounding = call.softcap > 0 ? 32 * EPS * call.softcap : 0;
    for (int64_t line = begin; line < end; line++) {
        Floats product[B][PARTS_OF_LINE], bound[B][PARTS_OF_LINE];
        scan_line<B>(code + line * cut.bytes_of_line(), group + line * cut.groups_of_line(), cut, q, product, bound);
        for (int b = 0; b < B; b++)
            for (int k = 0; k < PARTS_OF_LINE; k++) {
                const int64_t at = line * LINE + k * LANES - start;
                const Floats x = x_of(call, asked[b], product[b][k]);
                const Floats off = (bound[b][k] * 1.0001f + LEAST_SLACK) * std::fabs(call.scaling) + rounding;
                const Floats slack = off * asked[b].scale * 1.0001f + 8 * EPS * size_of(x);
                std::memcpy(&bounds[b].x[at], &x, sizeof x);
                std::memcpy(&bounds[b].slack[at], &slack, sizeof slack);
            }
    }
}

// What is added to scores; -inf for keys beside those that the query sees. False if something added is not a number.
bool add_and_hide(const CodedCall& call, const Asked& asked, int64_t start, int64_t stop, Bounds& bounds) {
    const auto hide = [&](int64_t from, int64_t to) {
        if (from >= to) return;
        std::fill_n(&bounds.x[from - start], to - from, -INF);
        std::fill_n(&bounds.slack[from - start], to - from, 0.0f);
    };
    hide(start, asked.first);
    hide(asked.end, stop);
    if (!call.added[0].at && !call.added[1].at) return true;
    bool fine = true;
    for (int64_t j = asked.first; j < asked.end; j++) {
        const float added = added_to(call, asked, j);
        fine &= added < INF;
        bounds.x[j - start] += added;
        if (added > -INF) bounds.slack[j - start] += 4 * EPS * std::fabs(added);
    }
    return fine;
}

// Keys that may have weight: their places, and x of them. Padded for newton.hpp.
struct Candidates {
    std::vector<int64_t> key;
    std::vector<float> x;

    void clear() { key.clear(), x.clear(); }
    // Relative to the top, followed by -inf; the number of entries, one more with a sink.
    int64_t finish(float top, float sink) {
        if (sink > -INF) x.push_back(sink);
        const int64_t n = x.size();
        for (float& each : x) each -= top;
        x.resize((n + 2 * LANES - 1) / (2 * LANES) * (2 * LANES), -INF);
        return n;
    }
};

// The scores above which a key may have weight: the threshold of the lower ends. -inf if the query sees nothing.
float cut_of(const Bounds& bounds, int64_t n, const Asked& asked, float sink, Candidates& low) {
    Floats tops = all(sink);
    for (int64_t i = 0; i < n; i += LANES) tops = largest(load(&bounds.x[i]) - load(&bounds.slack[i]), tops);
    const float top = highest(tops);
    if (!(top > -INF)) return -INF;
    low.clear();
    const Floats least = all(top - 1.0f - 8 * EPS * (1.0f + std::fabs(top)));
    for (int64_t i = 0; i < n; i += LANES) {
        const Floats x = load(&bounds.x[i]), slack = load(&bounds.slack[i]);
        for (uint32_t bits = beyond(x - slack, least); bits; bits &= bits - 1) {
            const int k = __builtin_ctz(bits);
            low.x.push_back(x[k] - slack[k]);
        }
    }
    low.finish(top, sink);
    const double tau = solve(low.x.data(), low.x.size(), -1, asked.exponent);
    return top + static_cast<float>(tau) - MARGIN - 8 * EPS * std::fabs(top);
}

template <class T> void add_row(const T* row, float weight, int64_t n, float* out) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store_some(out + i, load(out + i) + weight * load(row + i), LANES);
    for (; i < n; i++) out[i] += weight * load_one(row + i);
}

// What the queries of one head of keys read, each key and value counted once.
struct Read {
    std::vector<uint8_t> of_key;  // bits
    int64_t coded = 0, keys = 0, values = 0;
    void start(int64_t num_keys) { of_key.assign(num_keys, 0); }
    void key(int64_t j) { keys += !(of_key[j] & 1), of_key[j] |= 1; }
    void value(int64_t j) { values += !(of_key[j] & 2), of_key[j] |= 2; }
};

// One query from its bounds. False where something is not finite, or a score is not within its bound: the bytes are then
// not those of these keys.
template <class T>
bool attend_exactly(const CodedCall& call, const Asked& asked, const T* keys, const T* values, const Bounds& bounds,
                    int64_t start, int64_t stop, Read& read) {
    static thread_local Candidates found;
    const float sink = call.sinks ? call.sinks[asked.head] * asked.scale : -INF;
    float* out = row_of(call.out, asked.batch, asked.head, asked.query);
    std::fill_n(out, call.value_dim, 0.0f);
    const float cut = cut_of(bounds, stop - start, asked, sink, found);
    if (cut == -INF) return true;
    if (!(std::fabs(cut) < INF)) return false;
    found.clear();
    const Matrix<T> matrix{keys, nullptr, call.num_keys, call.head_dim};
    float top = sink;
    for (int64_t i = 0; i < stop - start; i += LANES) {
        const Floats x = load(&bounds.x[i]), slack = load(&bounds.slack[i]);
        for (uint32_t bits = beyond(x + slack, all(cut)); bits; bits &= bits - 1) {
            const int k = __builtin_ctz(bits);
            const int64_t j = start + i + k;
            const float exact = x_of(call, asked, all(exact_product(matrix, j, asked.q)))[0] + added_to(call, asked, j);
            if (!(std::fabs(exact - x[k]) <= slack[k])) return false;
            found.key.push_back(j);
            found.x.push_back(exact);
            read.key(j);
            top = std::max(top, exact);
        }
    }
    const int64_t num_keys = found.key.size(), n = found.finish(top, sink);
    const double tau = solve(found.x.data(), found.x.size(), -1, asked.exponent);
    if (!(top + tau >= cut)) return false;  // a key that was not read could have weight
    const double mass = write_powers(found.x.data(), found.x.data(), n, tau, asked.exponent);
    for (int64_t i = 0; i < num_keys; i++)
        if (found.x[i] > 0) {
            add_row(values + found.key[i] * call.value_dim, static_cast<float>(found.x[i] / mass), call.value_dim, out);
            read.value(found.key[i]);
        }
    return true;
}

// The queries of all heads that share the keys of one.
template <class T> bool attend_to_head(const CodedCall& call, const Cut& cut, int64_t batch, int64_t key_head, Read& read) {
    const int64_t at = batch * call.num_key_heads + key_head;
    const int8_t* code = call.code + at * call.num_lines * cut.bytes_of_line();
    const Group* group = static_cast<const Group*>(call.group) + at * call.num_lines * cut.groups_of_line();
    const T *keys = rows_of<T>(call.k, batch, key_head), *values = rows_of<T>(call.v, batch, key_head);
    static thread_local Bounds bounds[QUERIES];
    read.start(call.num_keys);
    bool fine = true;
    by_few(call, batch, key_head, [&](const Together& few) {
        std::vector<CodedQuery> coded;
        const CodedQuery* q[QUERIES];
        const Asked* asked = few.asked;
        for (int64_t b = 0; b < few.count; b++) coded.emplace_back(asked[b].q, cut);
        const int64_t begin = few.first / LINE, lines_end = (few.end + LINE - 1) / LINE;
        const int64_t start = begin * LINE, stop = lines_end * LINE;
        for (int64_t b = 0; b < few.count; b++) q[b] = &coded[b], bounds[b].resize(std::max(stop - start, LINE));
        up_to_four(few.count, [&](auto size, int64_t b) {
            constexpr int B = decltype(size)::value;
            bound_scores<B>(call, cut, code, group, asked + b, q + b, begin, lines_end, start, bounds + b);
        });
        read.coded += std::max<int64_t>(0, few.end - few.first);
        for (int64_t b = 0; b < few.count && fine; b++)
            fine = add_and_hide(call, asked[b], start, stop, bounds[b])
                   && attend_exactly(call, asked[b], keys, values, bounds[b], start, stop, read);
    });
    return fine;
}

template <class T> void attend_to_coded(CodedCall& call, int num_threads) {
    const Cut cut(call.head_dim);
    const int64_t heads = call.num_key_heads, sharing = call.num_heads / heads;
    std::atomic<bool> fine{true};
    std::atomic<int64_t> read[3] = {};
    const auto finite = [&](const Asked& asked) {
        return std::all_of(asked.q, asked.q + call.head_dim, [](float v) { return std::fabs(v) < 0x1p60f; });
    };
    for (int64_t b = 0; b < call.num_sequences; b++)
        for (int64_t h = 0; h < call.num_heads; h++)
            for (int64_t i = 0; i < call.num_queries; i++)
                if (!finite(asked_of(call, b, h, i))) fine = false;
    if (fine)
        by_rows(call.num_sequences * heads, call.num_keys * cut.head_dim * sharing * call.num_queries / 16, num_threads,
                [&](int64_t from, int64_t to) {
                    Read own;
                    for (int64_t i = from; i < to && fine; i++)
                        if (!attend_to_head<T>(call, cut, i / heads, i % heads, own)) fine = false;
                    read[0] += own.coded, read[1] += own.keys, read[2] += own.values;
                });
    call.fine = fine;
    for (int k = 0; k < 3; k++) call.read[k] = read[k];
}

}  // namespace
