// One softmax from those of the programs that shared a listing, by log-sum-exp.
//
// A threadgroup takes a line, a query and a head; its simdgroups take the programs in turn, and a
// lane takes four columns.
#pragma once
#include "attend.h"

// `found` is `[programs, lines, D]` and need not be written where `found_sums`, `[programs, lines]`
// to base 2, is -inf. Gives `[lines, D]`, exactly 0 where no program saw anything, and `[lines]`.
// The grid: lines.
template <typename O, int D, int SIMDS>
inline void merge(
    const device float* found,
    const device float* found_sums,
    int programs,
    Offset lines,
    device O* out,
    device float* sums,
    threadgroup float* pool,  // [SIMDS, D]
    Offset line,
    uint simdgroup,
    uint lane) {
    float peak = UNSEEN;
    for (int program = int(lane); program < programs; program += 32) {
        peak = max(peak, found_sums[program * lines + line]);
    }
    peak = simd_max(peak);
    const int column = int(lane) * 4;
    float mixed[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int program = int(simdgroup); program < programs; program += SIMDS) {
        const float sum = found_sums[program * lines + line];
        if (sum <= UNSEEN || column >= D) continue;
        const float weight = fast::exp2(sum - peak);
        float part[4];
        load4(found + (program * lines + line) * D + column, part);
        UNROLL for (int c = 0; c < 4; ++c) mixed[c] += part[c] * weight;
    }
    float total = 0.0f;
    for (int program = int(lane); program < programs; program += 32) {
        const float sum = found_sums[program * lines + line];
        if (!(sum <= UNSEEN)) total += fast::exp2(sum - peak);
    }
    total = simd_sum(total);
    if (column < D) {
        UNROLL for (int c = 0; c < 4; ++c) pool[int(simdgroup) * D + column + c] = mixed[c];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const bool seen = sees(total);
    const float share = seen ? 1.0f / total : 0.0f;
    for (int c = int(simdgroup * 32u + lane); c < D; c += SIMDS * 32) {
        float sum = 0.0f;
        for (int s = 0; s < SIMDS; ++s) sum += pool[s * D + c];
        out[line * D + c] = O(sum * share);
    }
    if (simdgroup == 0 && lane == 0) sums[line] = seen ? peak + log2(total) : no_sum();
}
