// What the attention kernels share: how a row of a listing is read, and how numbers that must not
// meet a NaN are made. Scores are to base 2, and simdgroups have 32 lanes.
#pragma once
#include "cells.h"

// Before loops over what must lie in registers, and before loops whose turns side by side would only
// be more text: what does not fit the instruction cache is read again each time.
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")

// The peak of a query that has seen nothing yet, and the score of a cell that it does not see. Both
// are finite, and so is each difference of the two: a cell that is not seen weighs exactly 0.
constant constexpr float UNSEEN = -1e38f;
constant constexpr float HIDDEN = -3e38f;
constant constexpr float LOG2_E = 1.4426950408889634f;

// Whether what was summed is of any cell. A NaN is of one: it is not to vanish.
inline bool sees(float total) { return !(total <= 0.0f); }

// The log-sum-exp of a query that has seen nothing: -inf, whatever the compiler thinks of it.
inline float no_sum() { return as_type<float>(0xff800000u); }

// Sizes of a launch, in the order in which the host packs them.
struct Sizes {
    int count;     // new tokens
    int kv_heads;  // key heads
    int group;     // query heads a key head
    int listed;    // segments
    int pages;     // of the pool
    bool biased;   // whether cells carry a bias

    int lines() const { return count * group; }
};

inline Sizes sizes_of(const constant int* numbers) {
    return Sizes{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5] != 0};
}

// Which rows a program reads, and by which table its queries are turned for them.
struct Segment {
    int begin;  // first row
    int whole;  // first row that a query may see in part
    int end;
    int table;
};

inline Segment segment_at(const device int* segments, int index) {
    const device int* four = segments + index * 4;
    return Segment{four[0], four[1], four[2], four[3]};
}

// What a threadgroup is about: the grid's second axis counts key heads of all streams, its third
// the programs. One program reads all segments, of several each reads its own.
struct Program {
    Sizes sizes;
    int head;
    int stream;
    int streams;
    bool shared;   // with other programs
    bool checked;  // whether queries may see different cells: a single one sees all that is listed
    int first_segment;
    int last_segment;

    // Lines of all heads and streams before this stream's, where so many copies of all come first.
    Offset lines_before(int copies) const {
        return (Offset(copies) * streams + stream) * sizes.lines() * sizes.kv_heads;
    }
};

inline Program program_of(const constant int* numbers, uint3 group, uint3 groups) {
    const Sizes sizes = sizes_of(numbers);
    const int row = int(group.y);
    const int program = int(group.z);
    const bool shared = groups.z > 1;
    return Program{
        sizes,
        row % sizes.kv_heads,
        row / sizes.kv_heads,
        int(groups.y) / sizes.kv_heads,
        shared,
        sizes.count > 1,
        shared ? program : 0,
        shared ? program : sizes.listed - 1};
}

// Two subblocks of 32 cells, `page * 2 + half`, and a bit for each cell that is alive.
struct Row {
    uint first, second, first_alive, second_alive;

    uint subblock(bool later) const { return later ? second : first; }
    uint alive(bool later) const { return later ? second_alive : first_alive; }
};

inline Row row_at(const device int64_t* rows, int index) {
    const uint4 words = *reinterpret_cast<const device uint4*>(rows + Offset(index) * 2);
    return Row{words.x, words.y, words.z, words.w};
}

// A part of a subblock's cells.
struct Piece {
    uint subblock;
    int first;   // cell of the subblock
    uint alive;  // a bit for each cell, from the first on
};

inline Piece piece_of(Row row, int place, int cells) {
    const bool later = place >= SUBBLOCK;
    const int first = place % SUBBLOCK;
    return Piece{
        row.subblock(later), first, (row.alive(later) >> first) & (0xffffffffu >> (32 - cells))};
}

// Where a key head's cells of one stream begin, and where from there a subblock does.
inline Offset head_offset(Program of, int head_dim) {
    return page_offset(of.stream, of.sizes.pages, 0, of.sizes.kv_heads, head_dim) +
           of.head * PAGE * head_dim;
}
inline Offset subblock_offset(uint subblock, Sizes sizes, int head_dim) {
    return page_offset(0, 0, int(subblock >> 1), sizes.kv_heads, head_dim) +
           int(subblock & 1u) * SUBBLOCK * head_dim;
}

// Where a line, a query and a head of the group, stands among `[T, q_heads]`.
inline int line_place(Program of, int line) {
    const int token = line / of.sizes.group;
    return (token * of.sizes.kv_heads + of.head) * of.sizes.group + line - token * of.sizes.group;
}

// Two 16-bit numbers of a word.
template <typename T>
inline float low_of(uint word);
template <typename T>
inline float high_of(uint word);
template <>
inline float low_of<float16_t>(uint word) {
    return float(as_type<float16_t>(ushort(word & 0xffffu)));
}
template <>
inline float high_of<float16_t>(uint word) {
    return float(as_type<float16_t>(ushort(word >> 16)));
}
template <>
inline float low_of<bfloat16_t>(uint word) {
    return as_type<float>(word << 16);
}
template <>
inline float high_of<bfloat16_t>(uint word) {
    return as_type<float>(word & 0xffff0000u);
}

// Four and eight numbers in float32, read 16 bytes at a time where there are as many.
template <typename T>
inline void load4(const device T* from, thread float* to) {
    const uint2 words = *reinterpret_cast<const device uint2*>(from);
    to[0] = low_of<T>(words.x);
    to[1] = high_of<T>(words.x);
    to[2] = low_of<T>(words.y);
    to[3] = high_of<T>(words.y);
}
inline void load4(const device float* from, thread float* to) {
    const float4 four = *reinterpret_cast<const device float4*>(from);
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
}
template <typename T>
inline void load8(const device T* from, thread float* to) {
    const uint4 words = *reinterpret_cast<const device uint4*>(from);
    to[0] = low_of<T>(words.x);
    to[1] = high_of<T>(words.x);
    to[2] = low_of<T>(words.y);
    to[3] = high_of<T>(words.y);
    to[4] = low_of<T>(words.z);
    to[5] = high_of<T>(words.z);
    to[6] = low_of<T>(words.w);
    to[7] = high_of<T>(words.w);
}
inline void load8(const device float* from, thread float* to) {
    load4(from, to);
    load4(from + 4, to + 4);
}
