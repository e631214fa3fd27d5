// Convolutions and poolings of many clients at once: each client is a lane of the processor's vector unit.
//
// Every array has its clients last and lies in memory without gaps: images (N, C, H, W, K), weights (O, I, KH, KW, K), biases
// (O, K), for N examples, C or I and O channels and K clients. A client's numbers are made from its own numbers alone, in an order
// that depends on the shapes and on nothing else, so that no bit of it hangs on the clients in the other lanes.
//
// Strides are 1, borders are the caller's. Each loop works on a tile of sums that stays in registers; -ffp-contract=fast makes
// fused multiply-adds of them.
#ifndef LANES

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
// A tile stays in registers only where no loop over it is left.
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

// Sums that fit in registers: outputs by columns of a row; outputs by columns of a kernel; inputs.
#ifdef __AVX512F__
enum { OUTPUTS = 3, COLUMNS = 8, OUTPUTS_OF_WEIGHTS = 4, INPUTS = 2 };
#else
enum { OUTPUTS = 3, COLUMNS = 4, OUTPUTS_OF_WEIGHTS = 2, INPUTS = 1 };
#endif
enum { WIDEST = 7 };

// How many clients a call is for: this many or half as many.
int hubbub_lanes(void) {
#ifdef __AVX512F__
    return 16;
#else
    return 8;
#endif
}

#define PASTED(name, lanes) name##_##lanes
#define NAMED(name, lanes) PASTED(name, lanes)
#define OWN(name) NAMED(name, LANES)

#define LANES 8
#include __FILE__
#undef LANES
#ifdef __AVX512F__
#define LANES 16
#include __FILE__
#undef LANES
#endif

#else

#define lane OWN(lane)
#define number OWN(number)
typedef float lane __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t number __attribute__((vector_size(4 * LANES), aligned(4)));

// The sums of a tile of outputs o.. and columns x.. of row y.
INLINE void OWN(outputs)(const int OT, const int XT, const lane *in, const lane *w, const lane *b, lane *out, long I, long H, long W,
                         long KH, long KW, long o, long y, long x) {
    const long OH = H - KH + 1, OW = W - KW + 1;
    lane sum[OUTPUTS][COLUMNS];
    UNROLL for (int a = 0; a < OT; a++) UNROLL for (int c = 0; c < XT; c++) sum[a][c] = b[o + a];
    for (long i = 0; i < I; i++)
        for (long kh = 0; kh < KH; kh++) {
            const lane *row = in + (i * H + y + kh) * W + x, *weight = w + ((o * I + i) * KH + kh) * KW;
            for (long kw = 0; kw < KW; kw++) {
                lane by[OUTPUTS];
                UNROLL for (int a = 0; a < OT; a++) by[a] = weight[a * I * KH * KW + kw];
                UNROLL for (int c = 0; c < XT; c++) {
                    const lane value = row[kw + c];
                    UNROLL for (int a = 0; a < OT; a++) sum[a][c] += value * by[a];
                }
            }
        }
    UNROLL for (int a = 0; a < OT; a++) UNROLL for (int c = 0; c < XT; c++) out[((o + a) * OH + y) * OW + x + c] = sum[a][c];
}

INLINE void OWN(output_rows)(const int OT, const lane *in, const lane *w, const lane *b, lane *out, long I, long H, long W, long KH,
                             long KW, long o) {
    for (long y = 0; y < H - KH + 1; y++) {
        long x = 0;
        for (; x + COLUMNS <= W - KW + 1; x += COLUMNS) OWN(outputs)(OT, COLUMNS, in, w, b, out, I, H, W, KH, KW, o, y, x);
        for (; x + 2 <= W - KW + 1; x += 2) OWN(outputs)(OT, 2, in, w, b, out, I, H, W, KH, KW, o, y, x);
        for (; x < W - KW + 1; x++) OWN(outputs)(OT, 1, in, w, b, out, I, H, W, KH, KW, o, y, x);
    }
}

// out[n, o, y, x] = b[o] + sum over i, kh, kw of in[n, i, y + kh, x + kw] w[o, i, kh, kw]
void OWN(hubbub_outputs)(const lane *in, const lane *w, const lane *b, lane *out, long N, long I, long H, long W, long O, long KH,
                         long KW) {
    for (long n = 0; n < N; n++, in += I * H * W, out += O * (H - KH + 1) * (W - KW + 1)) {
        long o = 0;
        for (; o + OUTPUTS <= O; o += OUTPUTS) OWN(output_rows)(OUTPUTS, in, w, b, out, I, H, W, KH, KW, o);
        for (; o < O; o++) OWN(output_rows)(1, in, w, b, out, I, H, W, KH, KW, o);
    }
}

// Adds one example's part to the gradients of the weights (o.., i, kh, kw..).
INLINE void OWN(weights)(const int OT, const int KT, const lane *in, const lane *g, lane *dw, long I, long H, long W, long KH, long KW,
                         long o, long i, long kh, long kw) {
    const long OH = H - KH + 1, OW = W - KW + 1;
    lane sum[OUTPUTS_OF_WEIGHTS][5], *own = dw + ((o * I + i) * KH + kh) * KW + kw;
    UNROLL for (int a = 0; a < OT; a++) UNROLL for (int c = 0; c < KT; c++) sum[a][c] = own[a * I * KH * KW + c];
    for (long y = 0; y < OH; y++) {
        const lane *row = in + (i * H + y + kh) * W + kw, *slope = g + (o * OH + y) * OW;
        for (long x = 0; x < OW; x++) {
            lane by[OUTPUTS_OF_WEIGHTS];
            UNROLL for (int a = 0; a < OT; a++) by[a] = slope[a * OH * OW + x];
            UNROLL for (int c = 0; c < KT; c++) {
                const lane value = row[x + c];
                UNROLL for (int a = 0; a < OT; a++) sum[a][c] += value * by[a];
            }
        }
    }
    UNROLL for (int a = 0; a < OT; a++) UNROLL for (int c = 0; c < KT; c++) own[a * I * KH * KW + c] = sum[a][c];
}

INLINE void OWN(weight_rows)(const int OT, const lane *in, const lane *g, lane *dw, long I, long H, long W, long KH, long KW, long o) {
    for (long i = 0; i < I; i++)
        for (long kh = 0; kh < KH; kh++) {
            long kw = 0;
            for (; kw + 5 <= KW; kw += 5) OWN(weights)(OT, 5, in, g, dw, I, H, W, KH, KW, o, i, kh, kw);
            for (; kw + 3 <= KW; kw += 3) OWN(weights)(OT, 3, in, g, dw, I, H, W, KH, KW, o, i, kh, kw);
            for (; kw < KW; kw++) OWN(weights)(OT, 1, in, g, dw, I, H, W, KH, KW, o, i, kh, kw);
        }
}

// dw[o, i, kh, kw] = sum over n, y, x of g[n, o, y, x] in[n, i, y + kh, x + kw], and db[o] = sum over n, y, x of g[n, o, y, x]
void OWN(hubbub_weights)(const lane *in, const lane *g, lane *dw, lane *db, long N, long I, long H, long W, long O, long KH, long KW) {
    const long area = (H - KH + 1) * (W - KW + 1);
    memset(dw, 0, sizeof(lane) * (size_t)(O * I * KH * KW));
    memset(db, 0, sizeof(lane) * (size_t)O);
    for (long n = 0; n < N; n++, in += I * H * W, g += O * area) {
        long o = 0;
        for (; o + OUTPUTS_OF_WEIGHTS <= O; o += OUTPUTS_OF_WEIGHTS)
            OWN(weight_rows)(OUTPUTS_OF_WEIGHTS, in, g, dw, I, H, W, KH, KW, o);
        for (; o < O; o++) OWN(weight_rows)(1, in, g, dw, I, H, W, KH, KW, o);
        for (o = 0; o < O; o++) {
            lane sum = db[o];
            for (long x = 0; x < area; x++) sum += g[o * area + x];
            db[o] = sum;
        }
    }
}

// Adds to the gradients of row h of the inputs i.. what the columns x.. of the outputs' rows send there.
INLINE void OWN(inputs)(const int IT, const int XT, const int KW, const lane *g, const lane *w, lane *dx, long I, long H, long W, long O,
                        long KH, long i, long h, long x) {
    const long OH = H - KH + 1, OW = W - KW + 1;
    const long first = h - OH + 1 > 0 ? h - OH + 1 : 0, last = h < KH - 1 ? h : KH - 1;
    lane sum[INPUTS][COLUMNS + WIDEST - 1], *own = dx + (i * H + h) * W + x;
    UNROLL for (int a = 0; a < IT; a++) UNROLL for (int c = 0; c < XT + KW - 1; c++) sum[a][c] = own[a * H * W + c];
    for (long o = 0; o < O; o++)
        for (long kh = first; kh <= last; kh++) {
            const lane *slope = g + (o * OH + h - kh) * OW + x, *weight = w + ((o * I + i) * KH + kh) * KW;
            UNROLL for (int k = 0; k < KW; k++) {
                lane by[INPUTS];
                UNROLL for (int a = 0; a < IT; a++) by[a] = weight[a * KH * KW + k];
                UNROLL for (int c = 0; c < XT; c++) {
                    const lane value = slope[c];
                    UNROLL for (int a = 0; a < IT; a++) sum[a][c + k] += value * by[a];
                }
            }
        }
    UNROLL for (int a = 0; a < IT; a++) UNROLL for (int c = 0; c < XT + KW - 1; c++) own[a * H * W + c] = sum[a][c];
}

INLINE void OWN(input_rows)(const int IT, const int KW, const lane *g, const lane *w, lane *dx, long I, long H, long W, long O, long KH,
                            long i) {
    for (long h = 0; h < H; h++) {
        long x = 0;
        for (; x + COLUMNS <= W - KW + 1; x += COLUMNS) OWN(inputs)(IT, COLUMNS, KW, g, w, dx, I, H, W, O, KH, i, h, x);
        for (; x + 2 <= W - KW + 1; x += 2) OWN(inputs)(IT, 2, KW, g, w, dx, I, H, W, O, KH, i, h, x);
        for (; x < W - KW + 1; x++) OWN(inputs)(IT, 1, KW, g, w, dx, I, H, W, O, KH, i, h, x);
    }
}

INLINE void OWN(input_planes)(const int KW, const lane *g, const lane *w, lane *dx, long I, long H, long W, long O, long KH) {
    long i = 0;
    for (; i + INPUTS <= I; i += INPUTS) OWN(input_rows)(INPUTS, KW, g, w, dx, I, H, W, O, KH, i);
    for (; i < I; i++) OWN(input_rows)(1, KW, g, w, dx, I, H, W, O, KH, i);
}

// dx[n, i, y, x] = sum over o, kh, kw of g[n, o, y - kh, x - kw] w[o, i, kh, kw]; KW from 1 to 7
void OWN(hubbub_inputs)(const lane *g, const lane *w, lane *dx, long N, long I, long H, long W, long O, long KH, long KW) {
    memset(dx, 0, sizeof(lane) * (size_t)(N * I * H * W));
    for (long n = 0; n < N; n++, dx += I * H * W, g += O * (H - KH + 1) * (W - KW + 1)) switch (KW) {
        case 1: OWN(input_planes)(1, g, w, dx, I, H, W, O, KH); break;
        case 2: OWN(input_planes)(2, g, w, dx, I, H, W, O, KH); break;
        case 3: OWN(input_planes)(3, g, w, dx, I, H, W, O, KH); break;
        case 4: OWN(input_planes)(4, g, w, dx, I, H, W, O, KH); break;
        case 5: OWN(input_planes)(5, g, w, dx, I, H, W, O, KH); break;
        case 6: OWN(input_planes)(6, g, w, dx, I, H, W, O, KH); break;
        case 7: OWN(input_planes)(7, g, w, dx, I, H, W, O, KH); break;
    }
}

// Lane by lane one or the other.
INLINE lane OWN(chosen)(number first, lane one, lane other) { return (lane)((first & (number)one) | (~first & (number)other)); }

// The largest number of each window of KH by KW, windows side by side, and which of its numbers that is, the first of equals; a
// number that is none wins, as torch has it. Planes are (P, H, W).
void OWN(hubbub_largest)(const lane *in, lane *out, number *which, long P, long H, long W, long KH, long KW) {
    const long OH = H / KH, OW = W / KW;
    for (long p = 0; p < P; p++, in += H * W)
        for (long y = 0; y < OH; y++)
            for (long x = 0; x < OW; x++) {
                const lane *corner = in + y * KH * W + x * KW;
                lane most = corner[0];
                number place = {0};
                for (int kh = 0; kh < KH; kh++)
                    for (int kw = 0; kw < KW; kw++) {
                        const lane value = corner[kh * W + kw];
                        const number better = (value > most) | (value != value);
                        most = OWN(chosen)(better, value, most);
                        place = (better & (int)(kh * KW + kw)) | (~better & place);
                    }
                *out++ = most;
                *which++ = place;
            }
}

// Each slope where the largest number was, 0 elsewhere.
void OWN(hubbub_spread)(const lane *g, const number *which, lane *dx, long P, long H, long W, long KH, long KW) {
    const long OH = H / KH, OW = W / KW;
    const lane none = {0};
    if (H % KH || W % KW) memset(dx, 0, sizeof(lane) * (size_t)(P * H * W));
    for (long p = 0; p < P; p++, dx += H * W)
        for (long y = 0; y < OH; y++)
            for (long x = 0; x < OW; x++, g++, which++)
                for (int kh = 0; kh < KH; kh++)
                    for (int kw = 0; kw < KW; kw++)
                        dx[(y * KH + kh) * W + x * KW + kw] = OWN(chosen)(*which == (int)(kh * KW + kw), *g, none);
}

#undef lane
#undef number

#endif
