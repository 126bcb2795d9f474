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

#if defined(__SSE2__)
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
inline Floats load_some(const float* p, int64_t n) {  // the first n, and zeros
    Floats v = {};
    if (__builtin_expect(n >= LANES, 1)) return load(p);
    std::memcpy(&v, p, 4 * n);
    return v;
}
inline void store_some(float* p, Floats v, int64_t n) { std::memcpy(p, &v, n >= LANES ? sizeof v : 4 * n); }

inline void store_one(float* p, float v) { *p = v; }
inline void store_one(BFloat16* p, float v) {  // to the nearest, ties to even
    uint32_t bits = load_as<uint32_t>(&v);
    p->bits = v != v ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
inline void store_one(Half* p, float v) {  // scaled so that the fraction ends where fp16's does
    const float size = std::fabs(v);
    const uint32_t bits = load_as<uint32_t>(&size) - (112u << 23);
    const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
    if (v != v) p->bits = 0x7e00;
    else if (size >= 65520.0f) p->bits = sign | 0x7c00;
    else if (size < 0x1p-14f) p->bits = sign | static_cast<uint16_t>(std::nearbyintf(size * 0x1p24f));  // subnormal
    else p->bits = sign | (bits + 0xfff + ((bits >> 13) & 1)) >> 13;
}

// ---- Lanes ----------------------------------------------------------------------------------------------------

inline Floats all(float v) { return v - Floats{}; }
inline Floats largest(Floats a, Floats b) { return a > b ? a : b; }
// A bit for every lane that is above the threshold, or NaN.
inline uint32_t beyond(Floats v, Floats threshold) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)v, (__m512)threshold, _CMP_NLE_UQ);
#elif defined(__AVX__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, (__m256)threshold, _CMP_NLE_UQ));
#endif
    uint32_t bits = 0;
    for (int k = 0; k < LANES; k++) bits |= static_cast<uint32_t>(!(v[k] <= threshold[k])) << k;
    return bits;
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

inline float highest(Floats v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#endif
    float top = v[0];
    for (int k = 1; k < LANES; k++) top = std::max(top, v[k]);
    return top;
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
    v = v < 128.0f ? v : all(128.0f);  // which gives infinity
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

// How far above one the mass may be for tau to be the threshold; see hf_sparse/functional/_newton.py for the proof.
double tolerance_of(int64_t n, double exponent) {
    const double tolerance = 3 * EPS * std::max(2.0, exponent);
    return exponent < 2 ? tolerance : std::max(tolerance, exponent * std::sqrt(EPS / (exponent * n)));
}

// One step up from a lower bound to a better one; whether there is another to take.
template <int K> bool step_up(const float* x, int64_t n, double& tau, double exponent, double tolerance) {
    const Sums f = sums_of<K>(x, n, static_cast<float>(tau), static_cast<float>(exponent));
    if (!(f.mass > 1)) return false;
    const double norm = K == 1   ? f.mass - 1
                        : K == 2 ? f.mass - std::sqrt(f.mass)
                                 : f.mass - std::pow(f.mass, 1 - 1 / exponent);
    tau += norm / f.slope;
    return f.mass > 1 + tolerance;
}

// The threshold, from any lower bound of it. After fewer steps than it takes, a lower bound itself, a better one.
template <int K> float solve(const float* x, int64_t n, float bound, double exponent, int most_steps) {
    double tau = bound;
    const double tolerance = tolerance_of(n, exponent);
    for (int step = 0; step < most_steps && step_up<K>(x, n, tau, exponent, tolerance); step++) {}
    return static_cast<float>(tau);
}

float solve(const float* x, int64_t n, float bound, double exponent, int most_steps = 100) {
    if (exponent == 1) return solve<1>(x, n, bound, exponent, most_steps);
    if (exponent == 2) return solve<2>(x, n, bound, exponent, most_steps);
    if (exponent == 3) return solve<3>(x, n, bound, exponent, most_steps);
    if (exponent == 4) return solve<4>(x, n, bound, exponent, most_steps);
    return solve<0>(x, n, bound, exponent, most_steps);
}

// [x - tau]_+ ^ P, which may be written over x; their sum. Both are read and written up to a multiple of LANES.
template <int K> double write_powers(const float* x, float* p, int64_t n, float tau, double exponent) {
    double mass = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        Floats part = {};
        for (int64_t i = start; i < std::min(n, start + BLOCK); i += LANES) {
            const Floats u = largest(load(x + i) - tau, Floats{});
            const Floats v = K == 0 ? power(u, static_cast<float>(exponent)) : slope_power<K>(u, K) * u;
            std::memcpy(p + i, &v, sizeof v);
            part += v;
        }
        mass += sum(part);
    }
    return mass;
}

double write_powers(const float* x, float* p, int64_t n, float tau, double exponent) {
    if (exponent == 1) return write_powers<1>(x, p, n, tau, exponent);
    if (exponent == 2) return write_powers<2>(x, p, n, tau, exponent);
    if (exponent == 3) return write_powers<3>(x, p, n, tau, exponent);
    if (exponent == 4) return write_powers<4>(x, p, n, tau, exponent);
    return write_powers<0>(x, p, n, tau, exponent);
}

// sum p x; where p is 0, x may be anything. Both are read up to a multiple of LANES.
double dot(const float* p, const float* x, int64_t n) {
    double total = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        Floats part = {};
        for (int64_t i = start; i < std::min(n, start + BLOCK); i += LANES)
            part += load(p + i) > 0.0f ? load(p + i) * load(x + i) : Floats{};
        total += sum(part);
    }
    return total;
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

// Lists the entries z[begin:end] above the threshold, and NaNs. First the groups that hold any, with no branch to
// mispredict, then their entries.
template <class T> void list_above(const T* z, int64_t begin, int64_t end, float threshold, Found& found) {
    constexpr int GROUP = 4 * LANES;
    const Floats t = all(threshold);
    float* value = found.value.data();
    int32_t* column = found.column.data();
    int64_t n = found.count;
    while (begin + GROUP <= end) {
        int64_t first[BLOCK / GROUP], groups = 0;
        uint64_t above[BLOCK / GROUP];
        for (const int64_t stop = std::min(end, begin + BLOCK); begin + GROUP <= stop; begin += GROUP) {
            uint64_t bits = 0;
            for (int k = 0; k < 4; k++)
                bits |= static_cast<uint64_t>(beyond(load(z + begin + k * LANES), t)) << (k * LANES);
            first[groups] = begin;
            above[groups] = bits;
            groups += bits != 0;
        }
        for (int64_t k = 0; k < groups; k++)
            for (uint64_t bits = above[k]; bits; bits &= bits - 1, n++) {
                column[n] = static_cast<int32_t>(first[k] + __builtin_ctzll(bits));
                value[n] = load_one(z + column[n]);
            }
    }
    for (; begin < end; begin++) {
        const float v = load_one(z + begin);
        value[n] = v;
        column[n] = static_cast<int32_t>(begin);
        n += !(v <= threshold);
    }
    found.count = n;
}

// The maxima of PARTS * LANES parts of a row, and of all of it (NaN if it has one). Masked parts give -inf.
template <int PARTS> struct Tops { Floats parts[PARTS]; float all; };

template <int PARTS, class T> Tops<PARTS> tops_of(const T* z, int64_t n) {
    Tops<PARTS> tops;
    for (auto& part : tops.parts) part = all(-INF);
    Ints nothing = {};
    int64_t i = 0;
    for (; i + PARTS * LANES <= n; i += PARTS * LANES)
        for (int k = 0; k < PARTS; k++) {
            const Floats v = load(z + i + k * LANES);
            tops.parts[k] = largest(v, tops.parts[k]);
            nothing |= v != v;
        }
    float rest = -INF;
    for (; i < n; i++) {
        const float v = load_one(z + i);
        nothing[0] |= -(v != v);
        rest = v > rest ? v : rest;
    }
    tops.parts[0][0] = std::max(tops.parts[0][0], rest);
    Floats top = tops.parts[0];
    for (int k = 1; k < PARTS; k++) top = largest(top, tops.parts[k]);
    const bool nan = beyond(__builtin_convertvector(-nothing, Floats), Floats{}) != 0;
    tops.all = nan ? std::numeric_limits<float>::quiet_NaN() : highest(top);
    return tops;
}

// A lower bound of tau: the threshold of those maxima alone.
template <int PARTS> float first_bound(const Tops<PARTS>& tops, float scale, double exponent) {
    float x[PARTS * LANES];
    for (int k = 0; k < PARTS; k++) {
        const Floats part = (tops.parts[k] - tops.all) * scale;
        std::memcpy(x + k * LANES, &part, sizeof part);
    }
    return std::max(-1.0f, solve(x, PARTS * LANES, -1, exponent, 3) - MARGIN);
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
    const auto tops = tops_of<8>(z, std::min(length, 4 * BLOCK));
    float top = tops.all;
    if (!(top < INF)) return {top, 0};
    float tau = top == -INF ? -1 : first_bound(tops, scale, exponent), threshold = score_at(top, tau, scale);
    int64_t enough = 256;
    for (int64_t begin = 0; begin < length; begin += BLOCK) {
        const int64_t before = found.count;
        list_above(z, begin, std::min(length, begin + BLOCK), threshold, found);
        if (found.count == before) continue;
        const float highest = tops_of<1>(found.value.data() + before, found.count - before).all;
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

// p of a few rows, whose Newton steps are taken in turn: each waits for its sums, and the others use the time.
// x is scratch, for as many rows of padded(length) entries.
constexpr int FEW = 8;
inline int64_t padded(int64_t length) { return (length + 2 * LANES - 1) / (2 * LANES) * (2 * LANES); }

template <int K>
void write_weights(const float* z, float* p, int64_t num_rows, int64_t length, float scale, double exponent, float* x) {
    const int64_t width = padded(length);
    const double tolerance = tolerance_of(length, exponent);
    float top[FEW];
    double tau[FEW];
    bool busy[FEW];
    for (int64_t row = 0; row < num_rows; row++, z += length) {
        const auto tops = tops_of<2>(z, length);
        top[row] = tops.all;
        busy[row] = -INF < top[row] && top[row] < INF;
        if (!busy[row]) continue;
        float* own = x + row * width;
        int64_t i = 0;
        for (; i + LANES <= length; i += LANES) store_some(own + i, (load(z + i) - top[row]) * scale, LANES);
        for (; i < length; i++) own[i] = (z[i] - top[row]) * scale;
        for (; i < width; i++) own[i] = -INF;
        // The bound spares two or three steps, each as long as the row.
        tau[row] = length < 256 ? -1 : first_bound(tops, scale, exponent);
    }
    for (bool any = true; any;) {
        any = false;
        for (int64_t row = 0; row < num_rows; row++)
            if (busy[row]) any |= busy[row] = step_up<K>(x + row * width, width, tau[row], exponent, tolerance);
    }
    for (int64_t row = 0; row < num_rows; row++, p += length, x += width) {
        if (!(-INF < top[row] && top[row] < INF)) {
            std::fill_n(p, length, top[row] == -INF ? 0.0f : std::numeric_limits<float>::quiet_NaN());
            continue;
        }
        const float mass = static_cast<float>(write_powers<K>(x, x, length, static_cast<float>(tau[row]), exponent));
        for (int64_t i = 0; i < length; i += LANES) store_some(p + i, load(x + i) / mass, length - i);
    }
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

// s (g - mean_s g) of one row; s is scratch for length + LANES entries.
template <int K> void write_product(const float* p, const float* g, float* out, int64_t length, float power_of_p, float* s) {
    double total = 0, weighted = 0;
    for (int64_t start = 0; start < length; start += BLOCK) {
        Floats part = {}, with_g = {};
        for (int64_t i = start; i < std::min(length, start + BLOCK); i += LANES) {
            const Floats v = support_weight<K>(load_some(p + i, length - i), power_of_p);
            std::memcpy(s + i, &v, sizeof v);
            part += v;
            // Off the support the upstream gradient may be anything, infinite too: it must not enter the mean.
            with_g += v == 0.0f ? Floats{} : v * load_some(g + i, length - i);
        }
        total += sum(part), weighted += sum(with_g);
    }
    const float mean = total == 0 ? 0.0f : static_cast<float>(weighted / total);
    for (int64_t i = 0; i < length; i += LANES) {
        const Floats v = load(s + i);
        store_some(out + i, v == 0.0f ? Floats{} : v * (load_some(g + i, length - i) - mean), length - i);
    }
}

// ---- A row of zeros with a few weights --------------------------------------------------------------------------

// Results larger than this leave the caches anyway: written past them they cost half the traffic, for no line is read
// before it is written, and nothing that is still needed is thrown out.
constexpr int64_t STREAMED = int64_t{1} << 24;

inline void stream(void* to, Ints v) {
#if defined(__AVX512F__)
    _mm512_stream_si512(static_cast<__m512i*>(to), (__m512i)v);
#elif defined(__AVX__)
    _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)v);
#elif defined(__SSE2__)
    _mm_stream_si128(static_cast<__m128i*>(to), (__m128i)v);
#else
    std::memcpy(to, &v, sizeof v);
#endif
}
inline void finish_streaming() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// Zeros, and value[k] at column[k]; columns ascend.
template <class T, class Column>
void write_row(T* out, int64_t length, const Column* column, const float* value, int64_t n, bool streamed) {
    constexpr int64_t LINE = 64 / sizeof(T);
    int64_t next = 0;
    const auto write_until = [&](int64_t end, T* from, int64_t begin) {
        for (; next < n && column[next] < end; next++) store_one(from + (column[next] - begin), value[next]);
    };
    int64_t i = streamed ? std::min<int64_t>(length, (-reinterpret_cast<uintptr_t>(out) & 63) / sizeof(T)) : length;
    std::memset(static_cast<void*>(out), 0, i * sizeof(T));
    write_until(i, out, 0);
    for (; i + LINE <= length; i += LINE) {
        T line[LINE] = {};
        if (__builtin_expect(next < n && column[next] < i + LINE, 0)) write_until(i + LINE, line, i);
        for (int64_t k = 0; k < LINE; k += sizeof(Ints) / sizeof(T)) stream(out + i + k, load_as<Ints>(line + k));
    }
    std::memset(static_cast<void*>(out + i), 0, (length - i) * sizeof(T));
    write_until(length, out, 0);
}

// ---- Rows in parallel -------------------------------------------------------------------------------------------

// OpenMP's call that runs a function on a team of threads, from the library that torch computes with; null if it has
// none. Its threads are there already, while new ones would wait for a core that torch's idle ones keep for a while.
typedef void (*Team)(void (*)(void*), void*, unsigned, unsigned);
Team team = nullptr;

// body(first, last) on runs of rows, by as many threads as the work keeps busy.
template <class Body> void by_rows(int64_t num_rows, int64_t length, int num_threads, Body body) {
    constexpr int64_t WORTH_A_THREAD = 1 << 17;  // entries; to start a thread takes about ten microseconds
    const int64_t busy = std::min<int64_t>({num_threads, num_rows, num_rows * length / WORTH_A_THREAD});
    if (busy <= 1) return body(0, num_rows);
    const int64_t run = std::max<int64_t>(1, num_rows / (8 * busy));
    std::atomic<int64_t> next{0};
    auto work = [&] {
        for (int64_t first; (first = next.fetch_add(run)) < num_rows;) body(first, std::min(num_rows, first + run));
    };
    if (team) return team([](void* given) { (*static_cast<decltype(work)*>(given))(); }, &work, num_threads, 0);
    std::vector<std::thread> others;
    for (int64_t i = 1; i < busy; i++) others.emplace_back(work);
    work();
    for (auto& other : others) other.join();
}

// The support of a row, until the caller has made room for it.
struct Support {
    std::vector<int32_t> column;
    std::vector<float> weight;
    bool wide = false;
};

// Keeps the positive ones of found.value, divided by `mass`, as the row's weights, unless they are more than `most`.
void keep_weights(const Found& found, double mass, int64_t most, Support& support) {
    const float share = static_cast<float>(mass);
    support.column.resize(found.count), support.weight.resize(found.count);
    int64_t n = 0;
    for (int64_t i = 0; i < found.count; i++) {
        support.column[n] = found.column[i];
        support.weight[n] = found.value[i] / share;
        n += found.value[i] > 0;
    }
    support.wide = n > most;
    support.column.resize(support.wide ? 0 : n), support.weight.resize(support.wide ? 0 : n);
}

// A row without a finite maximum has NaN in one place, so that nobody takes it for a row without weights.
const Support NO_WEIGHTS_BUT_NAN{{0}, {std::numeric_limits<float>::quiet_NaN()}};

template <class T>
void entmax_rows(const T* z, int64_t num_rows, int64_t length, double alpha, double exponent, int64_t most,
                 int num_threads, Support* supports, float* top, float* conjugate) {
    const float scale = static_cast<float>(alpha - 1);
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        Found& found = room_for(length);
        for (int64_t row = first; row < last; row++) {
            const Threshold solved = scan(z + row * length, length, scale, exponent, found);
            top[row] = solved.top;
            conjugate[row] = solved.top == -INF ? 0 : std::numeric_limits<float>::quiet_NaN();
            if (!(solved.top < INF)) supports[row] = NO_WEIGHTS_BUT_NAN;
            if (found.count == 0) continue;
            const double mass = write_powers(found.x.data(), found.value.data(), found.count, solved.tau, exponent);
            const double mean = dot(found.value.data(), found.x.data(), found.count) / mass;  // of x, weighted by p
            keep_weights(found, mass, most, supports[row]);
            // <p, x> / (alpha - 1) - Omega(p), where p^(alpha - 1) = (x - tau) mass^(1 - alpha). One entry has no x,
            // and must come out as nothing at all.
            const bool one = supports[row].column.size() == 1;
            const double share = one ? -1 / static_cast<double>(solved.tau) : std::pow(mass, 1 - alpha);
            conjugate[row] = static_cast<float>((alpha * mean + 1 - share * (mean - solved.tau)) / (alpha * (alpha - 1)));
        }
    });
}

template <class T>
void relu_rows(const T* z, int64_t num_rows, int64_t length, double alpha, double exponent, double tau, int64_t most,
               int num_threads, Support* supports, double* mass) {
    const double cut = tau / (alpha - 1);
    const float threshold = static_cast<float>(cut - 4 * EPS * std::fabs(cut)), scale = static_cast<float>(alpha - 1);
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        Found& found = room_for(length);
        for (int64_t row = first; row < last; row++) {
            found.count = 0;
            list_above(z + row * length, 0, length, threshold, found);
            const float top = tops_of<1>(found.value.data(), found.count).all;
            mass[row] = top < INF ? 0 : top;
            if (!(top < INF)) {
                supports[row] = NO_WEIGHTS_BUT_NAN;
                continue;
            }
            for (int64_t i = 0; i < found.count; i++) found.x[i] = found.value[i] * scale - static_cast<float>(tau);
            std::fill_n(found.x.begin() + found.count, LANES, -INF);
            write_powers(found.x.data(), found.value.data(), found.count, 0, exponent);
            mass[row] = dot(found.value.data(), found.x.data(), found.count);
            keep_weights(found, 1, most, supports[row]);
        }
    });
}

template <class T>
void map_rows(const T* z, T* p, int64_t num_rows, int64_t length, double alpha, double exponent, int num_threads) {
    const float scale = static_cast<float>(alpha - 1);
    const bool streamed = num_rows * length * static_cast<int64_t>(sizeof(T)) > STREAMED;
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        Found& found = room_for(length);
        for (int64_t row = first; row < last; row++) {
            T* out = p + row * length;
            const Threshold solved = scan(z + row * length, length, scale, exponent, found);
            if (!(solved.top < INF)) {
                for (int64_t i = 0; i < length; i++) store_one(out + i, std::numeric_limits<float>::quiet_NaN());
                continue;
            }
            const double mass = write_powers(found.x.data(), found.value.data(), found.count, solved.tau, exponent);
            for (int64_t i = 0; i < found.count; i++) found.value[i] /= static_cast<float>(mass);
            write_row(out, length, found.column.data(), found.value.data(), found.count, streamed);
        }
        finish_streaming();
    });
}

template <class T>
void write_rows(const int64_t* column, const float* value, int64_t width, const int64_t* target, const float* factor,
                T* out, int64_t num_rows, int64_t length, int num_threads) {
    const bool streamed = num_rows * length * static_cast<int64_t>(sizeof(T)) > STREAMED;
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        std::vector<float> scaled(width);
        for (int64_t row = first; row < last; row++) {
            const int64_t* columns = column + row * width;
            const float *values = value + row * width, by = factor ? factor[row] : 1;
            int64_t n = by == 0 ? 0 : width, gold = -1;
            while (n > 0 && values[n - 1] == 0) n--;
            for (int64_t i = 0; i < n; i++) {
                const bool hit = target && columns[i] == target[row];
                if (hit) gold = i;
                scaled[i] = (hit ? values[i] - 1 : values[i]) * by;
            }
            write_row(out + row * length, length, columns, scaled.data(), n, streamed);
            if (target && gold < 0 && by != 0) store_one(out + row * length + target[row], -by);
        }
        finish_streaming();
    });
}

}  // namespace

// ---- What Python calls. dtype: 0 float32, 1 bfloat16, 2 float16 ---------------------------------------------------

#define BY_DTYPE(call)                                       \
    if (dtype == 0) { using T = float; call; }               \
    else if (dtype == 1) { using T = BFloat16; call; }       \
    else { using T = Half; call; }

extern "C" {

// Where parallel work is done: GOMP_parallel of the OpenMP library in this process.
void hf_sparse_use_team(void* gomp_parallel) { team = reinterpret_cast<Team>(gomp_parallel); }

// The supports of rows, to be fetched by hf_sparse_take: `count` weights a row, or -1 if they are more than `most`,
// the row's maximum, and Omega*(z) - max z. A row with a NaN or an infinite score has one weight, NaN; a fully masked
// one has none.
void* hf_sparse_entmax_supports(const void* z, int dtype, int64_t num_rows, int64_t length, double alpha,
                                double exponent, int64_t most, int num_threads, int64_t* count, float* top,
                                float* conjugate) {
    auto* supports = new std::vector<Support>(num_rows);
    BY_DTYPE(entmax_rows(static_cast<const T*>(z), num_rows, length, alpha, exponent, most, num_threads,
                         supports->data(), top, conjugate))
    for (const Support& support : *supports) *count++ = support.wide ? -1 : support.column.size();
    return supports;
}

// The same of alpha-ReLU, whose threshold is given; `mass` is sum [(alpha - 1) z - tau]_+ ^ (P + 1).
void* hf_sparse_relu_supports(const void* z, int dtype, int64_t num_rows, int64_t length, double alpha,
                              double exponent, double tau, int64_t most, int num_threads, int64_t* count,
                              double* mass) {
    auto* supports = new std::vector<Support>(num_rows);
    BY_DTYPE(relu_rows(static_cast<const T*>(z), num_rows, length, alpha, exponent, tau, most, num_threads,
                       supports->data(), mass))
    for (const Support& support : *supports) *count++ = support.wide ? -1 : support.column.size();
    return supports;
}

// Columns, ascending, and weights, `width` a row: 0 in column 0 where a row has fewer. The supports end here.
void hf_sparse_take(void* supports, int64_t width, int64_t* column, float* weight) {
    auto* taken = static_cast<std::vector<Support>*>(supports);
    for (const Support& support : *taken) {
        std::fill(std::copy(support.column.begin(), support.column.end(), column), column + width, 0);
        std::fill(std::copy(support.weight.begin(), support.weight.end(), weight), weight + width, 0.0f);
        column += width, weight += width;
    }
    delete taken;
}

// Rows of zeros with value * factor at the columns, which ascend until only zeros are left, and factor less at the
// target. No factor is 1; no target, none. Rows with factor 0 stay zero whatever their values.
void hf_sparse_write(const int64_t* column, const float* value, int64_t width, const int64_t* target,
                     const float* factor, void* out, int dtype, int64_t num_rows, int64_t length, int num_threads) {
    BY_DTYPE(write_rows(column, value, width, target, factor, static_cast<T*>(out), num_rows, length, num_threads))
}

// The weights of long rows: zeros, and the support written over them.
void hf_sparse_map(const void* z, void* p, int dtype, int64_t num_rows, int64_t length, double alpha, double exponent,
                   int num_threads) {
    BY_DTYPE(map_rows(static_cast<const T*>(z), static_cast<T*>(p), num_rows, length, alpha, exponent, num_threads))
}

// The weights of rows that are solved whole, in cache.
void hf_sparse_weights(const float* z, float* p, int64_t num_rows, int64_t length, double alpha, double exponent,
                       int num_threads) {
    const auto write = exponent == 1   ? write_weights<1>
                       : exponent == 2 ? write_weights<2>
                       : exponent == 3 ? write_weights<3>
                       : exponent == 4 ? write_weights<4>
                                       : write_weights<0>;
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        const int64_t few = length <= BLOCK ? FEW : 1;
        std::vector<float> x(few * padded(length));
        for (int64_t row = first; row < last; row += few)
            write(z + row * length, p + row * length, std::min(few, last - row), length, static_cast<float>(alpha - 1),
                  exponent, x.data());
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

}  // extern "C"
