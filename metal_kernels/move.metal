// Copies of cells of one layer, keys and values, bit for bit.
//
// A thread takes 16 bytes of a key head of a cell. Cells may come from the arena itself, as long as
// none that is written to is read: those wait in rows, `[streams, kv_heads, n, D]`.
#pragma once
#include "cells.h"

// Sizes of a launch, in the order in which the host packs them.
struct MoveSizes {
    int count;       // of cells
    int from_pages;  // where the cells come from lies as `[streams, from_pages, kv_heads, room, D]`
    int room;
    int pages;
    int kv_heads;
};

inline MoveSizes move_sizes(const constant int* numbers) {
    return MoveSizes{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
}

// `source` counts `page * room + slot`, `target` counts `page * PAGE + slot`.
template <typename T, int D>
inline void move_cells(
    const device int* source,
    const device int* target,
    const device T* from_keys,
    const device T* from_values,
    MoveSizes sizes,
    device T* keys,
    device T* values,
    uint3 thread_index) {
    constexpr int width = 16 / sizeof(T);
    constexpr int pieces = D / width;
    static_assert(D % width == 0, "a head is not whole pieces of 16 bytes");
    const int row = int(thread_index.x) / pieces;
    const int piece = int(thread_index.x) - row * pieces;
    const int index = row / sizes.kv_heads;
    const int head = row - index * sizes.kv_heads;
    const int stream = int(thread_index.y);
    if (index >= sizes.count) {
        return;
    }
    const int old = source[index];
    const Offset page = (Offset(stream) * sizes.from_pages + old / sizes.room) * sizes.kv_heads;
    const Offset from = ((page + head) * sizes.room + old % sizes.room) * D + piece * width;
    const int fresh = target[index];
    const Offset to =
        cell_offset(stream, sizes.pages, fresh, sizes.kv_heads, head, D) + piece * width;
    *reinterpret_cast<device uint4*>(keys + to) =
        *reinterpret_cast<const device uint4*>(from_keys + from);
    *reinterpret_cast<device uint4*>(values + to) =
        *reinterpret_cast<const device uint4*>(from_values + from);
}
