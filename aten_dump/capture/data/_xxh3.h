/* XXH3, 64 bits, seed 0, of long data that may come in pieces: the numbers that the library xxhash makes.
 *
 * After the specification of Yann Collet, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md: eight sums take
 * stripes of 64 bytes, mixed with a secret that moves on by 8 bytes a stripe; after 16 stripes they are scrambled. The
 * last stripe is that of the last 64 bytes, which may have been taken already. Data of at most 240 bytes are mixed
 * in other ways, which are not here.
 */

#ifndef ATEN_DUMP_XXH3_H
#define ATEN_DUMP_XXH3_H

#include <stdint.h>
#include <string.h>

#define XXH3_LEAST 241 /* bytes */
#define STRIPE 64
#define SECRET 192
#define STRIPES 16 /* between two scrambles */
#define XXH3_BLOCK (STRIPES * STRIPE)
#define XXH3_AHEAD 1024 /* bytes that are asked for before they are needed */

static const uint64_t PRIME_1 = 0x9E3779B185EBCA87, PRIME_2 = 0xC2B2AE3D27D4EB4F, PRIME_3 = 0x165667B19E3779F9,
                      PRIME_4 = 0x85EBCA77C2B2AE63, PRIME_5 = 0x27D4EB2F165667C5;
static const uint64_t PRIME_32_1 = 0x9E3779B1, PRIME_32_2 = 0x85EBCA77, PRIME_32_3 = 0xC2B2AE3D;

static const uint8_t XXH3_SECRET[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

typedef struct {
    uint64_t sums[8];
    uint64_t nbytes;         /* that came so far */
    int stripes;             /* since the last scramble */
    int kept;                /* bytes in `rest` that are in no stripe yet; 1 to 64 once there are any */
    uint8_t rest[2 * STRIPE]; /* the 64 bytes before these, and these */
} Xxh3;

static uint64_t xxh3_word(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Take stripes that lie in a row, with the secret from `secret` on; none of them is the last before a scramble. */
static void stripes_plain(uint64_t *sums, const uint8_t *data, const uint8_t *secret, int64_t count)
{
    for (; count > 0; count--, data += STRIPE, secret += 8)
        for (int i = 0; i < 8; i++) {
            const uint64_t word = xxh3_word(data + 8 * i), key = word ^ xxh3_word(secret + 8 * i);
            sums[i ^ 1] += word;
            sums[i] += (key & 0xFFFFFFFF) * (key >> 32);
        }
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

__attribute__((target("avx2"))) static void stripes_avx2(uint64_t *sums, const uint8_t *data, const uint8_t *secret,
                                                         int64_t count)
{
    __m256i low = _mm256_loadu_si256((const void *)sums), high = _mm256_loadu_si256((const void *)(sums + 4));
    for (; count > 0; count--, data += STRIPE, secret += 8) {
        _mm_prefetch((const char *)((uintptr_t)data + XXH3_AHEAD), _MM_HINT_T0);
        const __m256i a = _mm256_loadu_si256((const void *)data), b = _mm256_loadu_si256((const void *)(data + 32));
        const __m256i c = _mm256_xor_si256(a, _mm256_loadu_si256((const void *)secret));
        const __m256i d = _mm256_xor_si256(b, _mm256_loadu_si256((const void *)(secret + 32)));
        low = _mm256_add_epi64(low, _mm256_shuffle_epi32(a, 0x4E));
        high = _mm256_add_epi64(high, _mm256_shuffle_epi32(b, 0x4E));
        low = _mm256_add_epi64(low, _mm256_mul_epu32(c, _mm256_srli_epi64(c, 32)));
        high = _mm256_add_epi64(high, _mm256_mul_epu32(d, _mm256_srli_epi64(d, 32)));
    }
    _mm256_storeu_si256((void *)sums, low);
    _mm256_storeu_si256((void *)(sums + 4), high);
}

static void take_stripes(uint64_t *sums, const uint8_t *data, const uint8_t *secret, int64_t count)
{
    if (__builtin_cpu_supports("avx2"))
        stripes_avx2(sums, data, secret, count);
    else
        stripes_plain(sums, data, secret, count);
}
#else
static void take_stripes(uint64_t *sums, const uint8_t *data, const uint8_t *secret, int64_t count)
{
    stripes_plain(sums, data, secret, count);
}
#endif

static void scramble(uint64_t *sums)
{
    for (int i = 0; i < 8; i++) {
        sums[i] ^= sums[i] >> 47;
        sums[i] ^= xxh3_word(XXH3_SECRET + SECRET - STRIPE + 8 * i);
        sums[i] *= PRIME_32_1;
    }
}

static void xxh3_begin(Xxh3 *hash)
{
    const uint64_t first[8] = {PRIME_32_3, PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_32_2, PRIME_5, PRIME_32_1};
    memset(hash, 0, sizeof *hash);
    memcpy(hash->sums, first, sizeof first);
}

/* Take stripes after which more data come. */
static void xxh3_stripes(Xxh3 *hash, const uint8_t *data, int64_t count)
{
    while (count > 0) {
        const int64_t some = count < STRIPES - hash->stripes ? count : STRIPES - hash->stripes;
        take_stripes(hash->sums, data, XXH3_SECRET + 8 * hash->stripes, some);
        data += some * STRIPE;
        count -= some;
        hash->stripes += (int)some;
        if (hash->stripes == STRIPES) {
            scramble(hash->sums);
            hash->stripes = 0;
        }
    }
}

/* Take the next piece, of at least 64 bytes but for the last one. */
static void xxh3_update(Xxh3 *hash, const void *piece, int64_t nbytes)
{
    const uint8_t *data = piece;
    hash->nbytes += (uint64_t)nbytes;
    if (hash->kept && nbytes > 0) { /* fill the stripe that was begun */
        const int64_t some = nbytes < STRIPE - hash->kept ? nbytes : STRIPE - hash->kept;
        memcpy(hash->rest + STRIPE + hash->kept, data, (size_t)some);
        hash->kept += (int)some;
        data += some;
        nbytes -= some;
    }
    if (nbytes == 0)
        return;
    if (hash->kept) { /* it is whole, and not the last one */
        xxh3_stripes(hash, hash->rest + STRIPE, 1);
        memcpy(hash->rest, hash->rest + STRIPE, STRIPE);
    }
    const int64_t whole = (nbytes - 1) / STRIPE;
    xxh3_stripes(hash, data, whole);
    if (whole > 0)
        memcpy(hash->rest, data + (whole - 1) * STRIPE, STRIPE);
    hash->kept = (int)(nbytes - whole * STRIPE);
    memcpy(hash->rest + STRIPE, data + whole * STRIPE, (size_t)hash->kept);
}

static uint64_t folded_product(uint64_t a, uint64_t b)
{
    const uint64_t low = (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF), cross_1 = (a >> 32) * (b & 0xFFFFFFFF);
    const uint64_t cross_2 = (a & 0xFFFFFFFF) * (b >> 32), high = (a >> 32) * (b >> 32);
    const uint64_t middle = (low >> 32) + (cross_1 & 0xFFFFFFFF) + cross_2;
    return (high + (cross_1 >> 32) + (middle >> 32)) ^ ((middle << 32) | (low & 0xFFFFFFFF));
}

/* Return the hash of all that came, of which there were XXH3_LEAST bytes or more. */
static uint64_t xxh3_end(Xxh3 *hash)
{
    uint64_t found = hash->nbytes * PRIME_1;
    take_stripes(hash->sums, hash->rest + hash->kept, XXH3_SECRET + SECRET - STRIPE - 7, 1);
    for (int i = 0; i < 4; i++)
        found += folded_product(hash->sums[2 * i] ^ xxh3_word(XXH3_SECRET + 11 + 16 * i),
                                hash->sums[2 * i + 1] ^ xxh3_word(XXH3_SECRET + 11 + 16 * i + 8));
    found ^= found >> 37;
    found *= 0x165667919E3779F9;
    return found ^ (found >> 32);
}

#endif
