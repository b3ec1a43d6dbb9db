/* Microcanonical Langevin steps of one chain: `_mclmc.py` has the algorithm, and the same functions for many chains. */

typedef struct {
    Vector z, direction, gradient;
    real potential;
} Walker;

static void normalise(real *direction) {
    const real scale = 1.0f / sqrt(dot(direction, direction));
    EACH(i) direction[i] *= scale;
}

/* Turns the direction towards descent for some time; returns the change of kinetic energy. */
static double turn(real *direction, const real *gradient, double time) {
    const double norm = sqrt(dot(gradient, gradient));
    if (norm == 0.0) return 0.0;
    const double delta = time * norm / (NUM_WEIGHTS - 1), zeta = exp(-delta), along = -dot(direction, gradient) / norm;
    const real descent = -(1.0 - zeta) * (1.0 + zeta + along * (1.0 - zeta)) / norm, kept = 2.0 * zeta;
    EACH(i) direction[i] = descent * gradient[i] + kept * direction[i];
    normalise(direction);
    return (NUM_WEIGHTS - 1) * (delta - log(2.0) + log(1.0 + along + (1.0 - along) * zeta * zeta));
}

/* Takes steps. A step that diverges, or gives numbers that are not finite, is undone, and its error is NaN.

   normal: standard normal numbers, num_steps x P.
   errors: the energy errors, num_steps. */
void walk(Walker *w, long num_steps, double step, double refreshment, const real *normal, real *errors, real *scratch,
          const Data *data) {
    const real half = 0.5 * step, noise = refreshment;
    for (long n = 0; n < num_steps; ++n) {
        const Walker before = *w;
        const double outer = 0.1931833275037836 * step;
        double change = turn(w->direction, w->gradient, outer);
        EACH(i) w->z[i] += half * w->direction[i];
        value_and_grad(w->z, &w->potential, w->gradient, scratch, data);
        change += turn(w->direction, w->gradient, step - 2.0 * outer);
        EACH(i) w->z[i] += half * w->direction[i];
        value_and_grad(w->z, &w->potential, w->gradient, scratch, data);
        change += turn(w->direction, w->gradient, outer);
        const double error = change + w->potential - before.potential, size = dot(w->gradient, w->gradient);
        const int is_taken = error * error <= DIVERGENCE * NUM_WEIGHTS && size - size == 0.0;
        if (!is_taken) *w = before;
        errors[n] = is_taken ? error : NAN;
        EACH(i) w->direction[i] += noise * normal[n * NUM_WEIGHTS + i];
        normalise(w->direction);
    }
}
