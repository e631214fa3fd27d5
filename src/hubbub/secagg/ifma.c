/* Arithmetic modulo an odd number, for eight numbers at a time: what hubbub.secagg.kernel calls where a processor has AVX-512 IFMA.
 *
 * A number is written in limbs of 52 bits; limb j of eight numbers is one register of eight lanes. Montgomery's form, with
 * R = 2^(52 L) and R > 4 m: factors below 2 m give products below 2 m, so that nothing is subtracted before the end.
 *
 * Sums of limbs grow beyond 52 bits and are carried once: a place gets at most 4 L halves of products, each below 2^52, and a
 * carry; with L <= LARGEST = 1024 that is below 2^64, also where half of them are doubled.
 *
 * Time and addresses do not depend on the numbers, nor on the exponent beyond its length. Only combine() looks entries of a
 * table up by their number. Whoever calls has checked all sizes; numbers are below the modulus.
 *
 * Source: Montgomery 1985, https://doi.org/10.1090/S0025-5718-1985-0777282-X; Gueron & Krasnov 2012, "Software implementation of
 * modular exponentiation, using advanced vector instructions architectures", https://doi.org/10.1007/978-3-642-31662-3_9.
 */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WIDE __attribute__((target("avx512f,avx512ifma")))
#define LANES 8
#define LIMB_BITS 52
#define WORD_BITS 64
/* Rows of a product that are added in one pass over it; L is a multiple. */
#define ROWS 4
#define WINDOW 5
#define ENTRIES (1 << WINDOW)
#define LARGEST 1024

typedef __m512i lanes;

typedef struct {
    long limbs;       /* L */
    lanes *modulus;   /* (L,), m in every lane */
    lanes undo;       /* -1/m mod 2^52 */
    lanes *sums;      /* (2 L + ROWS,), for products */
} ring;

static const uint64_t MASK = ((uint64_t)1 << LIMB_BITS) - 1;

int hubbub_supported(void) { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512ifma"); }

/* Words of 64 bits as limbs of 52, `stride` apart; bits beyond the words are 0, bits beyond the limbs are left out. */
static void split(const uint64_t *words, long count, uint64_t *limbs, long length, long stride) {
    for (long j = 0; j < length; j++) {
        long word = j * LIMB_BITS / WORD_BITS, shift = j * LIMB_BITS % WORD_BITS;
        uint64_t limb = word < count ? words[word] >> shift : 0;
        if (shift > WORD_BITS - LIMB_BITS && word + 1 < count) limb |= words[word + 1] << (WORD_BITS - shift);
        limbs[j * stride] = limb & MASK;
    }
}

/* The way back. */
static void join(const uint64_t *limbs, long length, long stride, uint64_t *words, long count) {
    memset(words, 0, (size_t)count * sizeof *words);
    for (long j = 0; j < length; j++) {
        long word = j * LIMB_BITS / WORD_BITS, shift = j * LIMB_BITS % WORD_BITS;
        uint64_t limb = limbs[j * stride];
        if (word < count) words[word] |= limb << shift;
        if (shift > WORD_BITS - LIMB_BITS && word + 1 < count) words[word + 1] |= limb >> (WORD_BITS - shift);
    }
}

/* One number in every lane. */
WIDE static void spread(lanes *to, const uint64_t *words, long count, long length) {
    for (long lane = 0; lane < LANES; lane++) split(words, count, (uint64_t *)to + lane, length, LANES);
}

/* sums += x (y0 + y1 B + y2 B^2 + y3 B^3) with B = 2^52; touches sums[0 .. length + ROWS - 1]. */
WIDE static inline void add_rows(lanes *sums, const lanes *x, long length, const lanes *y) {
    const lanes y0 = y[0], y1 = y[1], y2 = y[2], y3 = y[3], zero = _mm512_setzero_si512();
    lanes x1 = zero, x2 = zero, x3 = zero, x4 = zero;
    for (long k = 0; k < length + ROWS; k++) {
        const lanes x0 = k < length ? x[k] : zero;
        lanes low = sums[k], high = zero;
        low = _mm512_madd52lo_epu64(low, x0, y0);
        high = _mm512_madd52hi_epu64(high, x1, y0);
        low = _mm512_madd52lo_epu64(low, x1, y1);
        high = _mm512_madd52hi_epu64(high, x2, y1);
        low = _mm512_madd52lo_epu64(low, x2, y2);
        high = _mm512_madd52hi_epu64(high, x3, y2);
        low = _mm512_madd52lo_epu64(low, x3, y3);
        high = _mm512_madd52hi_epu64(high, x4, y3);
        sums[k] = _mm512_add_epi64(low, high);
        x4 = x3, x3 = x2, x2 = x1, x1 = x0;
    }
}

/* Sums as limbs below 2^52; what is carried out of the last is 0 or to be left out. */
WIDE static inline void carried(lanes *to, const lanes *sums, long length) {
    const lanes mask = _mm512_set1_epi64((long long)MASK);
    lanes carry = _mm512_setzero_si512();
    for (long j = 0; j < length; j++) {
        const lanes sum = _mm512_add_epi64(sums[j], carry);
        to[j] = _mm512_and_si512(sum, mask);
        carry = _mm512_srli_epi64(sum, LIMB_BITS);
    }
}

WIDE static inline void clear(lanes *sums, long length) {
    for (long j = 0; j < length; j++) sums[j] = _mm512_setzero_si512();
}

/* The multiple of m by which the lowest ROWS limbs of the sums become 0. */
WIDE static inline void multiple(lanes *q, const lanes *sums, const ring *r) {
    const lanes zero = _mm512_setzero_si512(), *m = r->modulus;
    lanes t[ROWS + 1] = {sums[0], sums[1], sums[2], sums[3], zero};
    for (int i = 0; i < ROWS; i++) {
        q[i] = _mm512_madd52lo_epu64(zero, t[i], r->undo);
        for (int j = i; j < ROWS; j++) {
            t[j] = _mm512_madd52lo_epu64(t[j], q[i], m[j - i]);
            t[j + 1] = _mm512_madd52hi_epu64(t[j + 1], q[i], m[j - i]);
        }
        t[i + 1] = _mm512_add_epi64(t[i + 1], _mm512_srli_epi64(t[i], LIMB_BITS));
    }
}

/* r->sums / R mod m, below 2 m where the sums are below 4 m^2. */
WIDE static void reduce(lanes *to, const ring *r) {
    lanes q[ROWS];
    for (long i = 0; i < r->limbs; i += ROWS) {
        lanes *sums = r->sums + i;
        multiple(q, sums, r);
        add_rows(sums, r->modulus, r->limbs, q);
        lanes carry = _mm512_srli_epi64(sums[0], LIMB_BITS);
        for (int j = 1; j < ROWS; j++) carry = _mm512_srli_epi64(_mm512_add_epi64(sums[j], carry), LIMB_BITS);
        sums[ROWS] = _mm512_add_epi64(sums[ROWS], carry);
    }
    carried(to, r->sums + r->limbs, r->limbs);
}

/* a b / R mod m, below 2 m; `to` may be a or b. */
WIDE static void multiply(lanes *to, const lanes *a, const lanes *b, const ring *r) {
    clear(r->sums, 2 * r->limbs + ROWS);
    for (long i = 0; i < r->limbs; i += ROWS) add_rows(r->sums + i, a, r->limbs, b + i);
    reduce(to, r);
}

/* a^2 / R mod m, below 2 m: what is beside the squares of the blocks of ROWS limbs is there twice. */
WIDE static void square(lanes *to, const lanes *a, const ring *r) {
    const long limbs = r->limbs;
    clear(r->sums, 2 * limbs + ROWS);
    for (long i = 0; i < limbs - ROWS; i += ROWS) add_rows(r->sums + 2 * i + ROWS, a + i + ROWS, limbs - i - ROWS, a + i);
    for (long j = 0; j < 2 * limbs; j++) r->sums[j] = _mm512_slli_epi64(r->sums[j], 1);
    for (long i = 0; i < limbs; i += ROWS) add_rows(r->sums + 2 * i, a + i, ROWS, a + i);
    reduce(to, r);
}

/* x below 2 m as x mod m. */
WIDE static void least(lanes *x, const ring *r) {
    const lanes mask = _mm512_set1_epi64((long long)MASK);
    lanes borrow = _mm512_setzero_si512();
    for (long j = 0; j < r->limbs; j++) {
        const lanes rest = _mm512_sub_epi64(_mm512_sub_epi64(x[j], r->modulus[j]), borrow);
        r->sums[j] = _mm512_and_si512(rest, mask);
        borrow = _mm512_srli_epi64(rest, WORD_BITS - 1);
    }
    const __mmask8 smaller = _mm512_test_epi64_mask(borrow, borrow);
    for (long j = 0; j < r->limbs; j++) x[j] = _mm512_mask_mov_epi64(r->sums[j], smaller, x[j]);
}

/* Memory for so many registers, the first of them for a ring; NULL where there is none. */
WIDE static lanes *begin(ring *r, const uint64_t *modulus, long words, uint64_t undo, long limbs, long registers) {
    if (limbs < ROWS || limbs > LARGEST || limbs % ROWS) return NULL;
    lanes *memory = aligned_alloc(sizeof(lanes), (size_t)(registers + 3 * limbs + ROWS) * sizeof(lanes));
    if (memory == NULL) return NULL;
    *r = (ring){limbs, memory, _mm512_set1_epi64((long long)undo), memory + limbs};
    spread(r->modulus, modulus, words, limbs);
    return memory;
}

/* Nothing secret stays in memory that is given back. */
static void end(lanes *memory, long limbs, long registers) {
    const size_t size = (size_t)(registers + 3 * limbs + ROWS) * sizeof(lanes);
    memset(memory, 0, size);
    __asm__ volatile("" : : "r"(memory) : "memory");
    free(memory);
}

/* table[digit], by reading all of it. */
WIDE static void chosen(lanes *to, const lanes *table, long limbs, long digit) {
    clear(to, limbs);
    for (long entry = 0; entry < ENTRIES; entry++) {
        const __mmask8 take = _mm512_cmpeq_epi64_mask(_mm512_set1_epi64(entry), _mm512_set1_epi64(digit));
        for (long j = 0; j < limbs; j++) to[j] = _mm512_mask_mov_epi64(to[j], take, table[entry * limbs + j]);
    }
}

/* base^exponent for lanes in `x`, which the result replaces; the exponent's digits of WINDOW bits, the highest first. */
WIDE static void raise(lanes *x, lanes *table, lanes *factor, const lanes *square_of_r, const uint8_t *digits, long length,
                       const ring *r) {
    const long limbs = r->limbs;
    clear(factor, limbs);
    factor[0] = _mm512_set1_epi64(1);
    multiply(table, square_of_r, factor, r);
    multiply(table + limbs, square_of_r, x, r);
    for (long entry = 2; entry < ENTRIES; entry++) {
        if (entry % 2) multiply(table + entry * limbs, table + (entry - 1) * limbs, table + limbs, r);
        else square(table + entry * limbs, table + entry / 2 * limbs, r);
    }
    memcpy(x, table, (size_t)limbs * sizeof(lanes));
    for (long i = 0; i < length; i++) {
        for (int bit = 0; bit < WINDOW && i > 0; bit++) square(x, x, r);
        chosen(factor, table, limbs, digits[i]);
        multiply(x, x, factor, r);
    }
    clear(factor, limbs);
    factor[0] = _mm512_set1_epi64(1);
    multiply(x, x, factor, r);
    least(x, r);
}

/* `count` numbers of `words` words each to one power; 0, or -1 where there is no memory. `to` may be `bases`. */
WIDE int hubbub_powers(const uint64_t *modulus, const uint64_t *square_of_r, uint64_t undo, long words, long limbs,
                       const uint8_t *digits, long length, const uint64_t *bases, uint64_t *to, long count) {
    ring r;
    const long registers = (ENTRIES + 3) * limbs;
    lanes *memory = begin(&r, modulus, words, undo, limbs, registers);
    if (memory == NULL) return -1;
    lanes *x = r.sums + 2 * limbs + ROWS, *factor = x + limbs, *constant = factor + limbs, *table = constant + limbs;
    spread(constant, square_of_r, words, limbs);
    for (long first = 0; first < count; first += LANES) {
        const long taken = count - first < LANES ? count - first : LANES;
        clear(x, limbs);
        for (long i = 0; i < taken; i++) split(bases + (first + i) * words, words, (uint64_t *)x + i, limbs, LANES);
        raise(x, table, factor, constant, digits, length, &r);
        for (long i = 0; i < taken; i++) join((uint64_t *)x + i, limbs, LANES, to + (first + i) * words, words);
    }
    end(memory, limbs, registers);
    return 0;
}
