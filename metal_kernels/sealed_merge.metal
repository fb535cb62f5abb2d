// One softmax from what programs found of pages of 16 bits and of few bits, by log-sum-exp.
//
// A threadgroup takes some lines of a key head and a slice of columns, a column a lane. What programs
// of a modality found is added up first, still rotated, and turned back once. Few lines are shared by
// simdgroups, each of which takes every so manieth program and a part of a rotation's rows; many
// lines read the same rows side by side.
#pragma once
#include "attend.h"

constant constexpr int AT_ONCE = 4;  // programs that a lane waits for together

// Sizes of a merge, in the order in which the host packs them.
struct MergeSizes {
    int count;
    int kv_heads;
    int group;
    int plain;   // programs of pages of 16 bits
    int sealed;  // of few bits
    int modalities;
};

// What programs found of a line: each one's weight against the largest sum.
struct Found {
    const device float* sums;
    int programs;
    Offset lines;  // from a program to the next
    Offset line;

    float peak(uint lane) const {
        float top = UNSEEN;
        for (int p = int(lane); p < programs; p += 32) top = larger(top, sums[p * lines + line]);
        return top;
    }
    float total(float top, uint lane) const {
        float sum = 0.0f;
        for (int p = int(lane); p < programs; p += 32) sum += weight(p, top);
        return sum;
    }
    // 0 of what saw nothing, whatever it left. A NaN has a part.
    float weight(int program, float top) const {
        const float own = sums[program * lines + line];
        return own <= UNSEEN ? 0.0f : fast::exp2(own - top);
    }
    static float larger(float top, float own) { return own > top ? own : top; }
};

// Adds up what a simdgroup's share of the programs found in `COLUMNS` columns of the lane, 32 apart;
// of one modality's, where there are modalities.
template <typename F, int D, int COLUMNS, int SHARE>
inline void add_found(
    thread Found& of,
    const device F* found,
    const device int* kinds,
    int kind,
    float top,
    int part,
    int column,
    thread float* sums) {
    ROLLED for (int first = part; first < of.programs; first += SHARE * AT_ONCE) {
        float weights[AT_ONCE];
        float parts[AT_ONCE][COLUMNS];
        UNROLL for (int i = 0; i < AT_ONCE; ++i) {
            const int p = first + i * SHARE;
            const bool there = p < of.programs && (kind < 0 || kinds[p] == kind);
            weights[i] = there ? of.weight(p, top) : 0.0f;
        }
        UNROLL for (int i = 0; i < AT_ONCE; ++i) {
            const device F* from = found + ((first + i * SHARE) * of.lines + of.line) * D;
            UNROLL for (int c = 0; c < COLUMNS; ++c) {
                const int d = column + c * 32;
                // What nobody wrote may be anything.
                const bool seen = weights[i] != 0.0f && d < D;
                parts[i][c] = seen ? float(from[d]) : 0.0f;
            }
        }
        UNROLL for (int i = 0; i < AT_ONCE; ++i) {
            UNROLL for (int c = 0; c < COLUMNS; ++c) sums[c] += weights[i] * parts[i][c];
        }
    }
}

// `found` is `[plain, streams, T, q_heads, D]`, `sealed_found` likewise, in the rotation of the
// program's modality, `rotations` are `[modalities, kv_heads, D, D]`. What a program did not see is
// not read. Gives `[streams, T, q_heads, D]` and the log-sum-exps to base 2. The grid: tiles of
// lines, key heads of all streams, slices.
template <typename F, typename O, int D, int TILE, int SHARE>
inline void sealed_merge(
    const device F* found,
    const device float* found_sums,
    const device float* sealed_found,
    const device float* sealed_sums,
    const device int* kinds,
    const device float* rotations,
    MergeSizes sizes,
    device O* out,
    device float* sums,
    threadgroup float* near,    // [TILE, SHARE, D]
    threadgroup float* turned,  // [TILE, D]
    threadgroup float* joined,  // [TILE, SHARE, 32]
    uint3 group,
    uint3 groups,
    uint simdgroup,
    uint lane) {
    constexpr int columns = (D + 31) / 32;
    constexpr int rows = (D + SHARE - 1) / SHARE;
    const int tile = int(simdgroup) / SHARE;
    const int part = int(simdgroup) % SHARE;
    const int head = int(group.y) % sizes.kv_heads;
    const int stream = int(group.y) / sizes.kv_heads;
    const int mine = int(group.x) * TILE + tile;
    const int own = min(mine, sizes.count * sizes.group - 1);
    const int token = own / sizes.group;
    const Offset each = Offset(sizes.count) * sizes.kv_heads * sizes.group;
    const Offset line = stream * each + (token * sizes.kv_heads + head) * sizes.group +
                        own - token * sizes.group;
    const Offset lines = each * (int(groups.y) / sizes.kv_heads);
    const int column = int(group.z) * 32 + int(lane);
    const bool inside = D % 32 == 0 || column < D;
    Found plain = {found_sums, sizes.plain, lines, line};
    Found sealed = {sealed_sums, sizes.sealed, lines, line};
    const float top = simd_max(max(plain.peak(lane), sealed.peak(lane)));
    const float total = simd_sum(plain.total(top, lane) + sealed.total(top, lane));
    float mixed[1] = {0.0f};
    add_found<F, D, 1, SHARE>(plain, found, kinds, -1, top, part, column, mixed);
    ROLLED for (int kind = 0; kind < sizes.modalities; ++kind) {
        // The same for all lines.
        int listed = 0;
        for (int p = int(lane); p < sizes.sealed; p += 32) listed |= kinds[p] == kind ? 1 : 0;
        if (simd_max(listed) == 0) continue;
        float parts[columns];
        UNROLL for (int c = 0; c < columns; ++c) parts[c] = 0.0f;
        add_found<float, D, columns, SHARE>(
            sealed, sealed_found, kinds, kind, top, part, int(lane), parts);
        UNROLL for (int c = 0; c < columns; ++c) {
            const int d = c * 32 + int(lane);
            if (D % 32 == 0 || d < D) near[int(simdgroup) * D + d] = parts[c];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        ROLLED for (int d = part * 32 + int(lane); d < D; d += SHARE * 32) {
            float sum = 0.0f;
            UNROLL for (int s = 0; s < SHARE; ++s) sum += near[(tile * SHARE + s) * D + d];
            turned[tile * D + d] = sum;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const device float* rotation =
            rotations + Offset(kind * sizes.kv_heads + head) * D * D + (inside ? column : 0);
        const threadgroup float* own_sums = turned + tile * D;
#pragma unroll 16
        for (int i = 0; i < rows; ++i) {
            const int d = part * rows + i;
            if (D % SHARE == 0 || d < D) mixed[0] += own_sums[d] * rotation[d * D];
        }
    }
    joined[int(simdgroup) * 32 + int(lane)] = mixed[0];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (part != 0 || mine != own) return;
    float whole = 0.0f;
    UNROLL for (int s = 0; s < SHARE; ++s) {
        whole += joined[(tile * SHARE + s) * 32 + int(lane)];
    }
    const bool seen = sees(total);
    if (inside) out[line * D + column] = O(seen ? whole / total : 0.0f);
    if (column == 0) sums[line] = seen ? top + log2(total) : no_sum();
}
