// What all kernels know of the arena: keys and values `[streams, pages, kv_heads, PAGE, head_dim]`.
#pragma once

constant constexpr int PAGE = 64;      // cells
constant constexpr int SUBBLOCK = 32;  // cells; also the lanes of a simdgroup

// Offsets count numbers, not bytes, in 64 bits: an arena may hold more than 2^31 of them.
typedef int64_t Offset;

// Where a page of one stream begins.
inline Offset page_offset(int stream, int pages, int page, int kv_heads, int head_dim) {
    return (Offset(stream) * pages + page) * kv_heads * PAGE * head_dim;
}

// Where a cell, numbered `page * PAGE + slot`, begins in a key head of one stream.
inline Offset cell_offset(int stream, int pages, int cell, int kv_heads, int head, int head_dim) {
    Offset page = (Offset(stream) * pages + cell / PAGE) * kv_heads;
    return ((page + head) * PAGE + cell % PAGE) * head_dim;
}
