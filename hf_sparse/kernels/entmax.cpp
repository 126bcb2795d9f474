// alpha-entmax of rows, for 1.1 <= alpha <= 2. Plain C functions over pointers, compiled for the machine at hand.
//
// Throughout, x = (alpha - 1) (z - max z), P = 1 / (alpha - 1), and tau is the threshold in units of x: the weights
// are [x - tau]_+ ^ P and sum to one. The specification is hf_sparse/functional, in torch.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef long long Longs __attribute__((vector_size(4 * LANES)));

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float EPS = std::numeric_limits<float>::epsilon();
constexpr int64_t BLOCK = 1024;  // entries between two looks at the bound; as many as are summed up in float32
constexpr float MARGIN = 64 * EPS;  // what float32 may be off by in a bound on tau

// ---- Scores of three kinds, read as float32 -------------------------------------------------------------------

struct BFloat16 { uint16_t bits; };
struct Half { uint16_t bits; };

template <class V> inline V load_as(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
inline Ints bits_of(const uint16_t* p) { return __builtin_convertvector(load_as<Halves>(p), Ints); }
inline Floats load(const float* p) { return load_as<Floats>(p); }
inline Floats load(const BFloat16* p) { return (Floats)(bits_of(&p->bits) << 16); }
inline Floats load(const Half* p) {
    const Ints bits = bits_of(&p->bits), size = bits & 0x7fff;
    // A float32 with the same exponent and fraction bits is 2^112 too small; infinities and NaN have exponent 31.
    const Floats finite = (Floats)(size << 13) * 0x1p112f;
    const Floats value = size >= 0x7c00 ? (Floats)((size << 13) | 0x7f800000) : finite;
    return (Floats)((Ints)value | ((bits & 0x8000) << 16));
}
template <class T> inline float load_one(const T* p) {
    T several[LANES] = {*p};
    return load(several)[0];
}
inline float load_one(const float* p) { return *p; }

inline void store_one(float* p, float v) { *p = v; }
inline void store_one(BFloat16* p, float v) {  // v >= 0 or NaN; to the nearest, ties to even
    uint32_t bits = load_as<uint32_t>(&v);
    p->bits = v != v ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
inline void store_one(Half* p, float v) {  // v in [0, 1] or NaN: scaled so that the fraction ends where fp16's does
    if (v != v) {
        p->bits = 0x7e00;
        return;
    }
    if (v < 0x1p-14f) {  // subnormal: a multiple of 2^-24
        p->bits = static_cast<uint16_t>(std::nearbyintf(v * 0x1p24f));
        return;
    }
    uint32_t bits = load_as<uint32_t>(&v) - (112u << 23);
    p->bits = (bits + 0xfff + ((bits >> 13) & 1)) >> 13;
}

// ---- Lanes ----------------------------------------------------------------------------------------------------

inline Floats all(float v) { return v - Floats{}; }
inline Floats largest(Floats a, Floats b) { return a > b ? a : b; }
inline bool every(Ints condition) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)condition) == 0xffff;
#endif
    const Longs pairs = (Longs)condition;
    long long both = -1;
    for (int i = 0; i < LANES / 2; i++) both &= pairs[i];
    return both == -1;
}
inline float sum(Floats v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#endif
    float part[LANES];
    std::memcpy(part, &v, sizeof v);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

// log2 and exp2 by their Taylor series, to a few float32 roundings; arguments positive and normal, or above -126.
inline Floats log2_of(Floats v) {
    const Ints bits = (Ints)v;
    Ints exponent = (bits >> 23) - 127;
    Floats m = (Floats)((bits & 0x7fffff) | 0x3f800000);
    const Ints high = m > 1.41421356f;
    m = high ? m * 0.5f : m;
    exponent -= high;
    const Floats s = (m - 1.0f) / (m + 1.0f), q = s * s;
    const Floats series = 1.0f + q * (1.0f / 3 + q * (1.0f / 5 + q * (1.0f / 7 + q * (1.0f / 9))));
    return __builtin_convertvector(exponent, Floats) + s * series * 2.8853900817779268f;
}
inline Floats exp2_of(Floats v) {
    v = largest(v, all(-126.0f));
    const Ints whole = __builtin_convertvector(v + (v < 0 ? all(-0.5f) : all(0.5f)), Ints);
    const Floats f = (v - __builtin_convertvector(whole, Floats)) * 0.6931471805599453f;
    const Floats series =
        1.0f + f * (1.0f + f * (1.0f / 2 + f * (1.0f / 6 + f * (1.0f / 24 + f * (1.0f / 120 + f * (1.0f / 720))))));
    return series * (Floats)((whole + 127) << 23);
}
inline Floats power(Floats u, float exponent) {
    const Ints support = u > std::numeric_limits<float>::min();
    return support ? exp2_of(exponent * log2_of(support ? u : all(1.0f))) : Floats{};
}

// u ^ (P - 1) for u >= 0, where P is K, or any number if K is 0.
template <int K> inline Floats slope_power(Floats u, float exponent) {
    if (K == 1) return u > 0.0f ? all(1.0f) : Floats{};
    if (K == 2) return u;
    if (K == 3) return u * u;
    if (K == 4) return u * u * u;
    return power(u, exponent - 1);
}

// ---- Newton's method on the norm of [x - tau]_+ -----------------------------------------------------------------

struct Sums { double mass, slope; };

// sum u^P and sum u^(P - 1), u = [x - tau]_+. The row is padded with -inf to a multiple of 2 LANES.
template <int K> Sums sums_of(const float* x, int64_t n, float tau, float exponent) {
    Sums total{0, 0};
    const Floats t = all(tau);
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t end = std::min(n, start + BLOCK);
        Floats mass[2] = {}, slope[2] = {};
        for (int64_t i = start; i < end; i += 2 * LANES)
            for (int k = 0; k < 2; k++) {
                const Floats u = largest(load(x + i + k * LANES) - t, Floats{});
                const Floats s = slope_power<K>(u, exponent);
                mass[k] += s * u;
                slope[k] += s;
            }
        total.mass += sum(mass[0] + mass[1]);
        total.slope += sum(slope[0] + slope[1]);
    }
    return total;
}

// The threshold, from any lower bound of it; see hf_sparse/functional/_newton.py for the proof and the tolerance.
// After fewer steps than it takes, the result is a lower bound itself, a better one.
template <int K> float solve(const float* x, int64_t n, float bound, double exponent, int most_steps) {
    double tau = bound, tolerance = 3 * EPS * std::max(2.0, exponent);
    if (exponent >= 2) tolerance = std::max(tolerance, exponent * std::sqrt(EPS / (exponent * n)));
    for (int step = 0; step < most_steps; step++) {
        const Sums f = sums_of<K>(x, n, static_cast<float>(tau), static_cast<float>(exponent));
        if (!(f.mass > 1)) break;
        const double norm = K == 1   ? f.mass - 1
                            : K == 2 ? f.mass - std::sqrt(f.mass)
                                                     : f.mass - std::pow(f.mass, 1 - 1 / exponent);
        tau += norm / f.slope;
        if (f.mass <= 1 + tolerance) break;
    }
    return static_cast<float>(tau);
}

float solve(const float* x, int64_t n, float bound, double exponent, int most_steps = 100) {
    if (exponent == 1) return solve<1>(x, n, bound, exponent, most_steps);
    if (exponent == 2) return solve<2>(x, n, bound, exponent, most_steps);
    if (exponent == 3) return solve<3>(x, n, bound, exponent, most_steps);
    if (exponent == 4) return solve<4>(x, n, bound, exponent, most_steps);
    return solve<0>(x, n, bound, exponent, most_steps);
}

// ---- One streaming read of a long row ---------------------------------------------------------------------------

struct Found {
    std::vector<float> value, x;
    std::vector<int32_t> column;
    int64_t count = 0;
};

// The thread's own, with room for a row; kept, because to clear it for every call would cost as much as the call.
Found& room_for(int64_t length) {
    thread_local Found found;
    if (found.value.size() < static_cast<size_t>(length + BLOCK)) {
        found.value.resize(length + BLOCK);
        found.x.resize(length + BLOCK);
        found.column.resize(length + BLOCK);
    }
    return found;
}

// Lists the entries z[begin:end] above the threshold, and NaNs.
template <class T> void list_above(const T* z, int64_t begin, int64_t end, float threshold, Found& found) {
    const Floats t = all(threshold);
    float* value = found.value.data();
    int32_t* column = found.column.data();
    int64_t n = found.count, i = begin;
    const auto list = [&](Floats v, int64_t first) {
#if defined(__AVX512F__)
        const __mmask16 keep = ~_mm512_movepi32_mask((__m512i)(v <= t));
        const __m512i from = _mm512_set1_epi32(static_cast<int32_t>(first));
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        _mm512_storeu_ps(value + n, _mm512_maskz_compress_ps(keep, (__m512)v));
        _mm512_storeu_si512(column + n, _mm512_maskz_compress_epi32(keep, _mm512_add_epi32(from, lane)));
        n += __builtin_popcount(keep);
        return;
#endif
        if (every(v <= t)) return;
        for (int k = 0; k < LANES; k++) {
            value[n] = v[k];
            column[n] = static_cast<int32_t>(first + k);
            n += !(v[k] <= threshold);
        }
    };
    for (; i + 4 * LANES <= end; i += 4 * LANES) {
        const Floats a = load(z + i), b = load(z + i + LANES), c = load(z + i + 2 * LANES), d = load(z + i + 3 * LANES);
        if (__builtin_expect(every((a <= t) & (b <= t) & (c <= t) & (d <= t)), 1)) continue;
        list(a, i), list(b, i + LANES), list(c, i + 2 * LANES), list(d, i + 3 * LANES);
    }
    for (; i < end; i++) {
        const float v = load_one(z + i);
        value[n] = v;
        column[n] = static_cast<int32_t>(i);
        n += !(v <= threshold);
    }
    found.count = n;
}

// The largest value; NaN if there is one.
float top_of(const float* value, int64_t n) {
    float top = -INF;
    for (int64_t i = 0; i < n; i++) top = value[i] > top || value[i] != value[i] ? value[i] : top;
    return top;
}

// The maxima of LANES parts of a row, and of all of it (NaN if it has one). Masked parts give -inf.
struct Tops { Floats lanes; float all; };

template <class T> Tops tops_of(const T* z, int64_t n) {
    Floats top[2] = {all(-INF), all(-INF)};
    Ints nothing = {};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        for (int k = 0; k < 2; k++) {
            const Floats v = load(z + i + k * LANES);
            top[k] = largest(v, top[k]);
            nothing |= v != v;
        }
    Floats lanes = largest(top[0], top[1]);
    bool nan = !every(nothing == 0);
    for (int k = 0; i < n; i++, k = (k + 1) % LANES) {
        const float v = load_one(z + i);
        nan |= v != v;
        lanes[k] = v > lanes[k] ? v : lanes[k];
    }
    float part[LANES], highest = -INF;
    std::memcpy(part, &lanes, sizeof lanes);
    for (int k = 0; k < LANES; k++) highest = part[k] > highest ? part[k] : highest;
    return {lanes, nan ? std::numeric_limits<float>::quiet_NaN() : highest};
}

// A lower bound of tau: the threshold of those maxima alone.
float first_bound(const Tops& tops, float scale, double exponent) {
    float x[2 * LANES];
    const Floats lanes = (tops.lanes - tops.all) * scale, none = all(-INF);
    std::memcpy(x, &lanes, sizeof lanes);
    std::memcpy(x + LANES, &none, sizeof none);
    return std::max(-1.0f, solve(x, 2 * LANES, -1, exponent, 3) - MARGIN);
}

// A score below which x is at most tau: rounding of x is allowed for, and the result is rounded down.
float score_at(float top, float tau, double scale) {
    return std::nextafter(static_cast<float>(top + (static_cast<double>(tau) - 4 * EPS) / scale), -INF);
}

void drop_below(Found& found, float threshold) {
    int64_t n = 0;
    for (int64_t i = 0; i < found.count; i++) {
        const float v = found.value[i];
        found.value[n] = v;
        found.column[n] = found.column[i];
        n += v > threshold;
    }
    found.count = n;
}

// Solves on what was found so far: a lower bound of the row's threshold, being the threshold of a part of it.
float solve_found(Found& found, float top, float scale, float bound, double exponent, int most_steps = 100) {
    float* x = found.x.data();
    for (int64_t i = 0; i < found.count; i++) x[i] = (found.value[i] - top) * scale;
    for (int64_t i = found.count; i < found.count + 2 * LANES; i++) x[i] = -INF;
    return solve(x, found.count, bound, exponent, most_steps);
}

struct Threshold { float top, tau; };

// Reads the row once; leaves in `found` all entries that can be in the support, with their x.
// Rows without a finite maximum find nothing: top is -inf (masked), inf or NaN.
template <class T> Threshold scan(const T* z, int64_t length, float scale, double exponent, Found& found) {
    found.count = 0;
    const Tops tops = tops_of(z, std::min(length, 4 * BLOCK));
    float top = tops.all;
    if (!(top < INF)) return {top, 0};
    float tau = top == -INF ? -1 : first_bound(tops, scale, exponent), threshold = score_at(top, tau, scale);
    int64_t enough = 256;
    for (int64_t begin = 0; begin < length; begin += BLOCK) {
        const int64_t before = found.count;
        list_above(z, begin, std::min(length, begin + BLOCK), threshold, found);
        if (found.count == before) continue;
        const float highest = top_of(found.value.data() + before, found.count - before);
        if (!(highest < INF)) {
            found.count = 0;
            return {highest, 0};
        }
        if (highest > top) {
            tau = std::max(-1.0f, tau - (highest - top) * scale - MARGIN);
            top = highest;
            threshold = std::max(threshold, score_at(top, tau, scale));
        }
        if (found.count > enough) {
            drop_below(found, threshold);
            if (2 * found.count > enough) {
                tau = std::max(tau, solve_found(found, top, scale, tau, exponent, 2) - MARGIN);
                threshold = std::max(threshold, score_at(top, tau, scale));
                drop_below(found, threshold);
            }
            enough = std::max<int64_t>(256, found.count + found.count / 2);
        }
    }
    if (top == -INF) return {top, 0};
    drop_below(found, threshold);
    return {top, solve_found(found, top, scale, tau, exponent)};
}

// ---- Short rows, whole -------------------------------------------------------------------------------------------

// p of one row; x is scratch for length + BLOCK entries.
template <int K> void write_weights(const float* z, float* p, int64_t length, float scale, double exponent, float* x) {
    const Tops tops = tops_of(z, length);
    const float top = tops.all;
    if (!(top < INF) || top == -INF) {
        std::fill_n(p, length, top == -INF ? 0.0f : std::numeric_limits<float>::quiet_NaN());
        return;
    }
    const Floats t = all(top);
    int64_t i = 0;
    for (; i + LANES <= length; i += LANES) {
        const Floats v = (load(z + i) - t) * scale;
        std::memcpy(x + i, &v, sizeof v);
    }
    for (; i < length; i++) x[i] = (z[i] - top) * scale;
    for (; i < length + 2 * LANES; i++) x[i] = -INF;
    // The bound spares two or three steps, each as long as the row.
    const float bound = length < 256 ? -1 : first_bound(tops, scale, exponent);
    const float tau = solve<K>(x, length, bound, exponent, 100);
    double mass = 0;
    for (int64_t start = 0; start < length; start += BLOCK) {
        Floats part = {};
        for (i = start; i < std::min(length, start + BLOCK); i += LANES) {
            const Floats u = largest(load(x + i) - tau, Floats{});
            const Floats v = K == 0 ? power(u, static_cast<float>(exponent)) : slope_power<K>(u, K) * u;
            std::memcpy(x + i, &v, sizeof v);
            part += v;
        }
        mass += sum(part);
    }
    const float share = static_cast<float>(1 / mass);
    for (i = 0; i + LANES <= length; i += LANES) {
        const Floats v = load(x + i) * share;
        std::memcpy(p + i, &v, sizeof v);
    }
    for (; i < length; i++) p[i] = x[i] * share;
}

void write_weights(const float* z, float* p, int64_t length, float scale, double exponent, float* x) {
    if (exponent == 1) return write_weights<1>(z, p, length, scale, exponent, x);
    if (exponent == 2) return write_weights<2>(z, p, length, scale, exponent, x);
    if (exponent == 3) return write_weights<3>(z, p, length, scale, exponent, x);
    if (exponent == 4) return write_weights<4>(z, p, length, scale, exponent, x);
    write_weights<0>(z, p, length, scale, exponent, x);
}

// s = p^(2 - alpha) on the support; K = 1 for alpha 2, 2 for alpha 1.5, 0 for any.
template <int K> inline Floats support_weight(Floats p, float power_of_p) {
    if (K == 1) return p > 0.0f ? all(1.0f) : Floats{};
    if (K == 2) {
        float s[LANES];
        std::memcpy(s, &p, sizeof p);
        for (int k = 0; k < LANES; k++) s[k] = std::sqrt(s[k]);
        return load(s);
    }
    return power(p, power_of_p);
}

// s (g - mean_s g) of one row; s is scratch for length + BLOCK entries.
template <int K> void write_product(const float* p, const float* g, float* out, int64_t length, float power_of_p, float* s) {
    std::copy_n(p, length, s);
    std::fill_n(s + length, 2 * LANES, 0.0f);
    double total = 0, weighted = 0;
    for (int64_t start = 0; start < length; start += BLOCK) {
        Floats part = {}, with_g = {};
        for (int64_t i = start; i < std::min(length, start + BLOCK); i += LANES) {
            const Floats v = support_weight<K>(load(s + i), power_of_p);
            std::memcpy(s + i, &v, sizeof v);
            part += v;
            Floats up = {};
            if (__builtin_expect(i + LANES <= length, 1)) up = load(g + i);
            else std::memcpy(&up, g + i, 4 * (length - i));
            // Off the support the upstream gradient may be anything, infinite too: it must not enter the mean.
            with_g += v == 0.0f ? Floats{} : v * up;
        }
        total += sum(part), weighted += sum(with_g);
    }
    const float mean = total == 0 ? 0.0f : static_cast<float>(weighted / total);
    int64_t i = 0;
    for (; i + LANES <= length; i += LANES) {
        const Floats v = load(s + i), product = v == 0.0f ? Floats{} : v * (load(g + i) - mean);
        std::memcpy(out + i, &product, sizeof v);
    }
    for (; i < length; i++) out[i] = s[i] == 0 ? 0 : s[i] * (g[i] - mean);
}

// ---- Rows in parallel -------------------------------------------------------------------------------------------

// body(first, last) on runs of rows, by as many threads as the work keeps busy.
template <class Body> void by_rows(int64_t num_rows, int64_t length, int num_threads, Body body) {
    constexpr int64_t WORTH_A_THREAD = 1 << 17;  // entries; starting a thread takes about ten microseconds
    const int64_t busy = std::min<int64_t>({num_threads, num_rows, num_rows * length / WORTH_A_THREAD});
    if (busy <= 1) return body(0, num_rows);
    const int64_t run = std::max<int64_t>(1, num_rows / (8 * busy));
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t first; (first = next.fetch_add(run)) < num_rows;) body(first, std::min(num_rows, first + run));
    };
    std::vector<std::thread> others;
    for (int64_t i = 1; i < busy; i++) others.emplace_back(work);
    work();
    for (auto& other : others) other.join();
}

template <class T>
void solve_rows(const T* z, int64_t num_rows, int64_t length, double alpha, double exponent, int64_t capacity,
                int num_threads, int32_t* column, float* x, int32_t* count, float* top, float* tau) {
    const float scale = static_cast<float>(alpha - 1);
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        Found& found = room_for(length);
        for (int64_t row = first; row < last; row++) {
            const Threshold solved = scan(z + row * length, length, scale, exponent, found);
            top[row] = solved.top;
            tau[row] = solved.tau;
            int64_t n = 0;
            for (int64_t i = 0; i < found.count && n <= capacity; i++) {
                if (!(found.x[i] > solved.tau)) continue;
                if (n < capacity) {
                    column[row * capacity + n] = found.column[i];
                    x[row * capacity + n] = found.x[i];
                }
                n++;
            }
            count[row] = static_cast<int32_t>(n > capacity ? -1 : n);
        }
    });
}

template <class T>
void map_rows(const T* z, T* p, int64_t num_rows, int64_t length, double alpha, double exponent, int num_threads) {
    const float scale = static_cast<float>(alpha - 1);
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        Found& found = room_for(length);
        for (int64_t row = first; row < last; row++) {
            T* out = p + row * length;
            const Threshold solved = scan(z + row * length, length, scale, exponent, found);
            if (!(solved.top < INF)) {
                for (int64_t i = 0; i < length; i++) store_one(out + i, std::numeric_limits<float>::quiet_NaN());
                continue;
            }
            std::memset(static_cast<void*>(out), 0, length * sizeof(T));
            double mass = 0;
            for (int64_t i = 0; i < found.count; i++) {
                const float u = std::max(found.x[i] - solved.tau, 0.0f);
                found.x[i] = exponent == 1 ? u : exponent == 2 ? u * u : std::pow(u, static_cast<float>(exponent));
                mass += found.x[i];
            }
            for (int64_t i = 0; i < found.count; i++)
                store_one(out + found.column[i], static_cast<float>(found.x[i] / mass));
        }
    });
}

template <class T>
void rows_above(const T* z, int64_t num_rows, int64_t length, float threshold, int64_t capacity, int num_threads,
                int32_t* column, float* value, int32_t* count) {
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        Found& found = room_for(length);
        for (int64_t row = first; row < last; row++) {
            found.count = 0;
            list_above(z + row * length, 0, length, threshold, found);
            const bool fits = found.count <= capacity;
            count[row] = static_cast<int32_t>(fits ? found.count : -1);
            if (!fits) continue;
            std::copy_n(found.column.data(), found.count, column + row * capacity);
            std::copy_n(found.value.data(), found.count, value + row * capacity);
        }
    });
}

}  // namespace

// ---- What Python calls. dtype: 0 float32, 1 bfloat16, 2 float16 ---------------------------------------------------

#define BY_DTYPE(call)                                       \
    if (dtype == 0) { using T = float; call; }               \
    else if (dtype == 1) { using T = BFloat16; call; }       \
    else { using T = Half; call; }

extern "C" {

// The support of each row: `count` places (-1 if more than `capacity`) with column and x, top and tau.
void hf_sparse_solve(const void* z, int dtype, int64_t num_rows, int64_t length, double alpha, double exponent,
                     int64_t capacity, int num_threads, int32_t* column, float* x, int32_t* count, float* top,
                     float* tau) {
    BY_DTYPE(solve_rows(static_cast<const T*>(z), num_rows, length, alpha, exponent, capacity, num_threads, column, x,
                        count, top, tau))
}

// The weights of long rows: zeros, and the support written over them.
void hf_sparse_map(const void* z, void* p, int dtype, int64_t num_rows, int64_t length, double alpha, double exponent,
                   int num_threads) {
    BY_DTYPE(map_rows(static_cast<const T*>(z), static_cast<T*>(p), num_rows, length, alpha, exponent, num_threads))
}

// The weights of rows that are solved whole, in cache.
void hf_sparse_weights(const float* z, float* p, int64_t num_rows, int64_t length, double alpha, double exponent,
                       int num_threads) {
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        std::vector<float> x(length + BLOCK);
        for (int64_t row = first; row < last; row++)
            write_weights(z + row * length, p + row * length, length, static_cast<float>(alpha - 1), exponent, x.data());
    });
}

// The Jacobian's product with g, Diag(s) g - s s^T g / sum s, s = p^(2 - alpha).
void hf_sparse_product(const float* p, const float* g, float* out, int64_t num_rows, int64_t length, double alpha,
                       int num_threads) {
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        std::vector<float> s(length + BLOCK);
        const auto write = alpha == 2 ? write_product<1> : alpha == 1.5 ? write_product<2> : write_product<0>;
        for (int64_t i = first * length; i < last * length; i += length)
            write(p + i, g + i, out + i, length, static_cast<float>(2 - alpha), s.data());
    });
}

// The entries of each row above a threshold, and NaNs: `count` places (-1 if more than `capacity`).
void hf_sparse_above(const void* z, int dtype, int64_t num_rows, int64_t length, float threshold, int64_t capacity,
                     int num_threads, int32_t* column, float* value, int32_t* count) {
    BY_DTYPE(rows_above(static_cast<const T*>(z), num_rows, length, threshold, capacity, num_threads, column, value,
                        count))
}

}  // extern "C"
