/* Elementary functions without branches, which a compiler turns into vector instructions. Errors are a few roundings. */

#include <math.h>
#include <string.h>

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

/* Both values are read in any case: GCC 12 reads wrong ones where only a condition lets it read them. */
static inline double where_(int condition, double yes, double no) { return condition ? yes : no; }

/* exp(x) = 2^n exp(r) with |r| <= log(2) / 2: returns exp(r) - 1 by its Taylor series, and 2^n. */
static inline double reduced_expm1(double x, double *power) {
    const double rounding = 6755399441055744.0; /* 1.5 * 2^52: a sum with it is rounded to an integer */
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

static inline double exp_(double x) {
    const double within = x > 709.0 ? 709.0 : x < -708.0 ? -708.0 : x;
    double power;
    const double value = reduced_expm1(within, &power);
    return x > 709.0 ? INFINITY : x < -708.0 ? 0.0 : power + power * value; /* largest number: exp(709.78) */
}

static inline double expm1_(double x) {
    const double within = x > 709.0 ? 709.0 : x < -708.0 ? -708.0 : x;
    double power;
    const double value = reduced_expm1(within, &power);
    return x > 709.0 ? INFINITY : power * value + (power - 1.0);
}

static inline double tanh_(double x) {
    const double size = fabs(x), within = size > 20.0 ? 20.0 : size;
    double power;
    const double value = reduced_expm1(2.0 * within, &power), e = power * value + (power - 1.0);
    return copysign(e / (e + 2.0), x);
}

static inline double relu_(double x) { return x < 0.0 ? 0.0 : x; } /* NaN stays */

static inline double sigmoid_(double x) { return 1.0 / (1.0 + exp_(-x)); }

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
    /* 2 s = f - f s is exact in f, the large part */
    const double value = k * 0x1.62e42fefa39efp-1 + (f - s * (f - 2.0 * q * p) + k * 0x1.abc9e3b39803fp-56);
    return x > 0.0 ? (x < INFINITY ? value : x) : x == 0.0 ? -INFINITY : NAN;
}

static inline double log1p_(double x) {
    const double u = 1.0 + x;
    return u < INFINITY && u > 0.0 ? log_(u) + (x - (u - 1.0)) / u : log_(u);
}

static inline double xlogy_(double x, double y) { return x == 0.0 && y == y ? 0.0 : x * log_(y); }

static inline double logaddexp_(double a, double b) {
    const double high = a > b ? a : b, low = a > b ? b : a;
    return high == low ? high + 0.6931471805599453 : high + log1p(exp(low - high));
}

static inline double log_sigmoid_(double x) { return (x < 0.0 ? x : 0.0) - log1p_(exp_(-fabs(x))); }

/* torch's, which is linear from 20 on */
static inline double softplus_(double x) { return x > 20.0 ? x : log1p_(exp_(x)); }

static inline double softplus_slope_(double x) { return x > 20.0 ? 1.0 : sigmoid_(x); }

static inline double silu_slope_(double x) {
    const double s = sigmoid_(x);
    return s * (1.0 + x * (1.0 - s));
}

/* Phi(x), and the slope of x Phi(x) */
static inline double normal_cdf_(double x) { return 0.5 * (1.0 + erf(x * 0.7071067811865476)); }

static inline double gelu_slope_(double x) { return normal_cdf_(x) + x * exp_(-0.5 * x * x) * 0.3989422804014327; }

static inline double sign_(double x) { return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : x; }
