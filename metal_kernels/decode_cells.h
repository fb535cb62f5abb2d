// A subblock's 32 cells under a simdgroup's lines.
//
// For the scores, four lanes share a key and sixteen keys are read at a time, 64 bytes of each; the
// sums of the four are dealt out such that a lane ends up with one cell. For the values, lanes hold
// four columns each, and weights come through threadgroup memory.
#pragma once
#include "attend.h"

// What a lane knows: the running softmax of each line.
template <int LINES>
struct Running {
    float peak[LINES];      // the same in all lanes
    float total[LINES];     // over the cells that this lane weighed
    float mixed[LINES][4];  // over the cells that this lane's part of the simdgroup read
};

// Scores of the subblock's cells, one a lane: cell `lane % 4 * 8 + lane / 4`.
template <typename T, int D, int LINES>
inline void decode_scores(
    const device T* keys,
    uint alive,
    const threadgroup float* turned,
    thread float* scores,
    uint lane) {
    const int slice = int(lane & 3u) * 8;
    const int key = int(lane >> 2);
    float dealt[2][LINES];
    UNROLL for (int half_way = 0; half_way < 2; ++half_way) {
        const int cells[2] = {half_way * 16 + key, half_way * 16 + 8 + key};
        float sums[2][LINES];
        UNROLL for (int line = 0; line < LINES; ++line) {
            sums[0][line] = 0.0f;
            sums[1][line] = 0.0f;
        }
        UNROLL_TWO for (int block = 0; block < D; block += 32) {
            const int column = block + slice;
            if (D % 32 != 0 && column >= D) continue;
            float k[2][8];
            UNROLL for (int i = 0; i < 2; ++i) {
                if ((alive >> cells[i]) & 1u) {
                    load8(keys + cells[i] * D + column, k[i]);
                } else {
                    UNROLL for (int c = 0; c < 8; ++c) k[i][c] = 0.0f;
                }
            }
            UNROLL for (int line = 0; line < LINES; ++line) {
                const threadgroup float4* q =
                    reinterpret_cast<const threadgroup float4*>(turned + line * D + column);
                const float4 a = q[0];
                const float4 b = q[1];
                UNROLL for (int i = 0; i < 2; ++i) {
                    float sum = sums[i][line];
                    sum += a.x * k[i][0] + a.y * k[i][1] + a.z * k[i][2] + a.w * k[i][3];
                    sum += b.x * k[i][4] + b.y * k[i][5] + b.z * k[i][6] + b.w * k[i][7];
                    sums[i][line] = sum;
                }
            }
        }
        // Of two neighbours, each keeps one key's sum and hands over the other's.
        const bool odd = lane & 1u;
        UNROLL for (int line = 0; line < LINES; ++line) {
            const float given = odd ? sums[0][line] : sums[1][line];
            dealt[half_way][line] =
                (odd ? sums[1][line] : sums[0][line]) + simd_shuffle_xor(given, ushort(1));
        }
    }
    const bool later = lane & 2u;
    UNROLL for (int line = 0; line < LINES; ++line) {
        const float given = later ? dealt[0][line] : dealt[1][line];
        scores[line] =
            (later ? dealt[1][line] : dealt[0][line]) + simd_shuffle_xor(given, ushort(2));
    }
}

// Adds the subblock's values by their weights.
template <typename T, int D, int LINES>
inline void decode_values(
    const device T* values,
    uint alive,
    const threadgroup float* weights,
    thread Running<LINES>& now,
    uint lane) {
    // Where a row needs half of the lanes at most, both halves read cells.
    constexpr int parts = D > 64 ? 1 : 2;
    constexpr int cells = SUBBLOCK / parts;
    const int column = int(lane % (32u / parts)) * 4;
    const int first = int(lane / (32u / parts)) * cells;
    UNROLL_TWO for (int next = 0; next < cells; next += 4) {
        const int cell = first + next;
        if (((alive >> cell) & 15u) == 0u || column >= D) continue;
        float v[4][4];
        UNROLL for (int i = 0; i < 4; ++i) {
            // A dead cell weighs 0, but 0 times what it holds may be anything.
            if ((alive >> (cell + i)) & 1u) {
                load4(values + (cell + i) * D + column, v[i]);
            } else {
                UNROLL for (int c = 0; c < 4; ++c) v[i][c] = 0.0f;
            }
        }
        UNROLL for (int line = 0; line < LINES; ++line) {
            const float4 w =
                *reinterpret_cast<const threadgroup float4*>(weights + line * SUBBLOCK + cell);
            UNROLL for (int c = 0; c < 4; ++c) {
                now.mixed[line][c] += w.x * v[0][c] + w.y * v[1][c] + w.z * v[2][c] + w.w * v[3][c];
            }
        }
    }
}
