/* Elementary functions without branches, which the compiler turns into vector instructions. Their errors are a few
   rounding errors. At the end, the type of the data. */

/* Both values are always read: GCC 12 reads wrong values if it may read them only under a condition. */
static inline real where_(int condition, real yes, real no) { return condition ? yes : no; }

static inline real exp_(real x) {
    const real within = x > LARGEST_EXPONENT ? LARGEST_EXPONENT : x < SMALLEST_EXPONENT ? SMALLEST_EXPONENT : x;
    real power;
    const real value = reduced_expm1(within, &power);
    return x > LARGEST_EXPONENT ? INFINITY : x < SMALLEST_EXPONENT ? 0.0f : power + power * value;
}

static inline real expm1_(real x) {
    const real within = x > LARGEST_EXPONENT ? LARGEST_EXPONENT : x < SMALLEST_EXPONENT ? SMALLEST_EXPONENT : x;
    real power;
    const real value = reduced_expm1(within, &power);
    return x > LARGEST_EXPONENT ? INFINITY : power * value + (power - 1.0f);
}

static inline real tanh_(real x) {
    const real size = fabs(x), within = size > 20.0f ? 20.0f : size;
    real power;
    const real value = reduced_expm1(2.0f * within, &power), e = power * value + (power - 1.0f);
    return copysign(e / (e + 2.0f), x);
}

static inline real relu_(real x) { return x < 0.0f ? 0.0f : x; } /* NaN stays */

static inline real sigmoid_(real x) { return 1.0f / (1.0f + exp_(-x)); }

static inline real log1p_(real x) {
    const real u = 1.0f + x;
    return u < INFINITY && u > 0.0f ? log_(u) + (x - (u - 1.0f)) / u : log_(u);
}

static inline real xlogy_(real x, real y) { return x == 0.0f && y == y ? 0.0f : x * log_(y); }

static inline real logaddexp_(real a, real b) {
    const real high = a > b ? a : b, low = a > b ? b : a;
    return high == low ? high + (real)0.6931471805599453 : high + log1p(exp(low - high));
}

static inline real log_sigmoid_(real x) { return (x < 0.0f ? x : 0.0f) - log1p_(exp_(-fabs(x))); }

/* linear above 20, as in torch */
static inline real softplus_(real x) { return x > 20.0f ? x : log1p_(exp_(x)); }

static inline real softplus_slope_(real x) { return x > 20.0f ? 1.0f : sigmoid_(x); }

static inline real silu_slope_(real x) {
    const real s = sigmoid_(x);
    return s * (1.0f + x * (1.0f - s));
}

/* Phi(x), and the slope of x Phi(x) */
static inline real normal_cdf_(real x) { return 0.5f * (1.0f + erf(x * (real)0.7071067811865476)); }

static inline real gelu_slope_(real x) { return normal_cdf_(x) + x * exp_(-0.5f * x * x) * (real)0.3989422804014327; }

static inline real sign_(real x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }

/* The constants of a potential, and the number of rows if it is computed block by block. */
typedef struct {
    long num_rows;
    const real *const *constants;
} Data;
