/* The sums of a pass of correlated noise, in one go over the columns of all rows that it reads and writes.

   Output i is the sum of coefficient[i][j] * input[j] over j, in this order, from 0 on, each term added by a fused
   multiply-add, which rounds once. So it has the same bits in whatever column it lies, with whatever width of vectors, and
   whoever compiled it: -ffp-contract=fast makes multiply-adds of the lines below, and rows.py checks every bit before use.

   Rows are read where they lie. A row is touched 64 bytes at a time, and the memory of many rows is waited for unless it was
   asked for ahead of time: the processor itself does not follow so many. */

#include <immintrin.h>
#include <stdint.h>

#ifndef __FMA__
#error "this processor has no fused multiply-add, which the noise kernel needs; everything works without it, more slowly"
#endif

/* Numbers in a vector, and the outputs that are summed at a time: each has one to four vectors in registers. */
#ifdef __AVX512F__
enum { LANES = 16, MOST = 16, BY_4 = 4, BY_8 = 2, BY_12 = 2, BY_16 = 1 };
#else
enum { LANES = 8, MOST = 8, BY_4 = 2, BY_8 = 1, BY_12 = 1, BY_16 = 1 };
#endif
/* Outputs that share a list of inputs. Columns that all groups of outputs take before the next: few enough for the cache, and
   a multiple of every width above. How many numbers ahead memory is asked for. */
enum { SHARE = 4, COLUMNS = 768, AHEAD = 192 };

#define INLINE static inline __attribute__((always_inline))
/* Sums stay in registers only where no loop over them is left. */
#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

/* In a register, and anywhere in a row. */
typedef float vector __attribute__((vector_size(4 * LANES)));
typedef vector in_row __attribute__((aligned(4), may_alias));

typedef struct {
    const float *const *inputs;
    /* (inputs, outputs), and how many inputs the first 4 outputs have, the next 4, and so on, never fewer. */
    const float *coefficients;
    const int64_t *used;
    /* Where outputs go, as they are and times scale; 0 for nowhere. */
    float *const *kept, *const *released;
    float scale;
    int64_t outputs;
} block;

/* Past the caches, which rows are too long for: else each line would be read before it is written. */
INLINE void put(float *to, vector x) {
#ifdef __AVX512F__
    if ((uintptr_t)to % sizeof x == 0) _mm512_stream_ps(to, (__m512)x);
#else
    if ((uintptr_t)to % sizeof x == 0) _mm256_stream_ps(to, (__m256)x);
#endif
    else *(in_row *)to = x;
}

INLINE void add(const block *b, vector (*sums)[4], int64_t group, int64_t from, int64_t to, int64_t at, int first, int rows,
                int wide) {
    for (int64_t j = from; j < to; j++) {
        const float *x = b->inputs[j] + at, *c = b->coefficients + j * b->outputs + group;
        UNROLLED for (int k = 0; k < wide; k++) {
            __builtin_prefetch(x + k * LANES + AHEAD, 0, 2);
            vector here = *(const in_row *)(x + k * LANES);
            UNROLLED for (int i = first; i < rows; i++) sums[i][k] += c[i] * here;
        }
    }
}

/* So many outputs, from the given one on, in wide vectors of columns. */
INLINE void tile(const block *b, int64_t group, int64_t at, int rows, int wide) {
    vector sums[16][4];
    const int64_t *used = b->used + group / SHARE;
    UNROLLED for (int i = 0; i < rows; i++)
        UNROLLED for (int k = 0; k < wide; k++) sums[i][k] = (vector){0};
    add(b, sums, group, 0, used[0], at, 0, rows, wide);
    if (rows > 4) add(b, sums, group, used[0], used[1], at, 4, rows, wide);
    if (rows > 8) add(b, sums, group, used[1], used[2], at, 8, rows, wide);
    if (rows > 12) add(b, sums, group, used[2], used[3], at, 12, rows, wide);
    UNROLLED for (int i = 0; i < rows; i++) {
        float *kept = b->kept[group + i], *released = b->released[group + i];
        if (kept)
            UNROLLED for (int k = 0; k < wide; k++) put(kept + at + k * LANES, sums[i][k]);
        if (released)
            UNROLLED for (int k = 0; k < wide; k++) put(released + at + k * LANES, sums[i][k] * b->scale);
    }
}

INLINE void columns_of(const block *b, int64_t group, int64_t at, int64_t stop, int rows, int wide) {
    for (; at + wide * LANES <= stop; at += wide * LANES) tile(b, group, at, rows, wide);
    for (; at + LANES <= stop; at += LANES) tile(b, group, at, rows, 1);
    for (; at < stop; at++)
        for (int64_t i = group; i < group + rows; i++) {
            float sum = 0;
            for (int64_t j = 0; j < b->used[i / SHARE]; j++)
                sum = __builtin_fmaf(b->coefficients[j * b->outputs + i], b->inputs[j][at], sum);
            if (b->kept[i]) b->kept[i][at] = sum;
            if (b->released[i]) b->released[i][at] = sum * b->scale;
        }
}

/* A multiple of 4 outputs, for so many columns. */
void hubbub_noise_rows(const float *const *inputs, const float *coefficients, const int64_t *used, float *const *kept,
                       float *const *released, float scale, int64_t outputs, int64_t columns) {
    const block b = {inputs, coefficients, used, kept, released, scale, outputs};
    for (int64_t at = 0; at < columns; at += COLUMNS) {
        int64_t stop = columns - at < COLUMNS ? columns : at + COLUMNS;
        for (int64_t group = 0; group < outputs; group += MOST) {
            int64_t rows = outputs - group < MOST ? outputs - group : MOST;
            if (rows == 4) columns_of(&b, group, at, stop, 4, BY_4);
            else if (rows == 8) columns_of(&b, group, at, stop, 8, BY_8);
            else if (rows == 12) columns_of(&b, group, at, stop, 12, BY_12);
            else columns_of(&b, group, at, stop, 16, BY_16);
        }
    }
}
