// entmax attention of a few queries, as a decoding step has: each key is read once for the queries that share it, and of
// the values those whose weight is not zero.

#pragma once

#include "attention.hpp"
#include "dense_rows.hpp"

extern "C" {

// Keys or values as they are: (batch, heads, rows, columns), columns side by side.
struct Kept { const void* at; int64_t batch, head, row; };

struct FewCall {
    Rows q, out;                       // float32
    Kept k, v;                         // attend_few wants columns of v, and of out, that are a multiple of LANES
    Pairs added[2];                    // to scores; -inf hides
    const float *alpha, *temperature;  // (heads)
    const float* sinks;                // (heads) or null
    int64_t num_sequences, num_heads, num_key_heads, num_queries, num_keys, head_dim, value_dim;
    int64_t window;                    // keys that a query sees, 0 for all; only with causal
    float scaling, softcap;            // softcap 0 for none
    int32_t causal;                    // the last query sees the last key
    int32_t dtype;                     // of keys and values
};

}  // extern "C"

namespace {

constexpr int64_t QUERIES = FEW;  // that share one look at the keys

// One query: where it is, the keys that it sees, and how its scores become x, the scores times alpha - 1.
struct Asked {
    int64_t batch, head, query, first, end;
    const float* q;
    float scale, exponent;
};

Asked asked_of(const FewCall& call, int64_t batch, int64_t head, int64_t query) {
    const int64_t seen = query + call.num_keys - call.num_queries + 1;
    const int64_t end = call.causal ? std::max<int64_t>(0, seen) : call.num_keys;
    const int64_t first = call.window ? std::min(end, std::max<int64_t>(0, seen - call.window)) : 0;
    const float scale = (call.alpha[head] - 1) / call.temperature[head];
    return {batch, head, query, first, end, row_of(call.q, batch, head, query), scale, exponent_of(call.alpha[head])};
}

// Some of the queries of all heads that share the keys of one, and the keys that one of them sees.
struct Together {
    Asked asked[QUERIES];
    int64_t count, first, end;
};

// Calls body for all queries of the heads that share the keys of one, a few at a time.
template <class Body> void by_few(const FewCall& call, int64_t batch, int64_t key_head, Body body) {
    const int64_t sharing = call.num_heads / call.num_key_heads, num_queries = sharing * call.num_queries;
    for (int64_t i = 0; i < num_queries; i += QUERIES) {
        Together few{{}, std::min(QUERIES, num_queries - i), call.num_keys, 0};
        for (int64_t b = 0; b < few.count; b++) {
            const int64_t head = key_head * sharing + (i + b) / call.num_queries, query = (i + b) % call.num_queries;
            const Asked& asked = few.asked[b] = asked_of(call, batch, head, query);
            few.first = std::min(few.first, asked.first), few.end = std::max(few.end, asked.end);
        }
        body(few);
    }
}

// Calls body(number, first) for four of the queries at a time, and for those that are left.
template <class Body> void up_to_four(int64_t count, Body body) {
    int64_t b = 0;
    for (; b + 4 <= count; b += 4) body(std::integral_constant<int, 4>{}, b);
    if (count - b == 3) body(std::integral_constant<int, 3>{}, b);
    if (count - b == 2) body(std::integral_constant<int, 2>{}, b);
    if (count - b == 1) body(std::integral_constant<int, 1>{}, b);
}

template <class T> const T* rows_of(const Kept& kept, int64_t batch, int64_t head) {
    return static_cast<const T*>(kept.at) + batch * kept.batch + head * kept.head;
}

// x of a product of a query with a key, before anything is added to it.
inline Floats x_of(const FewCall& call, const Asked& asked, Floats product) {
    const Floats score = product * call.scaling;
    return (call.softcap > 0 ? tanh_of(score / call.softcap) * call.softcap : score) * asked.scale;
}
inline const float* added_to(const Pairs& pairs, const Asked& asked) {
    return pairs.at + asked.batch * pairs.batch + asked.head * pairs.head + asked.query * pairs.query;
}

// Products of B queries with the keys from begin to end, `length` apart in z.
template <int B, class T>
void multiply_keys(const FewCall& call, const Asked* asked, const T* keys, int64_t begin, int64_t end, float* z,
                   int64_t length) {
    for (int64_t j = begin; j < end; j++) {
        const T* const key = keys + j * call.k.row;
        Floats sums[B] = {};
        for (int64_t d = 0; d < call.head_dim; d += LANES) {
            const Floats part = load_some(key + d, call.head_dim - d);
            fetch_ahead(key + d);
            for (int b = 0; b < B; b++) sums[b] += part * load_some(asked[b].q + d, call.head_dim - d);
        }
        for (int b = 0; b < B; b++) z[b * length + j] = sum(sums[b]);
    }
}

// x of the keys that one of the queries sees, a row of `length` for each query, from their products.
void finish_scores(const FewCall& call, const Together& few, int64_t length, float* x) {
    for (int64_t b = 0; b < few.count; b++, x += length) {
        const Asked& asked = few.asked[b];
        const int64_t n = few.end - few.first;
        for (int64_t j = 0; j < n; j += LANES) store_some(x + j, x_of(call, asked, load_some(x + j, n - j)), n - j);
        for (const Pairs& pairs : call.added) {
            if (!pairs.at) continue;
            const float* const from = added_to(pairs, asked) + few.first * pairs.key;
            for (int64_t j = 0; j < n; j++) {  // what is hidden is, whatever the key holds
                const float added = from[j * pairs.key];
                x[j] = added == -INF ? added : x[j] + added * asked.scale;
            }
        }
        std::fill_n(x, asked.first - few.first, -INF);
        std::fill_n(x + asked.end - few.first, few.end - asked.end, -INF);
        if (call.sinks) x[n] = call.sinks[asked.head] * asked.scale;
    }
}

// The rows of x become weights; those of one exponent are solved side by side.
void write_few_weights(const Together& few, int64_t length, float* x) {
    static thread_local std::vector<float> scratch;
    scratch.resize(std::max<size_t>(scratch.size(), QUERIES * room(length)));
    for (int64_t b = 0, end; b < few.count; b = end) {
        const float exponent = few.asked[b].exponent;
        for (end = b + 1; end < few.count && few.asked[end].exponent == exponent;) end++;
        float* const rows = x + b * length;
        BY_EXPONENT(write_weights, exponent, rows, rows, end - b, length, 1, exponent, scratch.data());
    }
}

template <class T> void attend_to_head(const FewCall& call, int64_t batch, int64_t key_head) {
    static thread_local std::vector<float> rows, value;
    static thread_local std::vector<int32_t> column;
    const T* const keys = rows_of<T>(call.k, batch, key_head);
    const T* const values = rows_of<T>(call.v, batch, key_head);
    by_few(call, batch, key_head, [&](const Together& few) {
        const int64_t num_keys = std::max<int64_t>(0, few.end - few.first), length = num_keys + (call.sinks != nullptr);
        rows.resize(std::max<size_t>(rows.size(), QUERIES * (length + 1)));
        float* const x = rows.data();
        for (int64_t begin = few.first; begin < few.end; begin += KEYS) {
            const int64_t end = std::min(few.end, begin + KEYS);
            up_to_four(few.count, [&](auto size, int64_t b) {
                constexpr int B = decltype(size)::value;
                multiply_keys<B>(call, few.asked + b, keys, begin, end, x + b * length - few.first, length);
            });
        }
        if (length > 0) finish_scores(call, few, length, x), write_few_weights(few, length, x);
        value.resize(std::max<size_t>(value.size(), num_keys)), column.resize(value.size());
        for (int64_t b = 0; b < few.count; b++) {
            const float* const p = x + b * length;
            int64_t n = 0;
            for (int64_t j = 0; j < num_keys; j += LANES)
                for (uint32_t bits = beyond(load_some(p + j, num_keys - j), Floats{}); bits; bits &= bits - 1) {
                    const int64_t at = j + __builtin_ctz(bits);
                    column[n] = static_cast<int32_t>(few.first + at), value[n++] = p[at];
                }
            const Asked& asked = few.asked[b];
            gather(value.data(), column.data(), n, values, call.v.row, call.value_dim,
                   row_of(call.out, asked.batch, asked.head, asked.query));
        }
    });
}

template <class T> void attend_few(const FewCall& call, int num_threads) {
    const int64_t heads = call.num_key_heads, queries = call.num_heads / heads * call.num_queries;
    by_rows(call.num_sequences * heads, call.num_keys * call.head_dim * queries / 4, num_threads,
            [&](int64_t from, int64_t to) {
                for (int64_t i = from; i < to; i++) attend_to_head<T>(call, i / heads, i % heads);
            });
}

}  // namespace
