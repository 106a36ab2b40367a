/* exp and log in a few dozen IEEE operations each, correct to eight digits. The mixture needs no more digits, and the
 * calls and branches of libm took a sixth of a draft's time. tests/drafter/reference.py performs the same operations in
 * the same order, so both give the same bits. */
#include <stdint.h>

#define LN2 0.6931471805599453

typedef double Lanes __attribute__((vector_size(32), aligned(8)));
typedef int64_t Ints __attribute__((vector_size(32), aligned(8)));

/* exp(x) of four numbers x <= 0. Below -40 the result is exp(-40). */
static Lanes exp_lanes(Lanes x) {
    const Lanes lowest = {-40.0, -40.0, -40.0, -40.0};
    Ints above = x > lowest;                           /* all bits set where true */
    x = (Lanes)(((Ints)x & above) | ((Ints)lowest & ~above));
    Ints n = __builtin_convertvector(x * 1.4426950408889634 - 0.5, Ints);
    Lanes r = x - __builtin_convertvector(n, Lanes) * LN2;
    Lanes p = 1.0 / 5040.0 * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return p * (Lanes)((n + 1023) << 52);
}

/* log(x) of four positive, normal numbers x = m * 2^e, 0.5 <= m < 1. */
static Lanes log_lanes(Lanes x) {
    Ints bits = (Ints)x, e = (bits >> 52) - 1022;
    Lanes m = (Lanes)((bits & 0xFFFFFFFFFFFFFll) | 0x3FE0000000000000ll);
    Ints low = m < 0.7071067811865476;                 /* -1 where true */
    m += (Lanes)((Ints)m & low);
    e += low;
    Lanes s = (m - 1.0) / (m + 1.0), z = s * s, p = 1.0 / 9.0 * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    p = p * z + 1.0;
    return __builtin_convertvector(e, Lanes) * LN2 + (s + s) * p;
}

static double exp_of(double x) { return exp_lanes((Lanes){x, x, x, x})[0]; }
static double log_of(double x) { return log_lanes((Lanes){x, x, x, x})[0]; }
