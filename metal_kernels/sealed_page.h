// How a page of few bits lies, and what its codes say; the format is omni_core's SealedLayout.
#pragma once
#include "running.h"

// What codes are multiplied as: halves, but where nothing is to be rounded.
template <typename T>
struct Coded {
    typedef float16_t Number;
};
template <>
struct Coded<float> {
    typedef float Number;
};

// Bytes and counts of a subblock of `D` channels. A code of 3 bits lies in two planes, of two bits
// and of one.
template <int D, int BITS>
struct Form {
    static constexpr constant int LOW = BITS == 3 ? 2 : BITS;  // bits of the low plane
    // Codes of a half word: pairs of a key's word, channels of a value's.
    static constexpr constant int PLACES = 16 / LOW;
    static constexpr constant int KEY_WORDS = D / (2 * PLACES);  // of a cell
    static constexpr constant int VALUE_WORDS = D / PLACES;      // of a pair of cells
    // Four lanes share a cell of keys, and eight rows of a matrix the channels of values.
    static constexpr constant int KEY_TURNS = (KEY_WORDS + 3) / 4;
    static constexpr constant int VALUE_TURNS = (VALUE_WORDS + 7) / 8;
    static constexpr constant int STEPS = KEY_TURNS * PLACES;     // matrices of a key's channels
    static constexpr constant int BLOCKS = VALUE_TURNS * PLACES;  // of a value's

    static constexpr constant int KEY_LOW = KEY_WORDS * SUBBLOCK;  // words of the low plane
    static constexpr constant int VALUE_LOW = VALUE_WORDS * SUBBLOCK / 2;
    static constexpr constant int KEY_BYTES =
        4 * (KEY_LOW + (BITS == 3 ? (D + 31) / 32 * SUBBLOCK : 0));
    static constexpr constant int VALUE_BYTES = 4 * D * BITS;
    static constexpr constant int EXPONENTS = 2 * ((D + 31) / 32);  // bytes
    // Where a page's parts begin, each of both subblocks.
    static constexpr constant int VALUES_AT = 2 * KEY_BYTES;
    static constexpr constant int RANGES_AT = VALUES_AT + 2 * VALUE_BYTES;
    static constexpr constant int KEY_SCALES_AT = RANGES_AT + 2 * D;
    static constexpr constant int VALUE_SCALES_AT = KEY_SCALES_AT + 4 * SUBBLOCK;
    static constexpr constant int EXPONENTS_AT = VALUE_SCALES_AT + 4 * SUBBLOCK;
    static constexpr constant int BYTES = (EXPONENTS_AT + 2 * EXPONENTS + 15) / 16 * 16;
};

// A codec's levels in a table, of keys and of values each.
constant constexpr int LEVELS = 16;

// Half of the largest code: uniform levels stand about 0.
constexpr float middle_of(int bits) { return float((1 << bits) - 1) * 0.5f; }

// One over the square root of a power of two, from 16 to 128.
constexpr float inverse_root(int block) {
    return block == 16   ? 0.25f
           : block == 32 ? 0.1767766953f
           : block == 64 ? 0.125f
                         : 0.1767766953f * 0.5f;
}

// Two numbers, as a matrix holds neighbours of a row.
template <typename M>
struct Two {
    uint words[sizeof(M) / 2];
};

template <typename M>
inline Two<M> two_of(float first, float second);
template <>
inline Two<float16_t> two_of<float16_t>(float first, float second) {
    const uint low = as_type<ushort>(float16_t(first));
    return Two<float16_t>{{low | uint(as_type<ushort>(float16_t(second))) << 16}};
}
template <>
inline Two<float> two_of<float>(float first, float second) {
    return Two<float>{{as_type<uint>(first), as_type<uint>(second)}};
}

// The codes of a place in both halves of a word; `high` holds the high plane's at the same places.
template <int BITS>
inline uint codes_at(uint word, uint high, int place) {
    if (BITS == 4) return (word >> (place * 4)) & 0x000f000fu;
    const uint low = (word >> (place * 2)) & 0x00030003u;
    return BITS == 3 ? low | ((high >> place) & 0x00010001u) << 2 : low;
}

// What two codes say, by a table or as uniform levels above code 0.
template <typename M, int BITS, bool TABLE>
struct Meaning {
    static Two<M> of(uint word, uint high, int place, const threadgroup float* levels) {
        const uint codes = codes_at<BITS>(word, high, place);
        if (TABLE) return two_of<M>(levels[codes & 0xffffu], levels[codes >> 16]);
        return two_of<M>(float(codes & 0xffffu), float(codes >> 16));
    }
};
// Halves need no shift: within a half's mantissa, codes over 1024 are taken down where they lie.
template <int BITS>
struct Meaning<float16_t, BITS, false> {
    static Two<float16_t> of(uint word, uint high, int place, const threadgroup float*) {
        constexpr int low = BITS == 3 ? 2 : BITS;
        constexpr int near = 8 / low;  // places of a byte
        const int at = place % near * low;
        const uint mask = (BITS == 4 ? 0x000f000fu : 0x00030003u) << at;
        uint codes = over_1024(place < near ? word : word >> 8, mask);
        if (BITS == 3) {
            const int to = at + 2;
            codes |= (to < place ? high >> (place - to) : high << (to - place)) &
                     (0x00010001u << to);
        }
        // A half's 1, and 1024, by so many powers of two less.
        const uint less = uint(at) * 0x04000400u;
        return Two<float16_t>{
            {two_halves(codes, 0x3c003c00u - less, 0xe400e400u - less)}};
    }
};

// `a * b + c` of both.
inline Two<float16_t> times_plus(Two<float16_t> a, Two<float16_t> b, Two<float16_t> c) {
    return Two<float16_t>{{two_halves(a.words[0], b.words[0], c.words[0])}};
}
inline Two<float> times_plus(Two<float> a, Two<float> b, Two<float> c) {
    Two<float> sums;
    UNROLL for (int i = 0; i < 2; ++i) {
        const float product = as_type<float>(a.words[i]) * as_type<float>(b.words[i]);
        sums.words[i] = as_type<uint>(product + as_type<float>(c.words[i]));
    }
    return sums;
}

// A number of 4 bits, by half its block's scale.
inline float mxfp4(uint code, float scale) {
    // Twice the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6.
    const float number = float((0xc8643210u >> ((code & 7u) * 4u)) & 15u) * scale;
    return code & 8u ? -number : number;
}

// Two channels' spans, and what code 0 says of them, or their offsets where levels are looked up.
template <typename M>
struct Ranges {
    Two<M> spans;
    Two<M> offsets;
};

// In threadgroup memory: pairs of words, one for two halves of each, two for two floats.
template <typename M>
constexpr int range_words(int head_dim) {
    return head_dim * int(sizeof(M)) / 4;
}
inline void put_range(Ranges<float16_t> two, int pair, threadgroup uint2* near) {
    near[pair] = uint2{two.spans.words[0], two.offsets.words[0]};
}
inline void put_range(Ranges<float> two, int pair, threadgroup uint2* near) {
    near[pair * 2] = uint2{two.spans.words[0], two.spans.words[1]};
    near[pair * 2 + 1] = uint2{two.offsets.words[0], two.offsets.words[1]};
}
template <typename M>
inline Ranges<M> range_at(int pair, const threadgroup uint2* near);
template <>
inline Ranges<float16_t> range_at<float16_t>(int pair, const threadgroup uint2* near) {
    const uint2 both = near[pair];
    return Ranges<float16_t>{{{both.x}}, {{both.y}}};
}
template <>
inline Ranges<float> range_at<float>(int pair, const threadgroup uint2* near) {
    const uint2 spans = near[pair * 2];
    const uint2 offsets = near[pair * 2 + 1];
    return Ranges<float>{{{spans.x, spans.y}}, {{offsets.x, offsets.y}}};
}

// Puts four channels' ranges there.
template <typename M, int BITS, bool TABLE>
inline void put_ranges(uint ranges, uint exponents, int four, threadgroup uint2* near) {
    const float offset_scale = as_type<float>((exponents & 255u) << 23) * 0.5f;
    const float span_scale = as_type<float>((exponents >> 8) << 23) * 0.5f;
    UNROLL for (int pair = 0; pair < 2; ++pair) {
        float spans[2];
        float offsets[2];
        UNROLL for (int i = 0; i < 2; ++i) {
            const uint both = ranges >> (pair * 16 + i * 8);
            spans[i] = mxfp4(both >> 4, span_scale);
            offsets[i] = mxfp4(both, offset_scale);
            if (!TABLE) offsets[i] -= spans[i] * middle_of(BITS);
        }
        const Ranges<M> two = {
            two_of<M>(spans[0], spans[1]), two_of<M>(offsets[0], offsets[1])};
        put_range(two, four * 2 + pair, near);
    }
}

// What a subblock's page and half are, and where its head's bytes begin.
struct Sealed {
    const device uchar* page;
    int which;   // half of the page
    uint alive;  // a bit for each cell
    Offset known;  // its first cell, counted from the first page of few bits
};

template <int D, int BITS>
inline Sealed sealed_at(
    const device uchar* head, Row row, bool later, uint first, int kv_heads) {
    const uint subblock = row.subblock(later) - first * 2u;
    return Sealed{
        head + Offset(subblock >> 1) * kv_heads * Form<D, BITS>::BYTES, int(subblock & 1u),
        row.alive(later), Offset(subblock) * SUBBLOCK};
}

// Where a key head's pages of one stream begin.
template <int D, int BITS>
inline const device uchar* sealed_head(const device uchar* sealed, Program of) {
    const Offset before = Offset(of.stream) * of.sizes.pages * of.sizes.kv_heads + of.head;
    return sealed + before * Form<D, BITS>::BYTES;
}

// The ranges of four channels, and the exponent bytes of their block: the offsets', the spans'.
template <int D, int BITS>
inline uint2 ranges_at(Sealed from, uint four) {
    typedef Form<D, BITS> form;
    const device uchar* ranges = from.page + form::RANGES_AT + from.which * D;
    const device uchar* exponents =
        from.page + form::EXPONENTS_AT + from.which * form::EXPONENTS;
    return uint2{
        reinterpret_cast<const device uint*>(ranges)[four],
        uint(reinterpret_cast<const device ushort*>(exponents)[four / 8u])};
}
