/* Exponentials and logarithms in double precision, computed from the bits of this format. */

typedef double real;

#define LARGEST_EXPONENT 709.0 /* largest number: exp(709.78) */
#define SMALLEST_EXPONENT (-708.0)

static inline double as_double(unsigned long long bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline unsigned long long as_bits(double value) {
    unsigned long long bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* exp(x) = 2^n exp(r) with |r| <= log(2) / 2: returns exp(r) - 1 by its Taylor series, and 2^n. */
static inline real reduced_expm1(double x, double *power) {
    const double rounding = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
    const double shifted = x * 1.4426950408889634 + rounding, n = shifted - rounding;
    const double r = (x - n * 0x1.62e42fefa39efp-1) - n * 0x1.abc9e3b39803fp-56; /* log(2) in two parts */
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    *power = as_double((as_bits(shifted) << 52) + 0x3ff0000000000000ULL);
    return r + p * r * r;
}

/* log(2^k m) = k log(2) + log(m) with m between sqrt(1/2) and sqrt(2): 2 atanh((m - 1) / (m + 1)) by its series. */
static inline double log_(double x) {
    const int is_tiny = x < 0x1p-1022;
    const unsigned long long bits = as_bits(is_tiny ? x * 0x1p54 : x) + (0x3ff0000000000000ULL - 0x3fe6a09e667f3bcdULL);
    const double m = as_double((bits & 0x000fffffffffffffULL) + 0x3fe6a09e667f3bcdULL);
    const double exponent = as_double((bits >> 52) + 0x4338000000000000ULL) - 6755399441055744.0;
    const double k = exponent - (is_tiny ? 1077.0 : 1023.0);
    const double f = m - 1.0, s = f / (2.0 + f), q = s * s;
    double p = 1.0 / 23.0;
    p = p * q + 1.0 / 21.0;
    p = p * q + 1.0 / 19.0;
    p = p * q + 1.0 / 17.0;
    p = p * q + 1.0 / 15.0;
    p = p * q + 1.0 / 13.0;
    p = p * q + 1.0 / 11.0;
    p = p * q + 1.0 / 9.0;
    p = p * q + 1.0 / 7.0;
    p = p * q + 1.0 / 5.0;
    p = p * q + 1.0 / 3.0;
    /* 2 s = f - f s, where the large part f is exact */
    const double value = k * 0x1.62e42fefa39efp-1 + (f - s * (f - 2.0 * q * p) + k * 0x1.abc9e3b39803fp-56);
    return x > 0.0 ? (x < INFINITY ? value : x) : x == 0.0 ? -INFINITY : NAN;
}
