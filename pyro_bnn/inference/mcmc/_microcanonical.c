/* Microcanonical Langevin steps of one chain: `_mclmc.py` has the algorithm, and the same functions for many chains. */

typedef struct {
    Vector z, direction, gradient;
    double potential;
} Walker;

static void normalise(double *direction) {
    const double scale = 1.0 / sqrt(dot(direction, direction));
    EACH(i) direction[i] *= scale;
}

/* Turns the direction towards the descent for a time; returns the change of kinetic energy. */
static double turn(double *direction, const double *gradient, double time) {
    const double norm = sqrt(dot(gradient, gradient));
    if (norm == 0.0) return 0.0;
    const double delta = time * norm / (NUM_WEIGHTS - 1), zeta = exp(-delta), along = -dot(direction, gradient) / norm;
    const double descent = -(1.0 - zeta) * (1.0 + zeta + along * (1.0 - zeta)) / norm;
    EACH(i) direction[i] = descent * gradient[i] + 2.0 * zeta * direction[i];
    normalise(direction);
    return (NUM_WEIGHTS - 1) * (delta - log(2.0) + log(1.0 + along + (1.0 - along) * zeta * zeta));
}

/* Takes steps; one that diverges, or whose result is not finite, is not taken, and its error is NaN.

   normal: standard normal numbers, num_steps x P.
   errors: the energy errors, num_steps. */
void walk(Walker *w, long num_steps, double step, double refreshment, const double *normal, double *errors,
          double *scratch, const double *const *data) {
    for (long n = 0; n < num_steps; ++n) {
        const Walker before = *w;
        const double outer = 0.1931833275037836 * step;
        double change = turn(w->direction, w->gradient, outer);
        EACH(i) w->z[i] += 0.5 * step * w->direction[i];
        value_and_grad(w->z, &w->potential, w->gradient, scratch, data);
        change += turn(w->direction, w->gradient, step - 2.0 * outer);
        EACH(i) w->z[i] += 0.5 * step * w->direction[i];
        value_and_grad(w->z, &w->potential, w->gradient, scratch, data);
        change += turn(w->direction, w->gradient, outer);
        const double error = change + w->potential - before.potential, size = dot(w->gradient, w->gradient);
        const int is_taken = error * error <= DIVERGENCE * NUM_WEIGHTS && size - size == 0.0;
        if (!is_taken) *w = before;
        errors[n] = is_taken ? error : NAN;
        EACH(i) w->direction[i] += refreshment * normal[n * NUM_WEIGHTS + i];
        normalise(w->direction);
    }
}
