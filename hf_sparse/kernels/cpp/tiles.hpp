// Products of bfloat16, summed up in float32, by the tiles of a CPU that has them (AMX).
//
// A tile is 16 rows of 64 bytes. One instruction multiplies a tile of 16 rows and 32 columns, in bfloat16, with 32 rows
// and 16 columns, of which two rows each lie in one row of the tile as pairs. Subnormal numbers count as zero.

#pragma once

#include "lanes.hpp"

#if defined(__x86_64__) && defined(__linux__) && defined(__AVX512F__) && \
    (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define HF_SPARSE_TILES 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define HF_SPARSE_TILES 0
#endif

namespace {

// Of a tile of the right factor, and of the result.
constexpr int64_t TILE_COLUMNS = 32, DEPTH = 32;

// Rows of bfloat16, `step` numbers apart.
struct BRows { const uint16_t* at; int64_t step; };
// (depth / 2, TILE_COLUMNS) pairs of bfloat16, each of two rows next to each other; rows of pairs lie `step` apart.
struct BPairs { const uint32_t* at; int64_t step; };

#if HF_SPARSE_TILES

// Whether this CPU has tiles and the system lets this process use them, which has to be asked for.
inline bool ask_for_tiles() {
    constexpr unsigned BFLOAT16_AND_TILES = 1u << 22 | 1u << 24;  // of edx, leaf 7
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;              // ARCH_REQ_XCOMP_PERM
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & BFLOAT16_AND_TILES) != BFLOAT16_AND_TILES) return false;
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
inline bool has_tiles() {
    static const bool found = ask_for_tiles();
    return found;
}

#define WITH_TILES __attribute__((target("amx-tile,amx-bf16")))

// What a thread's tiles are like.
struct alignas(64) TileShapes {
    uint8_t palette = 0, first_row = 0, unused[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

// While it lives, this thread has eight whole tiles; then those that it had before.
class TilesInUse {
    bool used;
    TileShapes before;
    WITH_TILES void start() {
        TileShapes whole;
        whole.palette = 1;
        std::fill_n(whole.bytes, 8, 64), std::fill_n(whole.rows, 8, 16);
        _tile_storeconfig(&before);
        asm volatile("" ::: "memory");
        _tile_loadconfig(&whole);
    }
    WITH_TILES void stop() { _tile_loadconfig(&before); }

public:
    explicit TilesInUse(bool wanted) : used(wanted) { if (used) start(); }
    ~TilesInUse() { if (used) stop(); }
    TilesInUse(const TilesInUse&) = delete;
    TilesInUse& operator=(const TilesInUse&) = delete;
};

// c (32, TILE_COLUMNS) = a b, or c += a b; depth is a multiple of DEPTH. Tiles 0 to 3 hold c, 4 and 5 a, 6 and 7 b.
WITH_TILES inline void tile_product(BRows a, BPairs b, int64_t depth, float* c, bool add) {
    constexpr int64_t ROW = TILE_COLUMNS * sizeof(float);
    float* const lower = c + 16 * TILE_COLUMNS;
    asm volatile("" ::: "memory");  // what was stored before is in memory
    if (add) {
        _tile_loadd(0, c, ROW);
        _tile_loadd(1, c + 16, ROW);
        _tile_loadd(2, lower, ROW);
        _tile_loadd(3, lower + 16, ROW);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < depth; k += DEPTH) {
        const uint32_t* const pairs = b.at + k / 2 * b.step;
        _tile_loadd(4, a.at + k, a.step * 2);
        _tile_loadd(5, a.at + 16 * a.step + k, a.step * 2);
        _tile_loadd(6, pairs, b.step * 4);
        _tile_loadd(7, pairs + 16, b.step * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, ROW);
    _tile_stored(1, c + 16, ROW);
    _tile_stored(2, lower, ROW);
    _tile_stored(3, lower + 16, ROW);
    asm volatile("" ::: "memory");
}

#else

inline bool has_tiles() { return false; }
struct TilesInUse { explicit TilesInUse(bool) {} ~TilesInUse() {} };
inline void tile_product(BRows, BPairs, int64_t, float*, bool) {}

#endif

}  // namespace
