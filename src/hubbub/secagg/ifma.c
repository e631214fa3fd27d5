/* Arithmetic modulo an odd number, for eight numbers at a time: what hubbub.secagg.kernel calls where a processor has AVX-512 IFMA.
 *
 * A number is written in limbs of 52 bits; limb j of eight numbers is one register of eight lanes. Montgomery's form, with
 * R = 2^(52 L) and R > 4 m: factors below 2 m give products below 2 m, so that nothing is subtracted before the end.
 *
 * Sums of limbs grow beyond 52 bits and are carried once: a place gets at most 4 L halves of products, each below 2^52, and a
 * carry; with L <= LARGEST = 512 that is below 2^64, also where some of them are doubled.
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
#define LARGEST 512
/* Of combine(): with them a sum of slopes is below 2^(52 (half + 1)). */
#define MOST_PARTS 32
#define MOST_QUADS 512

typedef __m512i lanes;

typedef struct {
    long limbs;       /* L */
    lanes *modulus;   /* (L,), m in every lane */
    lanes undo;       /* -1/m mod 2^52 */
    lanes *sums;      /* (2 L,), for products */
} ring;

static const uint64_t MASK = ((uint64_t)1 << LIMB_BITS) - 1;

int hubbub_supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512ifma");
}

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

/* The sum of a place, where x0 .. x4 are the limbs of x there and at the four places below. */
WIDE static inline __attribute__((always_inline)) lanes added(lanes sum, lanes x0, lanes x1, lanes x2, lanes x3, lanes x4,
                                                              const lanes *y) {
    lanes high = _mm512_madd52hi_epu64(_mm512_setzero_si512(), x1, y[0]);
    sum = _mm512_madd52lo_epu64(sum, x0, y[0]);
    high = _mm512_madd52hi_epu64(high, x2, y[1]);
    sum = _mm512_madd52lo_epu64(sum, x1, y[1]);
    high = _mm512_madd52hi_epu64(high, x3, y[2]);
    sum = _mm512_madd52lo_epu64(sum, x2, y[2]);
    high = _mm512_madd52hi_epu64(high, x4, y[3]);
    sum = _mm512_madd52lo_epu64(sum, x3, y[3]);
    return _mm512_add_epi64(sum, high);
}

/* sums += x (y0 + y1 B + y2 B^2 + y3 B^3) with B = 2^52; touches sums[0 .. length + ROWS - 1]. */
WIDE static inline void add_rows(lanes *sums, const lanes *x, long length, const lanes *rows) {
    const lanes y[ROWS] = {rows[0], rows[1], rows[2], rows[3]}, zero = _mm512_setzero_si512();
    lanes x1 = zero, x2 = zero, x3 = zero, x4 = zero;
    for (long k = 0; k < length; k++) {
        const lanes x0 = x[k];
        sums[k] = added(sums[k], x0, x1, x2, x3, x4, y);
        x4 = x3, x3 = x2, x2 = x1, x1 = x0;
    }
    for (long k = length; k < length + ROWS; k++) {
        sums[k] = added(sums[k], zero, x1, x2, x3, x4, y);
        x4 = x3, x3 = x2, x2 = x1, x1 = zero;
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
    clear(r->sums, 2 * r->limbs);
    for (long i = 0; i < r->limbs; i += ROWS) add_rows(r->sums + i, a, r->limbs, b + i);
    reduce(to, r);
}

/* a^2 / R mod m, below 2 m: what is beside the squares of the blocks of ROWS limbs is there twice. */
WIDE static void square(lanes *to, const lanes *a, const ring *r) {
    const long limbs = r->limbs;
    clear(r->sums, 2 * limbs);
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
    /* All bits where x is smaller than m, or none. */
    const lanes keep = _mm512_sub_epi64(_mm512_setzero_si512(), borrow);
    for (long j = 0; j < r->limbs; j++) {
        x[j] = _mm512_or_si512(_mm512_and_si512(keep, x[j]), _mm512_andnot_si512(keep, r->sums[j]));
    }
}

/* Memory for so many registers, the first of them for a ring; NULL where there is none. */
WIDE static lanes *begin(ring *r, const uint64_t *modulus, long words, uint64_t undo, long limbs, long registers) {
    if (limbs < ROWS || limbs > LARGEST || limbs % ROWS) return NULL;
    lanes *memory = aligned_alloc(sizeof(lanes), (size_t)(registers + 3 * limbs) * sizeof(lanes));
    if (memory == NULL) return NULL;
    *r = (ring){limbs, memory, _mm512_set1_epi64((long long)undo), memory + limbs};
    spread(r->modulus, modulus, words, limbs);
    return memory;
}

/* Nothing secret stays in memory that is given back. */
static void end(lanes *memory, long limbs, long registers) {
    const size_t size = (size_t)(registers + 3 * limbs) * sizeof(lanes);
    memset(memory, 0, size);
    __asm__ volatile("" : : "r"(memory) : "memory");
    free(memory);
}

/* table[digit], by reading all of it. */
WIDE static void chosen(lanes *to, const lanes *table, long limbs, long digit) {
    clear(to, limbs);
    for (long entry = 0; entry < ENTRIES; entry++) {
        /* All bits, or none; not a mask register, under which a load may be left out. */
        const lanes take = _mm512_set1_epi64(((entry ^ digit) - 1) >> (WORD_BITS - 1));
        for (long j = 0; j < limbs; j++) to[j] = _mm512_or_si512(to[j], _mm512_and_si512(table[entry * limbs + j], take));
    }
}

/* base^exponent for lanes in `x`, which the result replaces; the exponent's digits of WINDOW bits, the highest first. */
WIDE static void raised(lanes *x, lanes *table, lanes *factor, const lanes *square_of_r, const uint8_t *digits, long length,
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
    lanes *x = r.sums + 2 * limbs, *factor = x + limbs, *constant = factor + limbs, *table = constant + limbs;
    spread(constant, square_of_r, words, limbs);
    for (long first = 0; first < count; first += LANES) {
        const long taken = count - first < LANES ? count - first : LANES;
        clear(x, limbs);
        for (long i = 0; i < taken; i++) split(bases + (first + i) * words, words, (uint64_t *)x + i, limbs, LANES);
        raised(x, table, factor, constant, digits, length, &r);
        for (long i = 0; i < taken; i++) join((uint64_t *)x + i, limbs, LANES, to + (first + i) * words, words);
    }
    end(memory, limbs, registers);
    return 0;
}

/* Limbs of eight rows of a table, row by row, as lanes. */
WIDE static void gather(lanes *to, const uint64_t *const *rows, long length) {
    const lanes first = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), second = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    for (long j = 0; j < length; j += ROWS) {
        lanes t[LANES / 2];
        for (int i = 0; i < LANES / 2; i++) {
            const __m256i low = _mm256_loadu_si256((const __m256i *)(rows[i] + j));
            const __m256i high = _mm256_loadu_si256((const __m256i *)(rows[i + LANES / 2] + j));
            t[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        }
        const lanes even = _mm512_unpacklo_epi64(t[0], t[1]), even_above = _mm512_unpacklo_epi64(t[2], t[3]);
        const lanes odd = _mm512_unpackhi_epi64(t[0], t[1]), odd_above = _mm512_unpackhi_epi64(t[2], t[3]);
        to[j] = _mm512_permutex2var_epi64(even, first, even_above);
        to[j + 1] = _mm512_permutex2var_epi64(odd, first, odd_above);
        to[j + 2] = _mm512_permutex2var_epi64(even, second, even_above);
        to[j + 3] = _mm512_permutex2var_epi64(odd, second, odd_above);
    }
}

/* Where combine() works. A row of the table is a residue mod n and then a slope, `half` limbs each. */
typedef struct {
    const uint64_t *table;
    long half;
    lanes *one, *other;   /* (half,), residues */
    lanes *left, *right;  /* (L,), products of two residues */
    uint64_t *slopes;     /* (LANES, half + 1) */
} comb;

/* A row of the table. */
static inline const uint64_t *row(const comb *c, uint32_t index) { return c->table + (size_t)index * 2 * (size_t)c->half; }

/* The product of two residues, below m = n^2, and their slopes added to those of each lane. The rows of the pair that is `ahead`
 * indices from here are asked for early: a table is larger than the caches near the processor. */
WIDE static void pair(lanes *to, const comb *c, const uint32_t *indices, long steps, long ahead, const ring *r) {
    lanes *const residues[2] = {c->one, c->other};
    const uint64_t *rows[LANES];
    for (int k = 0; k < 2; k++) {
        for (long lane = 0; lane < LANES; lane++) {
            const uint64_t *soon = row(c, indices[lane * steps + k + ahead]);
            for (long j = 0; j < 2 * c->half; j += LANES) __builtin_prefetch(soon + j);
            rows[lane] = row(c, indices[lane * steps + k]);
            uint64_t *slope = c->slopes + lane * (c->half + 1);
            for (long j = 0; j < c->half; j++) slope[j] += rows[lane][c->half + j];
        }
        gather(residues[k], rows, c->half);
    }
    clear(r->sums, 2 * c->half);
    for (long i = 0; i < c->half; i += ROWS) add_rows(r->sums + i, c->one, c->half, c->other + i);
    carried(to, r->sums, r->limbs);
}

/* Slopes as limbs below 2^52, times 1 or 2. */
static void settle(uint64_t *slopes, long half, int doubled) {
    for (long lane = 0; lane < LANES; lane++, slopes += half + 1) {
        uint64_t carry = 0;
        for (long j = 0; j <= half; j++) {
            const uint64_t sum = (slopes[j] << doubled) + carry;
            slopes[j] = sum & MASK;
            carry = sum >> LIMB_BITS;
        }
    }
}

/* Products of entries of a table, for `count` rows of indices, a multiple of LANES. A row is made of parts, a part of quads of
 * indices; from part to part the product is squared and the sum of the slopes doubled. 0, or -1 for sizes beyond the bounds or
 * where there is no memory. `correction` undoes the powers of R. */
WIDE int hubbub_combine(const uint64_t *modulus, const uint64_t *correction, uint64_t undo, long words, long limbs,
                        const uint64_t *table, long half, const uint32_t *indices, const int64_t *quads, long parts,
                        uint64_t *products, uint64_t *slopes, long slope_words, long count) {
    if (parts < 1 || parts > MOST_PARTS || half % ROWS || half > limbs || 2 * half < limbs || count % LANES) return -1;
    long steps = 0;
    for (long part = 0; part < parts; part++) {
        if (quads[part] < 1 || quads[part] > MOST_QUADS) return -1;
        steps += 4 * quads[part];
    }
    ring r;
    const long registers = 4 * limbs + 3 * half + 1;
    lanes *memory = begin(&r, modulus, words, undo, limbs, registers);
    if (memory == NULL) return -1;
    lanes *x = r.sums + 2 * limbs, *constant = x + limbs, *left = constant + limbs, *right = left + limbs, *one = right + limbs;
    const comb c = {table, half, one, one + half, left, right, (uint64_t *)(one + 2 * half)};
    spread(constant, correction, words, limbs);
    for (long group = 0; group < count; group += LANES) {
        const uint32_t *next = indices + group * steps;
        memset(c.slopes, 0, (size_t)(LANES * (half + 1)) * sizeof(uint64_t));
        for (long part = 0; part < parts; part++) {
            if (part > 0) {
                square(x, x, &r);
                settle(c.slopes, half, 1);
            }
            for (long quad = 0; quad < quads[part]; quad++, next += 4) {
                const int ends = part == parts - 1 && quad == quads[part] - 1;
                pair(c.left, &c, next, steps, 2, &r);
                pair(c.right, &c, next + 2, steps, ends ? 0 : 2, &r);
                const int begins = part == 0 && quad == 0;
                multiply(begins ? x : c.left, c.left, c.right, &r);
                if (!begins) multiply(x, x, c.left, &r);
            }
            settle(c.slopes, half, 0);
        }
        multiply(x, x, constant, &r);
        least(x, &r);
        for (long lane = 0; lane < LANES; lane++) {
            join((uint64_t *)x + lane, limbs, LANES, products + (group + lane) * words, words);
            join(c.slopes + lane * (half + 1), half + 1, 1, slopes + (group + lane) * slope_words, slope_words);
        }
    }
    end(memory, limbs, registers);
    return 0;
}

/* Numbers of `words` words as rows of `length` limbs. */
void hubbub_split(const uint64_t *numbers, long words, long count, uint64_t *to, long length) {
    for (long i = 0; i < count; i++) split(numbers + i * words, words, to + i * length, length, 1);
}
