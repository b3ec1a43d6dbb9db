/* Exponentials and logarithms in single precision, computed from the bits of this format. */

typedef float real;

#define LARGEST_EXPONENT 88.0f /* largest number: exp(88.72) */
#define SMALLEST_EXPONENT (-87.0f)

static inline float as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline unsigned as_bits(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* exp(x) = 2^n exp(r) with |r| <= log(2) / 2: returns exp(r) - 1 by its Taylor series, and 2^n. */
static inline float reduced_expm1(float x, float *power) {
    const float rounding = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    const float shifted = x * 1.44269504f + rounding, n = shifted - rounding;
    const float r = (x - n * 0x1.62ep-1f) - n * 0x1.0bfbe8p-15f; /* log(2) in two parts */
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    *power = as_float((as_bits(shifted) << 23) + 0x3f800000U);
    return r + p * r * r;
}

/* log(2^k m) = k log(2) + log(m) with m between sqrt(1/2) and sqrt(2): 2 atanh((m - 1) / (m + 1)) by its series. */
static inline float log_(float x) {
    const int is_tiny = x < 0x1p-126f;
    const unsigned bits = as_bits(is_tiny ? x * 0x1p25f : x) + (0x3f800000U - 0x3f3504f3U);
    const float m = as_float((bits & 0x007fffffU) + 0x3f3504f3U);
    const float k = as_float((bits >> 23) + 0x4b400000U) - (is_tiny ? 12583064.0f : 12583039.0f);
    const float f = m - 1.0f, s = f / (2.0f + f), q = s * s;
    float p = 1.0f / 9.0f;
    p = p * q + 1.0f / 7.0f;
    p = p * q + 1.0f / 5.0f;
    p = p * q + 1.0f / 3.0f;
    /* 2 s = f - f s, where the large part f is exact */
    const float value = k * 0x1.62ep-1f + (f - s * (f - 2.0f * q * p) + k * 0x1.0bfbe8p-15f);
    return x > 0.0f ? (x < INFINITY ? value : x) : x == 0.0f ? -INFINITY : NAN;
}
