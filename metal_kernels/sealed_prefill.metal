// Attention of many queries over a listing's live subblocks of few bits, in the values' rotation.
//
// A threadgroup takes a tile of lines of one key head, eight or sixteen a simdgroup, and a program's
// share of the rows. A subblock's codes come into threadgroup memory as halves, keys a row a cell and
// values a row a channel, by way of registers that ask for the next while these are taken.
#pragma once
#include "sealed_running.h"

// Tiles of halves in threadgroup memory, 16 bytes more a row than it has, so that columns spread.
template <int D, int BITS>
struct Tiles {
    typedef Form<D, BITS> form;
    static constexpr constant int KEY_PITCH = form::STEPS * 8 + 8;
    static constexpr constant int VALUE_PITCH = SUBBLOCK + 8;
    static constexpr constant int KEY_WORDS = SUBBLOCK * KEY_PITCH / 8;  // of 16 bytes
    static constexpr constant int VALUE_WORDS = form::BLOCKS * 8 * VALUE_PITCH / 8;
};

// What a thread brings in of a subblock: words of keys and of values, and ranges of four channels.
template <int D, int BITS, int THREADS>
struct Brought {
    typedef Form<D, BITS> form;
    typedef Tiles<D, BITS> tiles;
    static constexpr constant int HIGH = BITS == 3 ? 1 : 0;
    static constexpr constant int KEYS = form::KEY_TURNS * 4 * SUBBLOCK;
    static constexpr constant int VALUES = form::VALUE_WORDS * SUBBLOCK / 2;
    static constexpr constant int KEY_ROUNDS = (KEYS + THREADS - 1) / THREADS;
    static constexpr constant int VALUE_ROUNDS = (VALUES + THREADS - 1) / THREADS;
    uint keys[KEY_ROUNDS];
    uint values[VALUE_ROUNDS];
    uint high_keys[HIGH ? KEY_ROUNDS : 1];
    uint high_values[HIGH ? VALUE_ROUNDS : 1];
    uint2 ranges;

    // Which word of which cell: neighbours write to other banks.
    static int key_word(int i) { return i / 128 * 4 + i % 4; }
    static int key_cell(int i) { return i / 4 % 8 * 4 + i / 32 % 4; }

    void ask(Sealed from, uint thread_index) {
        const device uint* coded =
            reinterpret_cast<const device uint*>(from.page + from.which * form::KEY_BYTES);
        UNROLL for (int round = 0; round < KEY_ROUNDS; ++round) {
            const int i = round * THREADS + int(thread_index);
            const int word = key_word(i);
            const bool inside = word < form::KEY_WORDS;
            keys[round] = inside ? coded[word * SUBBLOCK + key_cell(i)] : 0u;
            if (HIGH && inside) {
                const int at = form::KEY_LOW + word / 2 * SUBBLOCK + key_cell(i);
                high_keys[round] = coded[at] >> (word % 2 * 8);
            }
        }
        coded = reinterpret_cast<const device uint*>(
            from.page + form::VALUES_AT + from.which * form::VALUE_BYTES);
        UNROLL for (int round = 0; round < VALUE_ROUNDS; ++round) {
            const int i = round * THREADS + int(thread_index);
            const bool inside = VALUES % THREADS == 0 || i < VALUES;
            values[round] = inside ? coded[i] : 0u;
            if (HIGH && inside) {
                const int word = i / (SUBBLOCK / 2);
                const int at = form::VALUE_LOW + word / 2 * (SUBBLOCK / 2) + i % (SUBBLOCK / 2);
                high_values[round] = coded[at] >> (word % 2 * 8);
            }
        }
        ranges = uint2{0u, 0u};
        if (thread_index < uint(D / 4)) ranges = ranges_at<D, BITS>(from, thread_index);
    }

    template <bool TABLE>
    void put(
        threadgroup float16_t* near_keys,
        threadgroup float16_t* near_values,
        const threadgroup uint2* near,
        const threadgroup float* levels,
        uint thread_index) const {
        UNROLL for (int round = 0; round < KEY_ROUNDS; ++round) {
            const int i = round * THREADS + int(thread_index);
            if (KEYS % THREADS != 0 && i >= KEYS) continue;
            const int word = key_word(i);
            const int cell = key_cell(i);
            const bool inside = form::KEY_WORDS % 4 == 0 || word < form::KEY_WORDS;
            const int row = cell % 4 * 8 + cell / 4;
            threadgroup float16_t* to = near_keys + row * tiles::KEY_PITCH +
                                        word / 4 * form::PLACES * 8 + word % 4 * 2;
            UNROLL for (int place = 0; place < form::PLACES; ++place) {
                Two<float16_t> two = {{0u}};
                if (inside) {
                    const Two<float16_t> level = Meaning<float16_t, BITS, TABLE>::of(
                        keys[round], high_keys[HIGH * round], place, levels);
                    const Ranges<float16_t> range =
                        range_at<float16_t>(word * form::PLACES + place, near);
                    two = times_plus(level, range.spans, range.offsets);
                }
                *reinterpret_cast<threadgroup uint*>(to + place * 8) = two.words[0];
            }
        }
        UNROLL for (int round = 0; round < VALUE_ROUNDS; ++round) {
            const int i = round * THREADS + int(thread_index);
            if (VALUES % THREADS != 0 && i >= VALUES) continue;
            const int word = i / (SUBBLOCK / 2);
            const int pair = i % (SUBBLOCK / 2);
            const int row = word / 8 * form::PLACES * 8 + word % 8;
            threadgroup float16_t* to =
                near_values + row * tiles::VALUE_PITCH + pair % 4 * 8 + pair / 4 * 2;
            UNROLL for (int place = 0; place < form::PLACES; ++place) {
                const Two<float16_t> two = Meaning<float16_t, BITS, TABLE>::of(
                    values[round], high_values[HIGH * round], place, levels + LEVELS);
                *reinterpret_cast<threadgroup uint*>(to + place * 8 * tiles::VALUE_PITCH) =
                    two.words[0];
            }
        }
    }
};

// Takes the subblock in threadgroup memory into the running softmax of a simdgroup's lines, eight of
// them a group.
template <int D, int BITS, int GROUPS>
inline void sealed_tiles_take(
    thread SealedRunning<float16_t, Form<D, BITS>::STEPS, Form<D, BITS>::BLOCKS>* now,
    const threadgroup float16_t* near_keys,
    const threadgroup float16_t* near_values,
    thread SealedSight& sight,
    uint lane) {
    typedef Form<D, BITS> form;
    typedef Tiles<D, BITS> tiles;
    typedef Keys<float16_t> Cells;
    simdgroup_matrix<float, 8, 8> scores[GROUPS][CELL_BLOCKS];
    UNROLL for (int g = 0; g < GROUPS; ++g) {
        UNROLL for (int i = 0; i < CELL_BLOCKS; ++i) scores[g][i] = matrix_of(0.0f, 0.0f);
    }
    UNROLL for (int step = 0; step < form::STEPS; step += 2) {
        UNROLL for (int i = 0; i < CELL_BLOCKS; i += 2) {
            const threadgroup float16_t* corner =
                near_keys + i * 8 * tiles::KEY_PITCH + step * 8;
            Cells quad = load_quad<Cells, float16_t>(corner, tiles::KEY_PITCH, lane);
            UNROLL for (int g = 0; g < GROUPS; ++g) {
                score(scores[g] + i, quad, now[g].queries + step);
            }
        }
    }
    Factor<float16_t> weights[GROUPS][CELL_BLOCKS];
    UNROLL for (int g = 0; g < GROUPS; ++g) sealed_weigh(now[g], scores[g], sight, weights[g]);
    UNROLL for (int block = 0; block < form::BLOCKS; block += 2) {
        UNROLL for (int i = 0; i < CELL_BLOCKS; i += 2) {
            const threadgroup float16_t* corner =
                near_values + block * 8 * tiles::VALUE_PITCH + i * 8;
            Cells quad = load_quad<Cells, float16_t>(corner, tiles::VALUE_PITCH, lane);
            UNROLL for (int g = 0; g < GROUPS; ++g) {
                score(now[g].mixed + block, quad, weights[g] + i);
            }
        }
    }
}

// Writes what eight lines found.
template <int D, int BITS, bool TABLE>
inline void sealed_tiles_write(
    thread SealedRunning<float16_t, Form<D, BITS>::STEPS, Form<D, BITS>::BLOCKS>& now,
    device float* out,
    device float* sums,
    Program of,
    int first_line,
    int last_line,
    Offset before,  // lines of streams and programs before
    uint lane) {
    UNROLL for (int e = 0; e < 2; ++e) {
        const float total = column_sum(now.total[e]);
        // Codes were mixed, not what uniform levels are.
        const float less = TABLE ? 0.0f : column_sum(now.weight[e]) * middle_of(BITS);
        const int line = first_line + lane_column(lane) + e;
        if (line > last_line) continue;
        const Offset target = before + line_place(of, line);
        const bool seen = sees(total);
        if (lane_row(lane) == 0) {
            sums[target] = seen ? now.peak[e] + log2(total) + now.ground[e] : no_sum();
        }
        // What saw nothing has no part in a merge.
        if (!seen) continue;
        const float share = 1.0f / total;
        UNROLL for (int block = 0; block < Form<D, BITS>::BLOCKS; ++block) {
            const int channel = sealed_channel<D, BITS>(block, lane);
            if (channel >= D) continue;
            out[target * D + channel] = (now.mixed[block].thread_elements()[e] - less) * share;
        }
    }
}

// Inputs, outputs and grid as of `sealed_decode`.
template <typename T, int D, int BITS, bool TABLE, int GROUPS, int SIMDS>
inline void sealed_prefill(
    const device T* queries,
    const device uchar* sealed,
    const device int64_t* rows,
    const device int* segments,
    const device float* bias,
    const device float* means,
    const device float* levels,
    const constant int* numbers,
    float scale,
    device float* out,
    device float* sums,
    threadgroup float* near_levels,
    threadgroup uint2* near,
    threadgroup uint4* key_words,
    threadgroup uint4* value_words,
    uint3 group,
    uint3 groups,
    uint simdgroup,
    uint lane) {
    typedef Form<D, BITS> form;
    threadgroup float16_t* near_keys = reinterpret_cast<threadgroup float16_t*>(key_words);
    threadgroup float16_t* near_values = reinterpret_cast<threadgroup float16_t*>(value_words);
    const Program of = program_of(numbers, group, groups);
    const Sizes sizes = of.sizes;
    const uint first_page = uint(numbers[3]);
    const uint thread_index = simdgroup * 32u + lane;
    const int first_line = int(group.x) * (SIMDS * GROUPS * LINES);
    const int last_line = min(first_line + SIMDS * GROUPS * LINES, sizes.lines()) - 1;
    const int my_line = first_line + int(simdgroup) * GROUPS * LINES;
    const bool busy = my_line <= last_line;
    const Segment segment = segment_at(segments, int(group.z));
    const Offset table = of.lines_before(segment.table);
    if (TABLE && simdgroup == 0) near_levels[lane] = levels[lane];
    SealedRunning<float16_t, form::STEPS, form::BLOCKS> now[GROUPS];
    UNROLL for (int g = 0; g < GROUPS; ++g) {
        begin(now[g]);
        now[g].ground[0] = now[g].ground[1] = 0.0f;
        const int line = my_line + g * LINES + lane_row(lane);
        // A program without rows may have no table.
        const bool real = line <= last_line && segment.begin < segment.end;
        const Offset place = table + line_place(of, min(line, last_line));
        rotate_queries<T, D, BITS>(
            now[g], queries + place * D, real, means + of.head * D, scale, lane);
    }
    sealed = sealed_head<D, BITS>(sealed, of);
    const int end = segment.end * 2;
    int unit = segment.begin * 2;
    bool held = false;
    SealedSight sight;
    while (true) {
        Sealed next = {sealed, 0, 0u, 0};
        while (next.alive == 0u && unit < end) {
            next = sealed_at<D, BITS>(
                sealed, row_at(rows, unit / 2), unit % 2 != 0, first_page, sizes.kv_heads);
            ++unit;
        }
        // What comes next is asked for before what is here is taken.
        Brought<D, BITS, SIMDS * 32> brought;
        if (next.alive != 0u) brought.ask(next, thread_index);
        if (held && busy) {
            sealed_tiles_take<D, BITS, GROUPS>(now, near_keys, near_values, sight, lane);
        }
        if (next.alive == 0u) break;
        if (thread_index < uint(D / 4)) {
            put_ranges<float16_t, BITS, TABLE>(
                brought.ranges.x, brought.ranges.y, int(thread_index), near);
        }
        sight = sealed_sight<D, BITS>(next, bias, sizes.biased, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        brought.template put<TABLE>(near_keys, near_values, near, near_levels, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        held = true;
    }
    if (!busy) return;
    UNROLL for (int g = 0; g < GROUPS; ++g) {
        sealed_tiles_write<D, BITS, TABLE>(
            now[g], out, sums, of, my_line + g * LINES, last_line,
            of.lines_before(int(group.z)), lane);
    }
}
