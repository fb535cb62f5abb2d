// One softmax from those of the programs that shared a listing, by log-sum-exp.
//
// A threadgroup takes a slice of columns of a line, a query and a head; a simdgroup's lanes take
// four columns each of several programs at once.
#pragma once
#include "attend.h"

constant constexpr int SLICE = 32;            // columns
constant constexpr int ACROSS = SLICE / 4;    // lanes of a program
constant constexpr int BESIDE = 32 / ACROSS;  // programs that a simdgroup's lanes take together
constant constexpr int AT_ONCE = 4;           // such turns that a lane waits for together
constant constexpr int KEPT = 6;              // floats of a `Merged`

// What some programs found of four columns, weighed by their peak.
struct Merged {
    float peak, total;
    float mixed[4];
};

template <int N>
inline Merged joined(const thread Merged* parts) {
    Merged all = {UNSEEN, 0.0f, {0.0f, 0.0f, 0.0f, 0.0f}};
    UNROLL for (int i = 0; i < N; ++i) all.peak = max(all.peak, parts[i].peak);
    UNROLL for (int i = 0; i < N; ++i) {
        const float weight = fast::exp2(parts[i].peak - all.peak);
        all.total += parts[i].total * weight;
        UNROLL for (int c = 0; c < 4; ++c) all.mixed[c] += parts[i].mixed[c] * weight;
    }
    return all;
}

// What the lanes of the same columns know together.
inline Merged joined_lanes(thread Merged& one) {
    Merged all = one;
    UNROLL for (int step = ACROSS; step < 32; step *= 2) {
        all.peak = max(all.peak, simd_shuffle_xor(all.peak, ushort(step)));
    }
    const float weight = fast::exp2(one.peak - all.peak);
    all.total *= weight;
    UNROLL for (int c = 0; c < 4; ++c) all.mixed[c] *= weight;
    UNROLL for (int step = ACROSS; step < 32; step *= 2) {
        all.total += simd_shuffle_xor(all.total, ushort(step));
        UNROLL for (int c = 0; c < 4; ++c) {
            all.mixed[c] += simd_shuffle_xor(all.mixed[c], ushort(step));
        }
    }
    return all;
}

// `found` is `[programs, lines, D]` and need not be written where `found_sums`, `[programs, lines]`
// to base 2, is -inf. Gives `[lines, D]`, exactly 0 where no program saw anything, and `[lines]`.
// The grid: lines, slices.
template <typename O, int D, int SIMDS>
inline void merge(
    const device float* found,
    const device float* found_sums,
    int programs,
    Offset lines,
    device O* out,
    device float* sums,
    threadgroup float* pool,  // [SIMDS, ACROSS, KEPT]
    uint3 group,
    uint simdgroup,
    uint lane) {
    const Offset line = group.x;
    const int column = int(group.y) * SLICE + int(lane) % ACROSS * 4;
    const bool inside = D % SLICE == 0 || column < D;
    Merged parts[AT_ONCE + 1] = {{UNSEEN, 0.0f, {0.0f, 0.0f, 0.0f, 0.0f}}};
    ROLLED for (int first = 0; first < programs; first += SIMDS * BESIDE * AT_ONCE) {
        const int mine = first + int(simdgroup) * BESIDE + int(lane) / ACROSS;
        UNROLL for (int i = 1; i <= AT_ONCE; ++i) {
            const int program = min(mine + (i - 1) * SIMDS * BESIDE, programs - 1);
            const Offset place = program * lines + line;
            load4(found + place * D + (inside ? column : 0), parts[i].mixed);
            parts[i].peak = found_sums[place];
        }
        UNROLL for (int i = 1; i <= AT_ONCE; ++i) {
            const bool there = mine + (i - 1) * SIMDS * BESIDE < programs;
            const bool seen = there && !(parts[i].peak <= UNSEEN);
            parts[i].peak = seen ? parts[i].peak : UNSEEN;
            parts[i].total = seen ? 1.0f : 0.0f;
            // What nobody wrote may be anything.
            UNROLL for (int c = 0; c < 4; ++c) {
                parts[i].mixed[c] = seen ? parts[i].mixed[c] : 0.0f;
            }
        }
        parts[0] = joined<AT_ONCE + 1>(parts);
    }
    const Merged own = joined_lanes(parts[0]);
    if (int(lane) < ACROSS) {
        threadgroup float* kept = pool + (int(simdgroup) * ACROSS + int(lane)) * KEPT;
        kept[0] = own.peak;
        kept[1] = own.total;
        UNROLL for (int c = 0; c < 4; ++c) kept[2 + c] = own.mixed[c];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup != 0 || int(lane) >= ACROSS) return;
    Merged all[SIMDS];
    UNROLL for (int s = 0; s < SIMDS; ++s) {
        const threadgroup float* kept = pool + (s * ACROSS + int(lane)) * KEPT;
        all[s].peak = kept[0];
        all[s].total = kept[1];
        UNROLL for (int c = 0; c < 4; ++c) all[s].mixed[c] = kept[2 + c];
    }
    const Merged whole = joined<SIMDS>(all);
    const bool seen = sees(whole.total);
    if (inside) {
        const float share = seen ? 1.0f / whole.total : 0.0f;
        UNROLL for (int c = 0; c < 4; ++c) out[line * D + column + c] = O(whole.mixed[c] * share);
    }
    if (column == 0) sums[line] = seen ? whole.peak + log2(whole.total) : no_sum();
}
