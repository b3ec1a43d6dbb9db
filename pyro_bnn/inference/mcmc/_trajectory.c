/* The No-U-Turn Sampler for one chain: `_tree.py` has the algorithm and these functions in torch.

   The text before this file defines NUM_WEIGHTS (P), NUM_LEVELS (D), MAX_SIZE, DIVERGENCE and

       void value_and_grad(const real *z, real *value, real *gradient, real *scratch, const Data *data)
*/

#define EACH(i) for (long i = 0; i < NUM_WEIGHTS; ++i)

typedef real Vector[NUM_WEIGHTS];

typedef struct {
    Vector z, r, gradient;
} Point;

typedef struct {
    Vector z, gradient;
    double potential, energy;
} Proposal;

typedef struct {
    Point left, right, moving;
    Proposal kept, new; /* of the tree and of the subtree */
    Vector momentum_sum, new_momentum_sum, velocities[NUM_LEVELS], middles[NUM_LEVELS];
    Vector velocity, middle; /* of the last point; too long for the stack */
    double dots[NUM_LEVELS], log_weight, new_log_weight, initial_energy, accept_sum, new_accept_sum;
    double step; /* negative if the subtree grows to the left */
    long size, leaf, num_steps;
} State;

static inline real dot(const real *a, const real *b) {
    real sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    EACH(i) sum += a[i] * b[i];
    return sum;
}

static inline real weighted_dot(const real *a, const real *b, const real *weight) {
    real sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    EACH(i) sum += a[i] * weight[i] * b[i];
    return sum;
}

static void seed(State *s, const Point *end) {
    s->moving = *end;
    EACH(i) s->new_momentum_sum[i] = 0.0f;
    s->new_log_weight = -INFINITY;
    s->new_accept_sum = 0.0;
    s->leaf = 0;
}

static void begin(State *s, double step_size, const real *inverse_mass, const real *normal) {
    Point *point = &s->left;
    EACH(i) point->r[i] = normal[i] / sqrt(inverse_mass[i]);
    memcpy(point->z, s->kept.z, sizeof(Vector));
    memcpy(point->gradient, s->kept.gradient, sizeof(Vector));
    s->right = *point;
    s->kept.energy = s->initial_energy = s->kept.potential + 0.5 * weighted_dot(point->r, point->r, inverse_mass);
    memcpy(s->momentum_sum, point->r, sizeof(Vector));
    s->log_weight = s->accept_sum = 0.0;
    s->size = 1;
    s->num_steps = 0;
    s->step = step_size;
    seed(s, point);
}

/* One leapfrog step; marks whether the subtree turns back on itself, and whether the point lost too much energy. */
static void grow(State *s, const real *inverse_mass, double log_uniform, real *scratch, const Data *data,
                 int *turning, int *diverging) {
    Point *p = &s->moving;
    const real step = s->step, half = 0.5 * s->step;
    real potential, *const velocity = s->velocity, *const middle = s->middle;
    EACH(i) p->r[i] -= half * p->gradient[i];
    EACH(i) p->z[i] += step * inverse_mass[i] * p->r[i];
    value_and_grad(p->z, &potential, p->gradient, scratch, data);
    EACH(i) p->r[i] -= half * p->gradient[i];
    EACH(i) velocity[i] = p->r[i] * inverse_mass[i];
    const double energy = potential + 0.5 * dot(p->r, velocity);
    double gain = s->initial_energy - energy;
    if (gain != gain) gain = -INFINITY;
    s->new_log_weight = logaddexp_(s->new_log_weight, gain);
    if (log_uniform < gain - s->new_log_weight) {
        memcpy(s->new.z, p->z, sizeof(Vector));
        memcpy(s->new.gradient, p->gradient, sizeof(Vector));
        s->new.potential = potential;
        s->new.energy = energy;
    }
    EACH(i) middle[i] = s->new_momentum_sum[i] + 0.5f * p->r[i];
    const real own = dot(middle, velocity);
    int level = 0, num_closed = 0;
    for (long n = s->leaf >> 1; n; n &= n - 1) ++level;
    *turning = 0;
    if (s->leaf % 2 == 0) {
        memcpy(s->velocities[level], velocity, sizeof(Vector));
        memcpy(s->middles[level], middle, sizeof(Vector));
        s->dots[level] = own;
    } else {
        for (long n = s->leaf; n & 1; n >>= 1) ++num_closed;
        for (int l = level; l > level - num_closed; --l) {
            const real before = dot(s->velocities[l], middle) - s->dots[l];
            const real after = own - dot(s->middles[l], velocity);
            if (before <= 0.0 || after <= 0.0) *turning = 1;
        }
    }
    *diverging = gain < -DIVERGENCE;
    EACH(i) s->new_momentum_sum[i] += p->r[i];
    s->new_accept_sum += exp(gain < 0.0 ? gain : 0.0);
    s->leaf += 1;
}

/* Adds the subtree to the tree; returns whether the trajectory ends. */
static int merge(State *s, const real *inverse_mass, int grown, double log_uniform) {
    s->accept_sum += s->new_accept_sum;
    s->num_steps += s->leaf;
    if (!grown) return 1;
    real *const between = s->middle;
    if (log_uniform < s->new_log_weight - s->log_weight) s->kept = s->new;
    *(s->step > 0 ? &s->right : &s->left) = s->moving;
    EACH(i) s->momentum_sum[i] += s->new_momentum_sum[i];
    EACH(i) between[i] = s->momentum_sum[i] - 0.5f * (s->left.r[i] + s->right.r[i]);
    s->log_weight = logaddexp_(s->log_weight, s->new_log_weight);
    s->size += s->leaf;
    return weighted_dot(s->left.r, between, inverse_mass) <= 0.0 ||
           weighted_dot(s->right.r, between, inverse_mass) <= 0.0 || s->size == MAX_SIZE;
}

/* Continues until the trajectory ends (returns 1), or the random numbers are used up (returns 0).

   point: z and gradient, then potential, energy, acceptance rate, whether it diverged, number of steps.
   numbers: logarithms of uniform numbers, three for each step: for a subtree's proposal, a merger, a side.
   position: number of steps whose numbers were used. */
int advance(State *s, int is_new, real *point, double step_size, const real *inverse_mass, const real *normal,
            const real *numbers, long num_numbers, long *position, real *scratch, const Data *data) {
    if (is_new) {
        memcpy(s->kept.z, point, sizeof(Vector));
        memcpy(s->kept.gradient, point + NUM_WEIGHTS, sizeof(Vector));
        s->kept.potential = point[2 * NUM_WEIGHTS];
        begin(s, step_size, inverse_mass, normal);
    }
    while (*position < num_numbers) {
        const real *row = numbers + 3 * (*position)++;
        int turning, diverging;
        grow(s, inverse_mass, row[0], scratch, data, &turning, &diverging);
        if (!turning && !diverging && s->leaf < s->size) continue;
        if (merge(s, inverse_mass, !turning && !diverging, row[1])) {
            real *rest = point + 2 * NUM_WEIGHTS;
            memcpy(point, s->kept.z, sizeof(Vector));
            memcpy(point + NUM_WEIGHTS, s->kept.gradient, sizeof(Vector));
            rest[0] = s->kept.potential;
            rest[1] = s->kept.energy;
            rest[2] = s->accept_sum / s->num_steps;
            rest[3] = diverging;
            rest[4] = s->num_steps;
            return 1;
        }
        const int right = row[2] < -0.6931471805599453;
        s->step = right ? step_size : -step_size;
        seed(s, right ? &s->right : &s->left);
    }
    return 0;
}

long size_of_state(void) { return sizeof(State); }

/* Potentials and gradients of many points. */
void evaluate(long num_points, const real *z, real *values, real *gradients, real *scratch,
              const Data *data) {
    for (long k = 0; k < num_points; ++k)
        value_and_grad(z + k * NUM_WEIGHTS, values + k, gradients + k * NUM_WEIGHTS, scratch, data);
}
