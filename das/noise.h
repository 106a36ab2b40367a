/* Noise of the keyed sampler: a pure function of (request seed, position, token). The verifier (das/verify/keyed.c) and
 * the drafter that knows the noise beforehand (das/drafter/mix.h) compile the same functions and get the same bits.
 *
 * Every floating-point step is an IEEE addition, multiplication or division in a fixed order. There is no libm and no
 * fused multiply-add, so das/verify/noise.py repeats the steps bit for bit with torch tensors on any device. */
#include <stdint.h>
#include <string.h>

static inline uint32_t mix32(uint32_t h) {
    h ^= h >> 16; h *= 0x21f0aaadu;
    h ^= h >> 15; h *= 0xd35a2d97u;
    h ^= h >> 15;
    return h;
}

// log(x) for normal x > 0. Splits x into an exponent e and a mantissa m in [sqrt(1/2), sqrt(2)); then
// log(m) = 2 atanh((m-1)/(m+1)), as a polynomial.
static inline float soft_log(float x) {
    uint32_t bits; memcpy(&bits, &x, 4);
    int32_t e = (int32_t)((bits - 0x3f3504f3u) >> 23);        // floor(log2(x / sqrt(1/2)))
    e = (e ^ 0x100) - 0x100;                                   // sign-extend 9 bits
    uint32_t mbits = bits - ((uint32_t)e << 23);
    float m; memcpy(&m, &mbits, 4);
    float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float p = 0.22222222f;
    p = p * z; p = p + 0.2857142857f;
    p = p * z; p = p + 0.4f;
    p = p * z; p = p + 0.6666666667f;
    p = p * z; p = p + 2.0f;
    float r = s * p, k = (float)e * 0.69314718056f;
    return k + r;
}

static inline float gumbel(uint32_t key0, uint32_t key1, uint32_t token) {
    uint32_t x = mix32(mix32(token * 0x9e3779b1u + key0) ^ key1);
    float w = ((float)(int32_t)(x >> 1) + 0.5f) * 4.656612873e-10f;  // in (0, 1), 31 bits, fine near 0
    w = w < 0.99999994f ? w : 0.99999994f;
    // The exponential -log(1 - w) is computed as -log(u) * w / (1 - u) with u = 1 - w. That is exact to rounding for
    // small w too, and small w win.
    float u = 1.0f - w, d = 1.0f - u;
    float l = -soft_log(u) * w;
    float e = d > 0.0f ? l / d : w;
    return -soft_log(e);
}

static inline uint64_t splitmix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The noise key of a position of a request. */
static inline uint64_t noise_key(int64_t seed, int64_t position) {
    return splitmix64(splitmix64((uint64_t)seed) ^ (uint64_t)position);
}
