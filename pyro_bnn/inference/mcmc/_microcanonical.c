/* Microcanonical Langevin steps of one chain: `_mclmc.py` has the algorithm and these functions in torch. */

typedef struct {
    Vector z, direction, gradient;
    real potential;
} Chain;

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

/* Takes steps. A step that diverges or is not finite is undone, and its error is NaN.

   before: memory for the chain before a step, which may be too long for the stack.
   normal: standard normal numbers, num_steps x P.
   errors: the energy errors, num_steps. */
void langevin_steps(Chain *c, Chain *before, long num_steps, double step, double refreshment, const real *normal,
                    real *errors, real *scratch, const Data *data) {
    const real half = 0.5 * step, noise = refreshment;
    for (long n = 0; n < num_steps; ++n) {
        *before = *c;
        const double outer = 0.1931833275037836 * step;
        double change = turn(c->direction, c->gradient, outer);
        EACH(i) c->z[i] += half * c->direction[i];
        value_and_grad(c->z, &c->potential, c->gradient, scratch, data);
        change += turn(c->direction, c->gradient, step - 2.0 * outer);
        EACH(i) c->z[i] += half * c->direction[i];
        value_and_grad(c->z, &c->potential, c->gradient, scratch, data);
        change += turn(c->direction, c->gradient, outer);
        const double error = change + c->potential - before->potential, size = dot(c->gradient, c->gradient);
        const int is_taken = error * error <= DIVERGENCE * NUM_WEIGHTS && size - size == 0.0;
        if (!is_taken) *c = *before;
        errors[n] = is_taken ? error : NAN;
        EACH(i) c->direction[i] += noise * normal[n * NUM_WEIGHTS + i];
        normalise(c->direction);
    }
}
