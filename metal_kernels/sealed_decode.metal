// Attention of few queries over a listing's live subblocks of few bits, in the values' rotation.
//
// A threadgroup takes eight lines (a query and a head each) of one key head, and a program's share
// of the rows, all read by one table and of one modality; its simdgroups take a subblock in turn,
// whose codes go from memory to a lane's share of matrices. Source of the arithmetic: omni_core's
// reference of sealed attention.
#pragma once
#include "sealed_running.h"

// What a lane reads of a subblock: of keys a word of each of four cells, of values of four pairs.
template <int D, int BITS>
struct Codes {
    typedef Form<D, BITS> form;
    static constexpr constant int HIGH = BITS == 3 ? 1 : 0;
    uint keys[form::KEY_TURNS * 4];
    uint values[form::VALUE_TURNS * 4];
    uint high_keys[HIGH ? form::KEY_TURNS * 4 : 1];
    uint high_values[HIGH ? form::VALUE_TURNS * 4 : 1];
    uint2 ranges;
    SealedSight sight;

    void ask(Sealed from, const device float* bias, bool biased, uint lane) {
        const int row = lane_row(lane);
        const int column = lane_column(lane) / 2;
        const device uchar* coded = from.page + from.which * form::KEY_BYTES;
        UNROLL for (int turn = 0; turn < form::KEY_TURNS; ++turn) {
            const int i = turn * 4 + column;
            const bool inside = form::KEY_WORDS % 4 == 0 || i < form::KEY_WORDS;
            read(coded, i * SUBBLOCK + row * 4, inside, keys + turn * 4, 0);
            if (HIGH) {
                const int at = form::KEY_LOW + i / 2 * SUBBLOCK + row * 4;
                read(coded, at, inside, high_keys + turn * 4, i % 2 * 8);
            }
        }
        coded = from.page + form::VALUES_AT + from.which * form::VALUE_BYTES;
        UNROLL for (int turn = 0; turn < form::VALUE_TURNS; ++turn) {
            const int i = turn * 8 + row;
            const bool inside = form::VALUE_WORDS % 8 == 0 || i < form::VALUE_WORDS;
            read(coded, i * (SUBBLOCK / 2) + column * 4, inside, values + turn * 4, 0);
            if (HIGH) {
                const int at = form::VALUE_LOW + i / 2 * (SUBBLOCK / 2) + column * 4;
                read(coded, at, inside, high_values + turn * 4, i % 2 * 8);
            }
        }
        ranges = uint2{0u, 0u};
        if (lane < uint(D / 4)) ranges = ranges_at<D, BITS>(from, lane);
        sight = sealed_sight<D, BITS>(from, bias, biased, lane);
    }

    static void read(
        const device uchar* from, int word, bool inside, thread uint* to, int shift) {
        uint4 four = {0u, 0u, 0u, 0u};
        if (inside) {
            four = *reinterpret_cast<const device uint4*>(
                reinterpret_cast<const device uint*>(from) + word);
        }
        to[0] = four.x >> shift;
        to[1] = four.y >> shift;
        to[2] = four.z >> shift;
        to[3] = four.w >> shift;
    }
};

template <typename M>
inline void put(thread Eight<M>& eight, int pair, Two<M> two) {
    constexpr int each = sizeof(M) / 2;
    UNROLL for (int i = 0; i < each; ++i) eight.words[pair * each + i] = two.words[i];
}

// Takes a subblock into the running softmax of the lines; `near` is this simdgroup's own.
template <typename T, int D, int BITS, bool TABLE>
inline void sealed_take(
    thread SealedRunning<typename Coded<T>::Number, Form<D, BITS>::STEPS, Form<D, BITS>::BLOCKS>&
        now,
    thread Codes<D, BITS>& codes,
    const threadgroup float* levels,
    threadgroup uint2* near,
    uint lane) {
    typedef Form<D, BITS> form;
    typedef typename Coded<T>::Number M;
    constexpr int places = form::PLACES;
    constexpr int high = BITS == 3 ? 1 : 0;
    if (lane < uint(D / 4)) {
        put_ranges<M, BITS, TABLE>(codes.ranges.x, codes.ranges.y, int(lane), near);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_matrix<float, 8, 8> scores[CELL_BLOCKS];
    UNROLL for (int i = 0; i < CELL_BLOCKS; ++i) scores[i] = matrix_of(0.0f, 0.0f);
    UNROLL for (int turn = 0; turn < form::KEY_TURNS; ++turn) {
        const int word = min(turn * 4 + lane_column(lane) / 2, form::KEY_WORDS - 1);
        UNROLL for (int place = 0; place < places; place += 2) {
            const Ranges<M> ranges[2] = {
                range_at<M>(word * places + place, near),
                range_at<M>(word * places + place + 1, near)};
            UNROLL for (int i = 0; i < CELL_BLOCKS; i += 2) {
                Eight<M> cells[2];
                UNROLL for (int next = 0; next < 2; ++next) {
                    const int at = turn * 4 + i + next;
                    UNROLL for (int e = 0; e < 2; ++e) {
                        const Two<M> level = Meaning<M, BITS, TABLE>::of(
                            codes.keys[at], codes.high_keys[high * at], place + e, levels);
                        put(cells[next], e,
                            times_plus(level, ranges[e].spans, ranges[e].offsets));
                    }
                }
                Keys<M> quad = spread_quad<Keys<M>, M>(cells[0], cells[1], 0);
                score(scores + i, quad, now.queries + turn * places + place);
            }
        }
    }
    // The next subblock's ranges are not to overtake these.
    simdgroup_barrier(mem_flags::mem_threadgroup);
    Factor<M> weights[CELL_BLOCKS];
    sealed_weigh(now, scores, codes.sight, weights);
    UNROLL for (int turn = 0; turn < form::VALUE_TURNS; ++turn) {
        UNROLL for (int place = 0; place < places; place += 2) {
            UNROLL for (int i = 0; i < CELL_BLOCKS; i += 2) {
                Eight<M> channels[2];
                UNROLL for (int next = 0; next < 2; ++next) {
                    UNROLL for (int e = 0; e < 2; ++e) {
                        const int at = turn * 4 + i + e;
                        const Two<M> level = Meaning<M, BITS, TABLE>::of(
                            codes.values[at], codes.high_values[high * at], place + next,
                            levels + LEVELS);
                        put(channels[next], e, level);
                    }
                }
                Keys<M> quad = spread_quad<Keys<M>, M>(channels[0], channels[1], 0);
                score(now.mixed + turn * places + place, quad, weights + i);
            }
        }
    }
}

// Columns that are joined at a time, and numbers from a line to the next there.
template <int D, int BITS>
constexpr int sealed_columns() {
    return 8 * Form<D, BITS>::PLACES;
}

// Floats of threadgroup memory: what simdgroups found.
template <int D, int BITS>
constexpr int sealed_floats(int simdgroups) {
    return LINES * (simdgroups * (2 + sealed_columns<D, BITS>() + 1) + 1);
}

// Joins what the simdgroups found and writes it.
template <typename M, int D, int BITS, bool TABLE, int SIMDS>
inline void sealed_join(
    thread SealedRunning<M, Form<D, BITS>::STEPS, Form<D, BITS>::BLOCKS>& now,
    device float* out,
    device float* sums,
    Program of,
    int first_line,
    Offset before,  // lines of streams and programs before
    threadgroup float* pool,
    uint simdgroup,
    uint lane) {
    constexpr int places = Form<D, BITS>::PLACES;
    constexpr int columns = sealed_columns<D, BITS>();
    constexpr int pitch = columns + 1;
    threadgroup float* peaks = pool;
    threadgroup float* totals = pool + SIMDS * LINES;
    threadgroup float* whole = pool + 2 * SIMDS * LINES;
    threadgroup float* found = pool + (2 * SIMDS + 1) * LINES;  // [SIMDS, LINES, pitch]
    float less[2];
    UNROLL for (int e = 0; e < 2; ++e) {
        const float total = column_sum(now.total[e]);
        // Codes were mixed, not what uniform levels are.
        less[e] = TABLE ? 0.0f : column_sum(now.weight[e]) * middle_of(BITS);
        if (lane_row(lane) == 0) {
            const int line = int(simdgroup) * LINES + lane_column(lane) + e;
            peaks[line] = now.peak[e];
            totals[line] = total;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float share[2];
    UNROLL for (int e = 0; e < 2; ++e) {
        const int line = lane_column(lane) + e;
        float top = UNSEEN;
        for (int s = 0; s < SIMDS; ++s) top = max(top, peaks[s * LINES + line]);
        float total = 0.0f;
        for (int s = 0; s < SIMDS; ++s) {
            total += totals[s * LINES + line] * fast::exp2(peaks[s * LINES + line] - top);
        }
        const float part = fast::exp2(peaks[int(simdgroup) * LINES + line] - top);
        share[e] = sees(total) ? part / total : 0.0f;
        if (simdgroup == 0 && lane_row(lane) == 0) {
            whole[line] = total;
            if (first_line + line < of.sizes.lines()) {
                sums[before + line_place(of, first_line + line)] =
                    sees(total) ? top + log2(total) + now.ground[e] : no_sum();
            }
        }
    }
    UNROLL for (int turn = 0; turn < Form<D, BITS>::VALUE_TURNS; ++turn) {
        const int first = turn * columns;
        UNROLL for (int place = 0; place < places; ++place) {
            const int block = turn * places + place;
            UNROLL for (int e = 0; e < 2; ++e) {
                const int line = int(simdgroup) * LINES + lane_column(lane) + e;
                found[line * pitch + sealed_channel<D, BITS>(block, lane) - first] =
                    (now.mixed[block].thread_elements()[e] - less[e]) * share[e];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        ROLLED for (int i = int(simdgroup * 32u + lane); i < LINES * columns; i += SIMDS * 32) {
            const int line = i / columns;
            const int column = i % columns;
            if (first_line + line >= of.sizes.lines() || first + column >= D) continue;
            // What saw nothing has no part in a merge.
            if (!sees(whole[line])) continue;
            float mixed = 0.0f;
            UNROLL for (int s = 0; s < SIMDS; ++s) {
                mixed += found[(s * LINES + line) * pitch + column];
            }
            out[(before + line_place(of, first_line + line)) * D + first + column] = mixed;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Queries `[tables, streams, T, q_heads, D]`, a layer's pages of bytes `[streams, pages, kv_heads,
// BYTES]`, a listing with a segment a program, `bias` a cell, rotated means of keys `[kv_heads, D]`,
// levels of keys and of values. Gives what each program found, `[streams, T, q_heads, D]`, rotated
// as the values are, and the log-sum-exps to base 2. The grid: tiles of lines, key heads of all
// streams, programs.
template <typename T, int D, int BITS, bool TABLE, int SIMDS>
inline void sealed_decode(
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
    threadgroup uint2* near,  // [SIMDS, range_words<M>(D)]
    threadgroup float* pool,
    uint3 group,
    uint3 groups,
    uint simdgroup,
    uint lane) {
    typedef Form<D, BITS> form;
    typedef typename Coded<T>::Number M;
    const Program of = program_of(numbers, group, groups);
    const Sizes sizes = of.sizes;
    const uint first_page = uint(numbers[3]);
    const int first_line = int(group.x) * LINES;
    const int last_line = min(first_line + LINES, sizes.lines()) - 1;
    const int line = first_line + lane_row(lane);
    const Segment segment = segment_at(segments, int(group.z));
    if (TABLE) {
        if (simdgroup == 0) near_levels[lane] = levels[lane];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    SealedRunning<M, form::STEPS, form::BLOCKS> now;
    begin(now);
    now.ground[0] = now.ground[1] = 0.0f;
    int unit = segment.begin * 2 + int(simdgroup);
    const int end = segment.end * 2;
    if (unit < end) {
        const Offset place = of.lines_before(segment.table) + line_place(of, min(line, last_line));
        rotate_queries<T, D, BITS>(
            now, queries + place * D, line <= last_line, means + of.head * D, scale, lane);
        sealed = sealed_head<D, BITS>(sealed, of);
        Sealed here = sealed_at<D, BITS>(
            sealed, row_at(rows, unit / 2), unit % 2 != 0, first_page, sizes.kv_heads);
        Codes<D, BITS> codes;
        codes.ask(here, bias, sizes.biased, lane);
        for (; unit < end; unit += SIMDS) {
            // What comes next is asked for before what is here is taken.
            const int next = min(unit + SIMDS, end - 1);
            const Sealed later = sealed_at<D, BITS>(
                sealed, row_at(rows, next / 2), next % 2 != 0, first_page, sizes.kv_heads);
            Codes<D, BITS> asked;
            asked.ask(later, bias, sizes.biased, lane);
            if (here.alive != 0u) {
                sealed_take<T, D, BITS, TABLE>(
                    now, codes, near_levels, near + int(simdgroup) * range_words<M>(D), lane);
            }
            here = later;
            codes = asked;
        }
    }
    sealed_join<M, D, BITS, TABLE, SIMDS>(
        now, out, sums, of, first_line, of.lines_before(int(group.z)), pool, simdgroup, lane);
}
