// Rotary embedding and the arena's writes in one pass over new tokens.
//
// A thread takes one dimension of a head and the one that it is paired with, half a head further
// on: of a query, which it turns by every table, or of a key with its value. Turned in float32 and
// rounded once.
#pragma once
#include "cells.h"

// Sizes of a launch, in the order in which the host packs them.
struct StoreSizes {
    int tokens;
    int q_heads;
    int kv_heads;
    int pages;
    int tables;  // that queries are turned by
};

inline StoreSizes store_sizes(const constant int* numbers) {
    return StoreSizes{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
}

// A pair of dimensions, turned by an angle's cosine and sine.
template <typename T, int D>
inline void store_turned(float first, float second, float cosine, float sine, device T* to) {
    to[0] = T(first * cosine - second * sine);
    to[D / 2] = T(second * cosine + first * sine);
}

// Shapes: queries `[streams, T, q_heads, D]`, new keys and values `[streams, T, kv_heads, D]`,
// cosines and sines `[1 + tables, T, D / 2]`, the keys' own first, turned `[tables, streams, T,
// q_heads, D]`. Of a token whose cell is -1 nothing is stored.
template <typename T, int D>
inline void store_cells(
    const device T* queries,
    const device T* new_keys,
    const device T* new_values,
    const device float* cosines,
    const device float* sines,
    const device int* cells,
    StoreSizes sizes,
    device T* keys,
    device T* values,
    device T* turned,
    uint3 thread_index,
    int streams) {
    constexpr int half_head = D / 2;
    const int head = int(thread_index.x) / half_head;
    const int dim = int(thread_index.x) - head * half_head;
    const int token = int(thread_index.y);
    const int stream = int(thread_index.z);
    if (head >= sizes.q_heads + sizes.kv_heads) {
        return;
    }
    const Offset row = Offset(stream) * sizes.tokens + token;
    if (head < sizes.q_heads) {
        const Offset at = (row * sizes.q_heads + head) * D + dim;
        const float first = float(queries[at]);
        const float second = float(queries[at + half_head]);
        const Offset copy = Offset(streams) * sizes.tokens * sizes.q_heads * D;
        for (int table = 0; table < sizes.tables; ++table) {
            const Offset turn = (Offset(table + 1) * sizes.tokens + token) * half_head + dim;
            device T* to = turned + table * copy + at;
            store_turned<T, D>(first, second, cosines[turn], sines[turn], to);
        }
        return;
    }
    const int cell = cells[token];
    if (cell < 0) {
        return;
    }
    const int kv_head = head - sizes.q_heads;
    const Offset at = (row * sizes.kv_heads + kv_head) * D + dim;
    const Offset to = cell_offset(stream, sizes.pages, cell, sizes.kv_heads, kv_head, D) + dim;
    const Offset turn = Offset(token) * half_head + dim;
    const float first = float(new_keys[at]);
    const float second = float(new_keys[at + half_head]);
    store_turned<T, D>(first, second, cosines[turn], sines[turn], keys + to);
    values[to] = new_values[at];
    values[to + half_head] = new_values[at + half_head];
}
