// Products W h of a large matrix with a few vectors: all of them to within a bound, from 8 bits a weight, and those that
// matter from the weights themselves.
//
// Rows are cut into groups of 64 columns. A group of a row is w = s c + e with whole numbers |c| <= 127, a group of a
// vector h = t k + f with whole numbers |k| <= 32767, and so
//
//     |w.h - s t (c.k)| <= |e| |h| + |s c| |f|,   |f| <= 4 t <= 1.25e-4 |h|.
//
// `lost` is a bound on |e| + 1.25e-4 |s c|, and on what float32 may be off by, in any order of summation, per |h|.

#pragma once

#include <vector>

#include "lanes.hpp"
#include "parallel.hpp"

namespace {

constexpr int64_t GROUP = 64;
constexpr float LOST_OF_VECTOR = 1.25e-4f;
// Smaller groups count as lost altogether, and no norm or bound is below these: what underflows must not be missed.
constexpr float LEAST_SCALE = 0x1p-100f, LEAST_ENTRY = 0x1p-76f, LEAST_NORM = 0x1p-60f, LEAST_SLACK = 0x1p-80f;

struct Group { BFloat16 scale, lost; };
struct Coded { const int8_t* code; const Group* group; const float* bias; int64_t num_rows, num_groups; };
template <class T> struct Matrix { const T* at; const float* bias; int64_t num_rows, width; };

inline float value_of(BFloat16 v) {
    const uint32_t bits = static_cast<uint32_t>(v.bits) << 16;
    return load_as<float>(&bits);
}
inline BFloat16 rounded_up(float v) {
    const uint32_t bits = load_as<uint32_t>(&v);
    return {static_cast<uint16_t>((bits + 0xffff) >> 16)};
}

// ---- Weights in 8 bits -----------------------------------------------------------------------------------------

// Of a group of floats.
inline float norm_of(const float* v) {
    Floats square = {};
    for (int64_t i = 0; i < GROUP; i += LANES) square += load(v + i) * load(v + i);
    return std::sqrt(sum(square)) + LEAST_NORM;
}
inline float size_of(const float* v) {
    Floats size = {};
    for (int64_t i = 0; i < GROUP; i += LANES) size = largest(largest(load(v + i), -load(v + i)), size);
    return highest(size);
}
// v * by, rounded to whole numbers from -most to most.
template <class T> inline void round_group(const float* v, float by, float most, T* code) {
    constexpr float WHOLE = 12582912;  // 1.5 * 2^23: adding it rounds to a whole number
    for (int64_t i = 0; i < GROUP; i += LANES) {
        const Floats whole = (load(v + i) * all(by) + WHOLE) - WHOLE;
        const Ints number = __builtin_convertvector(smallest(largest(whole, all(-most)), all(most)), Ints);
        for (int k = 0; k < LANES; k++) code[i + k] = static_cast<T>(number[k]);
    }
}
template <class T> inline void read_group(const T* from, int64_t n, float* v) {
    std::memset(v, 0, GROUP * sizeof(float));
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store_some(v + i, load(from + i), LANES);
    for (; i < n; i++) v[i] = load_one(from + i);
}

// What float32 may be off by in a dot product of this length, and in the sum of its groups, per product of norms.
inline float rounding_of(int64_t width) { return static_cast<float>(width + width / 32 + 64) * 0x1p-24f; }

inline Group code_group(const float* w, float norm, float rounding, int8_t* code) {
    float rest[GROUP];
    const BFloat16 scale = rounded_up(size_of(w) / 127);
    const float s = value_of(scale), by = s < LEAST_SCALE ? 0 : 1 / s;
    round_group(w, by, 127, code);
    for (int64_t i = 0; i < GROUP; i++) rest[i] = w[i] - s * code[i];
    const float lost = norm_of(rest);
    return {scale, rounded_up(1.001f * lost + (LOST_OF_VECTOR + rounding) * (norm + lost))};
}

// The rows in 8 bits, zeros after their last column. False if an entry is not finite, or too large for a norm.
template <class T> bool code_rows(const Matrix<T>& matrix, int8_t* code, Group* group, int num_threads) {
    const int64_t width = matrix.width, num_groups = (width + GROUP - 1) / GROUP;
    const float rounding = rounding_of(width);
    std::atomic<bool> fine{true};
    by_rows(matrix.num_rows, width, num_threads, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row++)
            for (int64_t g = 0; g < num_groups; g++) {
                const int64_t to = row * num_groups + g;
                float w[GROUP];
                read_group(matrix.at + row * width + g * GROUP, std::min(GROUP, width - g * GROUP), w);
                const float norm = norm_of(w);
                if (!(norm < INF)) {
                    fine = false;
                    return;
                }
                group[to] = code_group(w, norm, rounding, code + to * GROUP);
            }
    });
    return fine;
}

// Bytes turned into a number that any change of a few of them changes, and any other change almost surely.
inline uint64_t fingerprint(const char* data, int64_t num_bytes, int num_threads) {
    constexpr int64_t CHUNK = 1 << 18, STEP = 4 * sizeof(Ints);
    const int64_t num_chunks = (num_bytes + CHUNK - 1) / CHUNK;
    std::vector<uint64_t> found(num_chunks);
    by_rows(num_chunks, CHUNK / 4, num_threads, [&](int64_t first, int64_t last) {
        for (int64_t chunk = first; chunk < last; chunk++) {
            const char* at = data + chunk * CHUNK;
            const int64_t n = std::min(CHUNK, num_bytes - chunk * CHUNK);
            Ints state[4] = {};
            typedef uint32_t Unsigned __attribute__((vector_size(sizeof(Ints))));
            const auto mix = [&](const char* from) {
                for (int64_t line = 0; line < STEP; line += 64) fetch_ahead(from + line);
                for (int k = 0; k < 4; k++) {
                    const Unsigned mixed = (Unsigned)(state[k] ^ load_as<Ints>(from + k * sizeof(Ints))) * 0x9e3779b1u;
                    state[k] = (Ints)(mixed ^ (mixed >> 15));
                }
            };
            int64_t i = 0;
            for (; i + STEP <= n; i += STEP) mix(at + i);
            char last_ones[STEP] = {};
            std::memcpy(last_ones, at + i, n - i);
            mix(last_ones);
            uint32_t words[STEP / 4];
            std::memcpy(words, state, sizeof state);
            for (uint32_t word : words) found[chunk] = (found[chunk] ^ word) * 0x9e3779b97f4a7c15u;
            found[chunk] ^= found[chunk] >> 32;
        }
    });
    uint64_t all_of_them = num_bytes;
    for (uint64_t one : found) all_of_them = (all_of_them ^ one ^ (all_of_them >> 31)) * 0x9e3779b97f4a7c15u;
    return all_of_them;
}

// ---- All products, to within a bound ---------------------------------------------------------------------------

typedef int8_t Bytes __attribute__((vector_size(2 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));
constexpr int PARTS = GROUP / (2 * LANES);  // vectors of a group

inline Shorts widened(const int8_t* p) {
#if defined(__AVX512BW__)
    return (Shorts)_mm512_cvtepi8_epi16(load_as<__m256i>(p));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (Shorts)_mm256_cvtepi8_epi16(load_as<__m128i>(p));
#endif
    return __builtin_convertvector(load_as<Bytes>(p), Shorts);
}
// Sums of products of two neighbours each. They fit: 64 products of a byte and a short are below 2^31.
inline Ints pair_products(Shorts a, Shorts b) {
#if defined(__AVX512BW__)
    return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__) && !defined(__AVX__)
    return (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    Ints c;
    for (int i = 0; i < LANES; i++)
        c[i] = static_cast<int32_t>(a[2 * i]) * b[2 * i] + static_cast<int32_t>(a[2 * i + 1]) * b[2 * i + 1];
    return c;
#endif
}

// A vector in 16 bits, with the scale and the norm of each group.
struct CodedVector {
    std::vector<int16_t> code;
    std::vector<float> scale, norm;

    CodedVector(const float* h, int64_t width, int64_t num_groups)
        : code(num_groups * GROUP), scale(num_groups), norm(num_groups) {
        for (int64_t g = 0; g < num_groups; g++) {
            float v[GROUP];
            read_group(h + g * GROUP, std::min(GROUP, width - g * GROUP), v);
            const float size = size_of(v);
            round_group(v, size < LEAST_ENTRY ? 0 : 32767 / size, 32767, &code[g * GROUP]);
            scale[g] = size / 32767;
            norm[g] = 1.0001f * norm_of(v);
        }
    }
};

// B vectors at a time, from `first` on; false if a product or its bound is not finite.
template <int B>
bool screen_rows(const Coded& coded, const CodedVector* first, int64_t begin, int64_t end, float* product, float* slack) {
    const int64_t num_groups = coded.num_groups, num_rows = coded.num_rows;
    const int16_t* whole[B];
    const float *scale[B], *norm[B];
    for (int b = 0; b < B; b++)
        whole[b] = first[b].code.data(), scale[b] = first[b].scale.data(), norm[b] = first[b].norm.data();
    bool fine = true;
    for (int64_t row = begin; row < end; row++) {
        const int8_t* code = coded.code + row * num_groups * GROUP;
        const Group* group = coded.group + row * num_groups;
        Floats sums[B] = {};
        float bound[B] = {};
        for (int64_t g = 0; g < num_groups; g++) {
            Shorts c[PARTS];
            for (int j = 0; j < PARTS; j++) c[j] = widened(code + g * GROUP + 2 * LANES * j);
            fetch_ahead(code + g * GROUP);
            const float s = value_of(group[g].scale), lost = value_of(group[g].lost);
            for (int b = 0; b < B; b++) {
                const int16_t* k = whole[b] + g * GROUP;
                Ints found = pair_products(c[0], load_as<Shorts>(k));
                for (int j = 1; j < PARTS; j++) found += pair_products(c[j], load_as<Shorts>(k + 2 * LANES * j));
                sums[b] += __builtin_convertvector(found, Floats) * all(s * scale[b][g]);
                bound[b] += lost * norm[b][g];
            }
        }
        const float bias = coded.bias ? coded.bias[row] : 0;
        for (int b = 0; b < B; b++) {
            const float found = sum(sums[b]), off = 1.0001f * bound[b] + LEAST_SLACK;
            fine &= std::fabs(found) + off < INF && bias < INF;
            product[b * num_rows + row] = found + bias;
            slack[b * num_rows + row] = off;
        }
    }
    return fine;
}

inline bool screen(const Coded& coded, const std::vector<CodedVector>& h, int num_threads, float* product, float* slack) {
    std::atomic<bool> fine{true};
    const int64_t size = h.size(), length = coded.num_rows;
    by_rows(length, coded.num_groups * GROUP / 4 * size, num_threads, [&](int64_t first, int64_t last) {
        // Few enough rows that they are still in cache for the next vectors.
        for (int64_t begin = first; begin < last; begin += 16) {
            const int64_t end = std::min(last, begin + 16);
            int64_t b = 0;
            const auto some = [&](auto count) {
                constexpr int B = decltype(count)::value;
                for (; b + B <= size; b += B)
                    if (!screen_rows<B>(coded, &h[b], begin, end, product + b * length, slack + b * length)) fine = false;
            };
            some(std::integral_constant<int, 4>{});
            some(std::integral_constant<int, 2>{});
            some(std::integral_constant<int, 1>{});
        }
    });
    return fine;
}

// ---- Some products, exactly ------------------------------------------------------------------------------------

template <class T> float exact_product(const Matrix<T>& matrix, int64_t row, const float* h) {
    const T* w = matrix.at + row * matrix.width;
    Floats sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * LANES <= matrix.width; i += 4 * LANES)
        for (int k = 0; k < 4; k++) sums[k] += load(w + i + k * LANES) * load(h + i + k * LANES);
    float rest = 0;
    for (; i < matrix.width; i++) rest += load_one(w + i) * h[i];
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest + (matrix.bias ? matrix.bias[row] : 0);
}

// The columns of the `most` largest entries, in no order.
inline void list_largest(const float* v, int64_t length, int64_t most, int64_t* column) {
    std::vector<std::pair<float, int64_t>> heap;
    const auto above = [](const auto& a, const auto& b) { return a.first > b.first; };
    for (int64_t i = 0; i < most; i++) heap.emplace_back(v[i], i);
    std::make_heap(heap.begin(), heap.end(), above);
    const auto take = [&](int64_t i) {
        if (!(v[i] > heap.front().first)) return;
        std::pop_heap(heap.begin(), heap.end(), above);
        heap.back() = {v[i], i};
        std::push_heap(heap.begin(), heap.end(), above);
    };
    int64_t i = most;
    for (; i + LANES <= length; i += LANES)
        if (beyond(load(v + i), all(heap.front().first)))
            for (int64_t k = i; k < i + LANES; k++) take(k);
    for (; i < length; i++) take(i);
    for (int64_t k = 0; k < most; k++) column[k] = heap[k].second;
}

// Exact products in the place of those that may reach the cut. Their number, or -1 if one was not within its bound.
template <class T>
int64_t refine(const Matrix<T>& matrix, const float* h, float cut, const float* slack, float* product, int num_threads) {
    std::atomic<int64_t> count{0};
    std::atomic<bool> fine{true};
    by_rows(matrix.num_rows, std::max<int64_t>(1, matrix.width / 16), num_threads, [&](int64_t first, int64_t last) {
        int64_t own = 0;
        for (int64_t row = first; row < last; row++) {
            if (product[row] + slack[row] < cut) continue;
            const float exact = exact_product(matrix, row, h);
            if (!(std::fabs(exact - product[row]) <= slack[row] + 4 * EPS * std::fabs(exact)) && exact != product[row])
                fine = false;
            product[row] = exact;
            own++;
        }
        count += own;
    });
    return fine ? count.load() : -1;
}

}  // namespace
