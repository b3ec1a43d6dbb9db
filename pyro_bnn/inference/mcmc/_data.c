/* The constants of a potential, and how many rows those have that it goes through block by block. */
typedef struct {
    long num_rows;
    const real *const *constants;
} Data;
