// Cells of 16 bits become codes: the bytes of a page, as omni_core's definition writes them.
//
// A threadgroup is one simdgroup: it has half a page of a key head, a lane a cell, keys first and
// then values in the same memory. A half in which nothing is sealed keeps its bytes.
#pragma once
#include "seal_keys.h"

// Words of keys' codes of one plane; a lane has a cell's.
template <int D, int PLANE>
inline void pack_keys(const threadgroup float* x, int low, device uint* words, uint lane) {
    constexpr int each = 32 / PLANE;
    constexpr uint mask = (1u << PLANE) - 1u;
    ROLLED for (int i = 0; i < (D + each - 1) / each; ++i) {
        uint word = 0u;
        ROLLED for (int c = 0; c < each; ++c) {
            const int channel = i * each + c;
            if (D % each != 0 && channel >= D) break;
            const uint code = (uint(x[at_channel(channel, lane)]) >> low) & mask;
            word |= code << (c / 2 * PLANE + c % 2 * 16);
        }
        words[i * SUBBLOCK + int(lane)] = word;
    }
}

// Words of values' codes of one plane; a lane has half of a pair of cells'.
template <int D, int PLANE>
inline void pack_values(const threadgroup float* x, int low, device uint* words, uint lane) {
    constexpr int each = 16 / PLANE;
    constexpr uint mask = (1u << PLANE) - 1u;
    ROLLED for (int i = 0; i < D / each; ++i) {
        uint own = 0u;
        ROLLED for (int c = 0; c < each; ++c) {
            const uint code = (uint(x[at_channel(i * each + c, lane)]) >> low) & mask;
            own |= code << (c * PLANE);
        }
        const uint other = simd_shuffle_xor(own, ushort(4));
        const int pair = int(lane / 8u * 4u + lane % 4u);
        if ((lane & 4u) == 0u) words[i * (SUBBLOCK / 2) + pair] = own | other << 16;
    }
}

// Values rotated, term after term, then as codes; gives their scale.
template <typename T, int D, int BITS>
inline float code_values(
    Bench<D> bench,
    const device T* value,
    bool filled,
    const device float* rotation,
    const device float* bounds,
    float widened,
    uint lane,
    thread bool& sound) {
    constexpr int together = 8;
    ROLLED for (int first = 0; first < D; first += together) {
        float sums[together];
        UNROLL for (int k = 0; k < together; ++k) sums[k] = 0.0f;
        ROLLED for (int e = 0; e < D; ++e) {
            const float given = filled ? float(value[e]) : 0.0f;
            const float number = is_finite(given) ? given : 0.0f;
            sound = sound && is_finite(given);
            UNROLL for (int k = 0; k < together; ++k) {
                sums[k] += rounded_product(number, rotation[(first + k) * D + e]);
            }
        }
        UNROLL for (int k = 0; k < together; ++k) bench.x[at_channel(first + k, lane)] = sums[k];
    }
    const float norm =
        precise::sqrt(folded_squares<D, false>(bench.x, bench.mean, bench.spare, lane));
    ROLLED for (int d = 0; d < D; ++d) {
        const float x = bench.x[at_channel(d, lane)];
        const float unit = norm > 0.0f ? rounded_product(precise::divide(x, norm), widened) : 0.0f;
        float code = 0.0f;
        UNROLL for (int i = 0; i < (1 << BITS) - 1; ++i) code += unit >= bounds[i] ? 1.0f : 0.0f;
        bench.x[at_channel(d, lane)] = code - middle_of(BITS);
    }
    const float reached =
        precise::sqrt(folded_squares<D, false>(bench.x, bench.mean, bench.spare, lane));
    ROLLED for (int d = 0; d < D; ++d) bench.x[at_channel(d, lane)] += middle_of(BITS);
    return precise::divide(norm, reached);
}

// Bytes from one page to another, as far as they go.
inline void copy_bytes(
    const device uchar* from, device uchar* to, int begin, int count, uint lane) {
    for (int i = begin + int(lane); i < begin + count; i += 32) to[i] = from[i];
}

// The bytes of half a page that stay as they are.
template <int D, int BITS>
inline void keep_half(const device uchar* from, device uchar* to, int which, uint lane) {
    typedef Form<D, BITS> form;
    copy_bytes(from, to, which * form::KEY_BYTES, form::KEY_BYTES, lane);
    copy_bytes(from, to, form::VALUES_AT + which * form::VALUE_BYTES, form::VALUE_BYTES, lane);
    copy_bytes(from, to, form::RANGES_AT + which * D, D, lane);
    copy_bytes(from, to, form::KEY_SCALES_AT + which * 2 * SUBBLOCK, 2 * SUBBLOCK, lane);
    copy_bytes(from, to, form::VALUE_SCALES_AT + which * 2 * SUBBLOCK, 2 * SUBBLOCK, lane);
    copy_bytes(from, to, form::EXPONENTS_AT + which * form::EXPONENTS, form::EXPONENTS, lane);
}

// Sizes of a launch, in the order in which the host packs them.
struct SealSizes {
    int pages;  // of 16 bits
    int kv_heads;
    int sealed;  // pages that are written
};

// A layer `[streams, pages, kv_heads, PAGE, D]`, the pages that are written as they were `[streams,
// sealed, kv_heads, BYTES]`, cells `[sealed, 2, SUBBLOCK]` with -1 where there is none, `kinds`
// `[sealed, 2]`. Gives the pages, and 1 for a half that holds what is no number, 2 for one with too
// large a value, else 0. The grid: halves of pages, key heads of all streams.
template <typename T, int D, int BITS, bool FED>
inline void sealed_store(
    const device T* keys,
    const device T* values,
    const device uchar* before,
    const device int* cells,
    const device int* kinds,
    const device float* means,
    const device float* rotations,
    const device float* feedback,
    const device float* bounds,
    SealSizes sizes,
    About about,
    device uchar* made,
    device int* faults,
    device float* kept,
    Bench<D> bench,
    uint3 group,
    uint3 groups,
    uint lane) {
    typedef Form<D, BITS> form;
    const int page = int(group.x) / 2;
    const int which = int(group.x) % 2;
    const int head = int(group.y) % sizes.kv_heads;
    const int stream = int(group.y) / sizes.kv_heads;
    const Offset own = (Offset(stream) * sizes.sealed + page) * sizes.kv_heads + head;
    const Offset index = Offset(group.y) * groups.x + group.x;
    before += own * form::BYTES;
    made += own * form::BYTES;
    constexpr int end = form::EXPONENTS_AT + 2 * form::EXPONENTS;
    if (which == 0) copy_bytes(before, made, end, form::BYTES - end, lane);
    const device int* half_page = cells + int(group.x) * SUBBLOCK;
    if (half_page[0] < 0) {
        keep_half<D, BITS>(before, made, which, lane);
        if (lane == 0u) faults[index] = 0;
        return;
    }
    const int cell = half_page[lane];
    const bool filled = cell >= 0;
    const Offset at =
        cell_offset(stream, sizes.pages, filled ? cell : 0, sizes.kv_heads, head, D);
    bool sound = true;
    const float16_t norm =
        unit_keys<T, D>(bench, keys + at, filled, means + head * D, lane, sound);
    const bool live = float(norm) > 0.0f;
    const float weight = fit_weight<D>(bench, live, lane);
    fit_lines<D, BITS>(bench, live, weight, about, lane);
    fit_exponents<D, BITS>(bench, lane);
    fit_ranges<D, BITS>(bench, weight, lane);
    if (FED) widen<D>(bench, about.wider, lane);
    code_keys<D, BITS, FED>(
        bench, feedback + Offset(head) * D * D, kept + index * D * SUBBLOCK, lane);
    device uint* words = reinterpret_cast<device uint*>(made + which * form::KEY_BYTES);
    pack_keys<D, form::LOW>(bench.x, 0, words, lane);
    if (BITS == 3) pack_keys<D, 1>(bench.x, 2, words + form::KEY_LOW, lane);
    ROLLED for (int d = int(lane); d < D; d += 32) {
        made[form::RANGES_AT + which * D + d] = uchar(bench.ranges[d]);
    }
    if (int(lane) < form::EXPONENTS) {
        made[form::EXPONENTS_AT + which * form::EXPONENTS + int(lane)] =
            uchar(bench.exponents[lane]);
    }
    const int scales = which * 2 * SUBBLOCK;
    reinterpret_cast<device ushort*>(made + form::KEY_SCALES_AT + scales)[lane] =
        as_type<ushort>(norm);
    const Offset turn = Offset(kinds[group.x]) * sizes.kv_heads + head;
    const float scale = code_values<T, D, BITS>(
        bench, values + at, filled, rotations + turn * D * D, bounds, about.widened, lane, sound);
    words = reinterpret_cast<device uint*>(
        made + form::VALUES_AT + which * form::VALUE_BYTES);
    pack_values<D, form::LOW>(bench.x, 0, words, lane);
    if (BITS == 3) pack_values<D, 1>(bench.x, 2, words + form::VALUE_LOW, lane);
    reinterpret_cast<device ushort*>(made + form::VALUE_SCALES_AT + scales)[lane] =
        as_type<ushort>(float16_t(min(scale, LARGEST_HALF)));
    const int fault = !sound ? 1 : scale > LARGEST_HALF ? 2 : 0;
    const int worst = simd_max(fault == 1 ? 3 : fault);
    if (lane == 0u) faults[index] = worst == 3 ? 1 : worst;
}
